//! Any texts are read as what Linux's BFQ decided, for which processes and groups, or are refused in one line that says
//! where. What can be read is replayed: each question has an answer, and what is answered can be written.
//!
//! An input has four parts, each behind a line `---`: decisions, processes, groups, and what a trace would tell. Lines
//! of the last part are `TIME ACTION PID SECTOR NR_SECTORS KIND`, as in `100 I 603 0 8 R`; others are left out there.
#![no_main]

#[macro_use]
mod reach;

use blkmq_workbench::blktrace::{Action, Category, Event};
use blkmq_workbench::order::{self, Decision, Decisions, Groups, Insertions, Line, Processes, Replayed};
use blkmq_workbench::{Settings, TextError};
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
    let decisions = Decisions::new("decisions.txt".to_owned(), part().as_bytes()).collect::<Result<Vec<Line>, _>>();
    let decisions = read(decisions, "decisions.txt", reached);
    let processes = read(Processes::parse("processes.txt", part()), "processes.txt", reached);
    let groups = read(Groups::parse("groups.txt", part()), "groups.txt", reached);
    let (Some(decisions), Some(processes), Some(groups)) = (decisions, processes, groups) else { return };

    let lines = (0..).zip(part().lines());
    let mut events: Vec<_> = lines.filter_map(|(sequence, line)| event(sequence, line)).collect();
    events.sort_by_key(|event| (event.time, event.sequence));
    let asks = decisions.iter().filter(|line| line.what == Decision::Ask).count();
    for settings in ["scheduler [bfq]\nlow_latency 1\n", "scheduler [bfq]\nlow_latency 0\nrotational 1\n"] {
        let settings = Settings::parse("queue.txt", settings).expect("these settings are right");
        let events = || events.iter().cloned().map(Ok);
        let insertions = Insertions::count(events()).expect("none is an error");
        let steps = order::steps(events(), decisions.iter().copied().map(Ok));
        let replayed = order::replay_bfq(steps, &insertions, &settings, &processes, &groups);
        match replayed.and_then(Iterator::collect::<Result<Vec<Replayed>, _>>) {
            Ok(replayed) => {
                let mut written = Vec::new();
                for Replayed { answer, expired, .. } in &replayed {
                    answer.iter().for_each(|answer| answer.write(&mut written).expect("memory takes it"));
                    expired.iter().for_each(|expired| expired.write(&mut written).expect("memory takes it"));
                }
                let lines = written.iter().filter(|byte| **byte == b'\n').count();
                let expired = replayed.iter().map(|replayed| replayed.expired.len()).sum::<usize>();
                let answers = || replayed.iter().filter_map(|replayed| replayed.answer);
                assert_eq!((answers().count(), lines), (asks, asks + expired));
                reached.add("requests chosen", answers().filter(|answer| answer.rq.is_some()).count());
                reached.add("expired", expired);
                let is_followed = replayed.iter().all(|replayed| replayed.is_followed);
                reached.add("followed", usize::from(asks > 0 && is_followed));
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

target!("decisions", run, LEAST, &str);
