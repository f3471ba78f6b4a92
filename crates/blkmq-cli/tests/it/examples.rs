//! The job files that come with fio, through the program: each runs, or is refused by the name of what blkmq lacks.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Where Debian's package fio-examples puts its files.
const EXAMPLES: &str = "/usr/share/doc/fio/examples";

/// A device that is large enough for all job files, and so slow that little data moves in the time of each.
const DEVICE: &str = "null,memory_backed=1,discard=1,irqmode=2,completion_nsec=1ms,hw_queue_depth=4,size=4T";

/// The word that blkmq lacks according to an error, if the line that the error names has this word.
fn lacking(error: &str, path: &str) -> Option<String> {
    let (number, what) = error.strip_prefix(&format!("blkmq: {path}: line "))?.split_once(": blkmq has no ")?;
    let word = what.split('\'').nth(1)?;
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
    // Some files use an option's short name.
    let name = word.split('=').next()?;
    let names = [name.to_owned(), name.replace('_', ""), name.replace("steadystate", "ss=")];
    names.iter().any(|name| line.contains(name)).then(|| word.to_owned())
}

#[test]
fn each_runs_or_is_refused_by_the_name_of_what_is_lacking() {
    let Ok(folder) = fs::read_dir(EXAMPLES) else {
        println!("SKIP {EXAMPLES} is missing: scripts/tools fio-examples");
        return;
    };
    let mut paths: Vec<_> = folder
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "fio"))
        .collect();
    paths.sort();
    let (mut ran, mut refused) = (0, 0);
    for path in paths {
        let path = path.display().to_string();
        let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        program.args(["bench", &path, "--device", DEVICE, "--json"]);
        program.args(["--clock", "virtual", "--runtime", "10ms", "--option", "ramp_time=0"]);
        // Two files take options from the environment.
        program.envs([("FIO_RW", "randread"), ("FIO_IODEPTH", "4"), ("FIO_BS", "4k")]);
        let output = program.output().expect("the program starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            let found: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
            assert!(found["blkmq"]["requests"].as_u64() > Some(0), "{path} did nothing");
            ran += 1;
        } else {
            let what = lacking(&error, &path).unwrap_or_else(|| panic!("{path}: {:?} {error}", output.status));
            assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
            println!("{path}: {what}");
            refused += 1;
        }
    }
    println!("{ran} ran, {refused} were refused");
    assert!(ran > 0);
}
