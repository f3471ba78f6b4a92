//! Runs the program of the crate whose tests these are: `blkmq`, the torture rig, or the model.

#![allow(dead_code, reason = "each test program uses some of these")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

const PROGRAM: &str = {
    let (blkmq, torture) = (option_env!("CARGO_BIN_EXE_blkmq"), option_env!("CARGO_BIN_EXE_blkmq-torture"));
    match (blkmq, torture, option_env!("CARGO_BIN_EXE_blkmq-simulate")) {
        (Some(program), ..) | (_, Some(program), _) | (_, _, Some(program)) => program,
        _ => panic!("cargo names the programs of a crate to its tests"),
    }
};

pub(crate) fn temporary(name: &str, content: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("the folder for tests is writable");
    path.display().to_string()
}

pub(crate) fn blkmq(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program starts")
}

/// Starts the program, and reads what it prints through pipes.
pub(crate) fn spawn(arguments: &[&str]) -> Child {
    let mut program = Command::new(PROGRAM);
    program.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Does to a program what Ctrl-C does.
pub(crate) fn interrupt(program: &Child) {
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", program.id())]).status();
    assert!(kill.expect("there is a shell").success());
}

/// A run with `--report` that gets Ctrl-C as soon as the program handles it: it does once the page is opened, which is
/// not there before.
pub(crate) fn interrupted(arguments: &[&str], page: &str) -> Output {
    let program = spawn(&[arguments, &["--report", page]].concat());
    while !fs::exists(page).expect("the folder can be read") {
        thread::yield_now();
    }
    interrupt(&program);
    program.wait_with_output().expect("it ends")
}

/// A run that may have so many descriptors open.
pub(crate) fn blkmq_with_descriptors(most: u32, arguments: &[&str]) -> Output {
    let script = format!("ulimit -n {most} && exec \"$0\" \"$@\"");
    Command::new("sh").args(["-c", &script, PROGRAM]).args(arguments).output().expect("there is a shell")
}

/// The output of a run that must succeed.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = blkmq(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the program prints text")
}

/// Checks that a text has all of these parts.
#[track_caller]
pub(crate) fn has_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// The JSON that a run must print.
pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(&[arguments, &["--json"]].concat())).expect("the program prints JSON")
}

/// The path of a file of a recording of Linux's mq-deadline.
pub(crate) fn recording(name: &str, file: &str) -> String {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../blkmq-workbench/tests/data/linux-6.12-mq-deadline");
    data.join(name).join(file).display().to_string()
}

/// A number of bytes of memory that the kernel reports of a process, such as `VmRSS`; `None` if the process has ended.
pub(crate) fn memory(process: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The one line that a run must print because its input is refused.
pub(crate) fn refused(arguments: &[&str]) -> String {
    failed(arguments, 2)
}

pub(crate) fn failed(arguments: &[&str], code: i32) -> String {
    let output = blkmq(arguments);
    let text = String::from_utf8(output.stderr).expect("the program prints text");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}: nothing but the error is printed");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    text
}
