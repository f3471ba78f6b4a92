//! Any texts are read as what Linux's BFQ decided, for which processes and groups, or are refused in one line that says
//! where. What can be read is replayed: each question has an answer, and what is answered can be written.
//!
//! An input has four parts, each behind a line `---`: decisions, processes, groups, and what a trace would tell. Lines
//! of the last part are `TIME ACTION PID SECTOR NR_SECTORS KIND`, as in `100 I 603 0 8 R`; others are left out there.
#![no_main]

mod reach;

use blkmq_workbench::blktrace::{Action, Category, Event};
use blkmq_workbench::order::{self, Decision, Groups, Linux, Processes};
use blkmq_workbench::{Settings, TextError};
use libfuzzer_sys::fuzz_target;
use reach::Reached;

fn event(sequence: u32, line: &str) -> Option<Event> {
    let mut words = line.split_whitespace();
    let time = words.next()?.parse().ok()?;
    let action = match words.next()? {
        "I" => Action::Insert,
        "M" => Action::BackMerge,
        "F" => Action::FrontMerge,
        "D" => Action::Issue,
        "C" => Action::Complete,
        "R" => Action::Requeue,
        _ => return None,
    };
    let pid = words.next()?.parse().ok()?;
    let sector = words.next()?.parse().ok()?;
    let nr_sectors: u32 = words.next()?.parse().ok()?;
    let category = match words.next()? {
        "R" => Category::READ,
        "W" => Category::WRITE,
        "WS" => Category(Category::WRITE.0 | Category::SYNC.0),
        "D" => Category(Category::WRITE.0 | Category::DISCARD.0),
        _ => return None,
    };
    Some(Event {
        sequence,
        time,
        sector,
        bytes: nr_sectors.wrapping_mul(512),
        action,
        category,
        pid,
        device: 1,
        cpu: 0,
        error: 0,
        has_group: false,
        payload: Box::default(),
    })
}

/// What was read, if it was; what was refused names the file and the line.
fn read<T>(result: Result<T, TextError>, file: &str, reached: &mut Reached) -> Option<T> {
    match result {
        Ok(read) => Some(read),
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with(&format!("{file}: line ")) && !line.contains(blkmq::is_hidden), "{line:?}");
            reached.add("refused", 1);
            None
        }
    }
}

fn run(text: &str, reached: &mut Reached) {
    let mut parts = text.split("---\n");
    let mut part = || parts.next().unwrap_or_default();
    let decisions = read(order::parse_decisions("decisions.txt", part()), "decisions.txt", reached);
    let processes = read(Processes::parse("processes.txt", part()), "processes.txt", reached);
    let groups = read(Groups::parse("groups.txt", part()), "groups.txt", reached);
    let (Some(decisions), Some(processes), Some(groups)) = (decisions, processes, groups) else { return };

    let lines = (0..).zip(part().lines());
    let mut events: Vec<_> = lines.filter_map(|(sequence, line)| event(sequence, line)).collect();
    events.sort_by_key(|event| (event.time, event.sequence));
    let asks = decisions.iter().filter(|line| line.what == Decision::Ask).count();
    for settings in ["scheduler [bfq]\nlow_latency 1\n", "scheduler [bfq]\nlow_latency 0\nrotational 1\n"] {
        let settings = Settings::parse("queue.txt", settings).expect("these settings are right");
        let linux = Linux { events: &events, decisions: &decisions };
        match order::replay_bfq(linux, &settings, &processes, &groups) {
            Ok(answers) => {
                assert_eq!(answers.answers.len(), asks);
                let mut written = Vec::new();
                answers.write_choices(&mut written).expect("memory takes it");
                answers.write_expirations(&mut written).expect("memory takes it");
                let lines = written.iter().filter(|byte| **byte == b'\n').count();
                assert_eq!(lines, asks + answers.expired.len());
                let requests = answers.answers.iter().filter(|answer| answer.rq.is_some()).count();
                reached.add("requests chosen", requests);
                reached.add("expired", answers.expired.len());
                reached.add("followed", usize::from(asks > 0 && answers.not_followed.is_empty()));
            }
            Err(error) => {
                let line = error.to_string();
                assert!(line.contains("there are more than ") && !line.contains(blkmq::is_hidden), "{line:?}");
            }
        }
    }
    reached.add("processes", processes.all().len());
}

const LEAST: [(&str, u64); 5] =
    [("requests chosen", 250), ("expired", 6), ("followed", 10), ("processes", 16), ("refused", 14)];

fuzz_target!(
    init: reach::seeds("decisions", &LEAST, |bytes, reached| {
        run(std::str::from_utf8(bytes).expect("these seeds are text"), reached);
    }),
    |text: &str| run(text, &mut Reached::default())
);
