//! The rules of a replay, on traces written by hand: when a choice is made, and from which requests.

use blkmq_workbench::{Classes, Settings};

use crate::whole;
use crate::written::Trace;

const SETTINGS: &str = "scheduler none [mq-deadline]\nnr_requests 64\n";

/// Each paragraph of the file says what it is red of.
#[test]
fn choices_are_made_when_linux_makes_them_and_from_what_it_saw() {
    let cases: Vec<&str> = include_str!("../data/replay.txt").split("\n\n").skip(1).collect();
    assert!(cases.len() > 30, "{}", cases.len());
    for case in cases {
        let lines = |key: &str| case.lines().filter_map(move |line| line.trim().strip_prefix(key)).collect::<String>();
        let settings = format!("{SETTINGS}{}", lines("settings ").replace(", ", "\n"));
        let settings = Settings::parse("queue.txt", &settings).expect("the settings are well formed");
        let classes = Classes::parse("classes.txt", &lines("classes ")).expect("the classes are well formed");
        let events = whole::events(&Trace::of(&lines("trace")).bytes);
        let replayed = whole::replay(&events, &settings, &classes).expect("the settings are accepted");
        assert_eq!(replayed.words(), lines("choices "), "{case}");
    }
}

/// Red if what waits is not bounded: each insertion of a trace without issues would stay in memory.
#[test]
fn a_trace_without_issues_is_refused_before_its_requests_fill_memory() {
    let insertions = |number: u64| (0..number).fold(Trace::default(), |trace, at| trace.add(1, "I", 16 * at, 8));
    let settings = Settings::parse("queue.txt", SETTINGS).expect("the settings are well formed");
    let replay = |trace: Trace| whole::replay(&whole::events(&trace.bytes), &settings, &Classes::default());
    assert!(replay(insertions(262_144)).is_ok());
    let text = replay(insertions(262_145)).expect_err("there is one more").to_string();
    assert!(text.starts_with("the trace at 262145000 ns: more than 262144 insertions"), "{text}");
    assert!(text.contains("issue (D)"), "{text}");
}
