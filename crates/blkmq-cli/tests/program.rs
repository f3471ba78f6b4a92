//! The program from outside: what it prints, where, and with which exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn recording(name: &str, file: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../blkmq-workbench/tests/data/linux-6.12-mq-deadline");
    data.join(name).join(file).display().to_string()
}

fn temporary(name: &str, content: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("the folder for tests is writable");
    path.display().to_string()
}

fn blkmq(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(arguments).output().expect("the program starts")
}

/// What a run that must succeed prints.
fn printed(arguments: &[&str]) -> String {
    let output = blkmq(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the program prints text")
}

/// The one line that a run prints which must be refused.
fn refused(arguments: &[&str]) -> String {
    failed(arguments, 2)
}

fn failed(arguments: &[&str], code: i32) -> String {
    let output = blkmq(arguments);
    let text = String::from_utf8(output.stderr).expect("the program prints text");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}: nothing but the error is printed");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    text
}

#[test]
fn order_counts_its_choices_in_words_and_as_json() {
    let (trace, queue) = (recording("prio", "trace.blktrace.0"), recording("prio", "queue.txt"));
    let classes = recording("prio", "classes.txt");
    let arguments = ["replay", "--order", &trace, "--queue", &queue, "--classes", &classes];
    let words = printed(&arguments);
    let json: serde_json::Value = serde_json::from_str(&printed(&[&arguments[..], &["--json"]].concat())).unwrap();
    let count = |name: &str| json[name].as_u64().unwrap();
    assert_eq!(count("agree") + count("disagree"), count("choices"));
    assert!(words.starts_with(&format!("mq-deadline: {} choices, {} as Linux", count("choices"), count("agree"))));
    assert_eq!(json["first"].is_null(), count("disagree") == 0);
    assert_eq!(words.contains("Linux took"), count("disagree") > 0);
}

#[test]
fn the_first_disagreement_is_the_first_line_of_the_choices_that_differs() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let choices = temporary("choices", b"");
    let arguments = ["replay", &trace, "--order", "--queue", &queue, "--json", "--choices", &choices];
    let right = printed(&arguments);
    assert_eq!(right.trim_end(), r#"{"choices":1391,"agree":1391,"disagree":0,"first":null}"#);
    let of_linux = fs::read_to_string(&choices).unwrap();

    let wrong = printed(&[&arguments[..], &["--set", "iosched/fifo_batch=1"]].concat());
    let first = &serde_json::from_str::<serde_json::Value>(&wrong).unwrap()["first"];
    let ours = fs::read_to_string(&choices).unwrap();
    let (expected, found) = of_linux.lines().zip(ours.lines()).find(|(linux, ours)| linux != ours).unwrap();
    let line = |request: &serde_json::Value| {
        format!("{} {} {}", first["time_ns"], request["sector"], request["direction"].as_str().unwrap())
    };
    assert_eq!((line(&first["linux"]).as_str(), line(&first["ours"]).as_str()), (expected, found));
}

#[test]
fn a_broken_trace_is_refused_in_one_line() {
    let queue = recording("mixed", "queue.txt");
    let whole = fs::read(recording("mixed", "trace.blktrace.0")).unwrap();
    let mut swapped = whole.clone();
    swapped[..4].reverse();
    for (name, content, expected) in [
        ("short.blktrace.0", &whole[..100], "byte 56: the trace is truncated"),
        ("swapped.blktrace.0", &swapped[..], "byte 0: the bytes are swapped"),
        ("text.blktrace.0", b"kernel 6.12".as_slice(), "byte 0: not a blktrace record"),
        ("empty.blktrace.0", b"", "the trace is empty"),
    ] {
        let path = temporary(name, content);
        let text = refused(&["replay", "--order", &path, "--queue", &queue]);
        assert!(text.starts_with(&format!("blkmq: {path}: {expected}")), "{text}");
    }
    assert!(refused(&["replay", "--order", "/nowhere", "--queue", &queue]).contains("/nowhere: there is no such file"));
    assert!(refused(&["replay", "--order", "/", "--queue", &queue]).contains("directory"));
}

#[test]
fn bad_words_are_named_beside_the_accepted_ones() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let order = ["replay", "--order", &trace, "--queue", &queue];
    for (arguments, word, accepted) in [
        (vec![], "command", "replay, schedulers"),
        (vec!["repay"], "'repay'", "replay, schedulers"),
        (vec!["--jsn"], "'--jsn'", "--help"),
        ([&order[..], &["--jsn"]].concat(), "'--jsn'", "--json"),
        ([&order[..], &["--set"]].concat(), "--set", "NAME=VALUE"),
        ([&order[..], &["--set", "iosched/fifo=1"]].concat(), "'fifo'", "fifo_batch"),
        ([&order[..], &["--set", "iosched/fifo_batch=x"]].concat(), "'x'", "whole number"),
        ([&order[..], &["--set", "iosched/a\nb=1"]].concat(), "'a b'", "fifo_batch"),
        ([&order[..], &["--set", "iosched/fifo_batch=-1"]].concat(), "-1", "0..2147483647"),
        ([&order[..], &["--classes", &queue]].concat(), "'kernel 6.12", "FIRST END CLASS"),
        (vec!["replay", "--order", &trace, "--queue", &trace], "byte", "text"),
        (vec!["replay", "--order", &trace], "--queue", "required"),
        (vec!["replay", "--order", &trace, "--queue", "/nowhere"], "/nowhere", "No such file"),
    ] {
        let text = refused(&arguments);
        assert!(text.contains(word) && text.contains(accepted), "{arguments:?}: {text}");
    }
}

#[test]
fn choices_that_cannot_be_written_are_a_failure_while_running() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let text = failed(&["replay", "--order", &trace, "--queue", &queue, "--choices", "/nowhere/choices"], 1);
    assert!(text.starts_with("blkmq: /nowhere/choices: "), "{text}");
}

#[test]
fn schedulers_lists_every_knob_with_its_default_and_range() {
    let text = printed(&["schedulers"]);
    for scheduler in blkmq_sched::SCHEDULERS {
        assert!(text.contains(&format!("\n{}\n", scheduler.name)));
        for knob in scheduler.knobs {
            let line = text.lines().find(|line| line.trim_start().starts_with(knob.name)).unwrap();
            assert!(line.contains(&format!("{}..{}", knob.min, knob.max)) && line.contains(knob.about), "{line}");
        }
    }
    assert!(text.starts_with("none\n"));
}

#[test]
fn help_tells_examples_and_exit_codes() {
    for arguments in [&["--help"][..], &["replay", "--help"], &["schedulers", "--help"], &["help", "replay"]] {
        let text = printed(arguments);
        assert!(text.contains("Exit codes:") && text.contains("Usage: blkmq"), "{text}");
    }
    assert!(printed(&["replay", "--help"]).contains("Examples:"));
    assert!(printed(&["--version"]).starts_with("blkmq "));
}
