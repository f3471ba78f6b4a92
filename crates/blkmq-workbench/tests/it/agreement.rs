//! How often mq-deadline chooses as Linux's mq-deadline did, on recordings of Linux.

use blkmq_workbench::blktrace::{Action, Event};
use blkmq_workbench::{Classes, blktrace};

use crate::whole::Recording;

/// The share of choices, in percent, that must agree on each recording. `overlap` goes red if sector order goes on from
/// the end of the last request: its writes overlap, and Linux goes on from the beginning.
const MARKS: [(&str, f64); 6] =
    [("mixed", 99.9), ("expiry", 99.9), ("overlap", 99.9), ("depth4", 99.9), ("merge", 99.9), ("prio", 99.5)];

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
