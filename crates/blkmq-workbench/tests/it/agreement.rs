//! How often mq-deadline chooses as Linux's mq-deadline did, on recordings of Linux.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use blkmq_workbench::blktrace::{Action, Event};
use blkmq_workbench::{Classes, TraceFiles, blktrace};

use crate::whole::Recording;

/// The share of choices, in percent, that must agree on each recording. `overlap` goes red if sector order goes on from
/// the end of the last request: its writes overlap, and Linux goes on from the beginning.
const MARKS: [(&str, f64); 6] =
    [("mixed", 99.9), ("expiry", 99.9), ("overlap", 99.9), ("depth4", 99.9), ("merge", 99.9), ("prio", 99.5)];

/// The records of a trace, read offset by offset without the reader under test.
fn records(trace: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    let mut rest = trace;
    while !rest.is_empty() {
        let (record, behind) = rest.split_at(48 + usize::from(rest[46]) + 256 * usize::from(rest[47]));
        records.push(record);
        rest = behind;
    }
    records
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[test]
fn recorded_choices_are_ours_too() {
    for (name, mark) in MARKS {
        let agreement = Recording::of_mq_deadline(name).replay(&[]);
        println!("{name}: {} of {}, {:.2} %", agreement.agree(), agreement.choices.len(), agreement.percent());
        assert!(agreement.choices.len() > 700, "{name}: the recording holds too few choices to judge by");
        assert!(agreement.percent() >= mark, "{name}: {:.2} % is below {mark} %", agreement.percent());
    }
}

/// Red if the replay relies on what a plug announces: agreement must reach the marks without announcements, and with
/// wrong numbers in them.
#[test]
fn announcements_that_are_missing_or_wrong_cost_nothing() {
    static NUMBERS: [[u8; 8]; 5] =
        [0_u64.to_be_bytes(), 1_u64.to_be_bytes(), 2_u64.to_be_bytes(), 3_u64.to_be_bytes(), 4_u64.to_be_bytes()];
    for (name, mark) in MARKS {
        let recording = Recording::of_mq_deadline(name);
        let events = blktrace::read(&recording.trace).expect("the recording is whole");
        let right = recording.replay(&[]);
        let replay = |payload: &dyn Fn(usize) -> Option<&'static [u8]>| {
            let changed = events.iter().enumerate().filter_map(|(index, event)| match event.action {
                Action::Unplug => Some(Event { payload: payload(index)?.into(), ..event.clone() }),
                _ => Some(event.clone()),
            });
            let changed: Vec<Event> = changed.collect();
            recording.replay_of(&changed, &[])
        };
        for (what, agreement) in [
            ("no events", replay(&|_| None)),
            ("no numbers", replay(&|_| Some(&[]))),
            ("too large", replay(&|_| Some(&NUMBERS[4]))),
            ("any", replay(&|index| Some(&NUMBERS[index % 5]))),
        ] {
            assert!(agreement.percent() >= mark, "{name}, {what}: {:.2} %", agreement.percent());
            assert_eq!(agreement.agree(), right.agree(), "{name}, {what}");
        }
    }
}

#[test]
fn agreement_falls_under_knobs_that_are_not_the_recordings() {
    let wrong: [(&str, &[&str]); 9] = [
        ("mixed", &["iosched/fifo_batch=1"]),
        ("mixed", &["iosched/writes_starved=0"]),
        ("mixed", &["iosched/read_expire=20"]),
        ("depth4", &["iosched/fifo_batch=32"]),
        ("expiry", &["iosched/read_expire=500"]),
        ("expiry", &["iosched/write_expire=500", "iosched/writes_starved=2"]),
        ("merge", &["iosched/writes_starved=0"]),
        ("prio", &["iosched/prio_aging_expire=10000"]),
        ("prio", &["iosched/fifo_batch=1"]),
    ];
    for (name, changes) in wrong {
        let recording = Recording::of_mq_deadline(name);
        let (right, wrong) = (recording.replay(&[]).percent(), recording.replay(changes).percent());
        assert!(wrong < right - 1.0, "{name} {changes:?}: {wrong:.2} % instead of {right:.2} %");
    }
}

#[test]
fn agreement_falls_without_the_classes() {
    let mut recording = Recording::of_mq_deadline("prio");
    let right = recording.replay(&[]).percent();
    recording.classes = Classes::default();
    assert!(recording.replay(&[]).percent() < right - 10.0);
}

/// Red if there is not one line for each issue, at its time, or if the lines agree less often than is claimed. Another
/// reader of the trace counts.
#[test]
fn choices_list_one_line_for_each_issue() {
    for (name, _) in MARKS {
        let recording = Recording::of_mq_deadline(name);
        let agreement = recording.replay(&[]);
        let mut text = Vec::new();
        for choice in &agreement.choices {
            choice.write(&mut text).expect("memory takes every write");
        }
        let text = String::from_utf8(text).expect("a list of choices is plain text");
        let issues: Vec<&[u8]> = records(&recording.trace).into_iter().filter(|record| record[28] == 7).collect();
        assert_eq!(text.lines().count(), issues.len(), "{name}");
        let mut same = 0;
        for (line, issue) in text.lines().zip(issues) {
            let letter = if issue[30] & 2 == 0 { 'R' } else { 'W' };
            let (time, sector) = (number(&issue[8..16]), number(&issue[16..24]));
            assert!(line.starts_with(&format!("{time} ")), "{name}: '{line}' is not the line of the issue at {time}");
            same += usize::from(line == format!("{time} {sector} {letter}"));
        }
        assert_eq!(same, agreement.agree(), "{name}");
    }
}

/// Red if the records of a recording, dealt out in turn to three files, are read otherwise than the one file.
#[test]
fn per_cpu_files_are_one_trace() {
    let recording = Recording::of_mq_deadline("prio");
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dealt");
    let mut files: HashMap<usize, Vec<u8>> = HashMap::new();
    for (index, record) in records(&recording.trace).into_iter().enumerate() {
        files.entry(index % 3).or_default().extend_from_slice(record);
    }
    // CPU 1 was idle: its file is empty.
    files.insert(3, files[&1].clone());
    files.insert(1, Vec::new());
    let path = |cpu: usize| PathBuf::from(format!("{}.blktrace.{cpu}", base.display()));
    for (cpu, content) in &files {
        fs::write(path(*cpu), content).expect("the folder for tests is writable");
    }
    for name in [base.clone(), path(2)] {
        let trace = TraceFiles::open(&name).expect("the files were just written");
        let events: Vec<Event> = trace.collect::<Result<_, _>>().expect("the files are whole");
        assert_eq!(recording.replay_of(&events, &[]), recording.replay(&[]), "{}", name.display());
    }
}
