//! `scripts/test` with steps made for this test: what it calls a failure, and what it prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::run::has_all;

/// `slow` builds for longer than a step may be silent, and takes two seconds of processor time for it; `silent` runs
/// and says nothing; `waits` is silent until `fuzz` has begun; the others pass at once.
const STEP: &str = "#!/usr/bin/env bash
if [[ $1 == --build ]]; then
    case $2 in
    slow)
        sleep 7
        (ulimit -c 0 -t 2 && while :; do :; done) 2>/dev/null
        rm -rf target/debug
        mkdir -p target/debug/deps target/debug/build/x
        touch target/debug/deps/{one,library.so,object.o} target/debug/build/x/script
        cp target/debug/deps/one target/debug/deps/two
        ln -f target/debug/deps/two target/debug/two
        chmod +x target/debug/deps/{one,two,library.so} target/debug/build/x/script
        ;;
    broken)
        echo 'error: no such crate'
        exit 101
        ;;
    lacking) echo 'SKIP it cannot be had' && exit 75 ;;
    esac
    exit 0
fi
if [[ $1 == silent ]]; then sleep 600; fi
if [[ $1 == fuzz ]]; then touch target/begun; fi
if [[ $1 == waits ]]; then until [[ -e target/begun ]]; do sleep 0.1; done; fi
if [[ $1 == fuzz ]]; then echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored;' && exit 1; fi
mkdir -p target/loom
echo 'test result: ok. 3 passed; 0 failed; 0 ignored;'
";

/// A folder with the script and these steps in it. Other programs write the two files: a process that another test
/// begins has all that this process has open, until it is another program, and a file that is open for writing does not
/// start ("Text file busy").
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let scripts = folder.join("scripts");
    fs::create_dir_all(&scripts).expect("the folder for tests is writable");
    fs::write(folder.join("step"), STEP).expect("the folder is writable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test");
    for (from, to) in [(script, "test"), (folder.join("step"), "step")] {
        let installed = Command::new("install").arg("--mode=755").arg(from).arg(scripts.join(to)).status();
        assert!(installed.expect("it is among the core utilities").success());
    }
    folder
}

fn run(folder: &Path, steps: &[&str], ci: &str) -> (Output, String) {
    let mut command = Command::new(folder.join("scripts/test"));
    command.args(steps).env("SILENCE", "5").env("CI", ci).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().expect("there is a shell");
    let words = String::from_utf8(output.stdout.clone()).expect("it prints text");
    (output, words)
}

/// Red if the time that a step builds counts towards the limit by which it hangs, or is not told. Red if the table
/// leaves out the processor time of a step, counts a library, an object or a build script as a program, or counts a
/// program with two names twice. Also red if a step that says nothing ends the script, or if the step and the end do
/// not both say why a step failed.
#[test]
fn a_step_may_build_for_any_time_and_hangs_when_it_says_nothing() {
    let (output, words) = run(&folder("gate"), &["slow", "silent", "broken", "lacking"], "");
    let line = |step: &str| words.lines().find(|line| line.starts_with(step)).expect("each step has a line").to_owned();
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let slow = line("slow ");
    let building = slow.split_once(" s, ").and_then(|(_, rest)| number(rest));
    assert!(slow.contains(" ok ") && slow.ends_with(" 3 passed") && building >= Some(9), "{words}");
    assert!(line("silent ").contains("FAILED (ended: it said nothing for 5 s)"), "{words}");
    assert!(line("broken ").contains("FAILED ") && line("lacking ").contains("SKIP "), "{words}");
    assert!(words.contains("\n    | error: no such crate\n"), "{words}");
    assert!(words.contains("\nfailed: broken: error: no such crate\n"), "{words}");
    assert!(words.contains("\nfailed: silent: "), "{words}");
    let row = words.lines().find(|line| line.starts_with("slow ") && !line.contains(" ok ")).expect("the table has it");
    let cells: Vec<u64> = row.split_whitespace().skip(1).map(|cell| cell.parse().expect("a number")).collect();
    assert!(matches!(cells[..], [built, _, 1..=4, 2, 3, 0, 0] if built >= 9), "{words}");
    let last: Vec<&str> = words.lines().collect();
    let [.., time, disk, sum] = last[..] else { panic!("{words}") };
    has_all(time, &[" s in all, ", " s of it building, and ", " s of processor time"]);
    assert!(disk.ends_with(" GB on disk in target"), "{words}");
    assert_eq!(sum, "3 passed, 2 failed, 1 skipped");
    assert_eq!(output.status.code(), Some(1));
}

/// Red if a step that builds in a folder of its own waits for others, or if what it came to is not counted or not told.
#[test]
fn a_step_with_a_folder_of_its_own_runs_beside_the_others() {
    let folder = folder("gate-beside");
    let _ = fs::remove_file(folder.join("target/begun"));
    let (output, words) = run(&folder, &["waits", "other", "fuzz", "loom"], "");
    for line in ["waits     ok ", "other     ok ", "fuzz      FAILED ", "loom      ok ", "failed: fuzz: "] {
        assert_eq!(words.lines().filter(|said| said.starts_with(line)).count(), 1, "{line}: {words}");
    }
    assert!(words.contains(" s in all; the steps, two at a time, took "), "{words}");
    assert!(words.ends_with("\n10 passed, 2 failed, 0 skipped\n"), "{words}");
    assert_eq!(output.status.code(), Some(1));
}

/// Red if on CI a step leaves files on the disk that no later step needs.
#[test]
fn a_step_leaves_nothing_of_its_own_on_ci() {
    let folder = folder("gate-ci");
    for (ci, is_there) in [("", true), ("true", false)] {
        let (output, words) = run(&folder, &["loom"], ci);
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert_eq!(folder.join("target/loom").exists(), is_there, "{words}");
    }
}

/// Red if a step that is there runs neither in `make test` nor in `make deep`, or runs in both.
#[test]
fn each_step_belongs_to_one_of_two_commands() {
    let folder = folder("gate-all");
    let rows = |steps: &[&str]| {
        let (_, words) = run(&folder, steps, "");
        let table = words.lines().skip_while(|line| !line.starts_with("step ")).skip(1);
        let rows = table.take_while(|line| !line.is_empty()).map(|row| row.split(' ').next().unwrap_or_default());
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut found, deep) = (rows(&[]), rows(&["deep"]));
    assert!(found.len() > 5 && deep.len() > 5, "{found:?} {deep:?}");
    found.extend(deep);
    found.sort_unstable();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/step");
    let script = fs::read_to_string(script).expect("the script is in the repository");
    let steps = script.lines().find_map(|line| line.strip_prefix("steps=\"")?.strip_suffix('"'));
    let mut steps: Vec<_> = steps.expect("the script lists its steps").split(' ').collect();
    steps.sort_unstable();
    assert_eq!(found, steps);
}
