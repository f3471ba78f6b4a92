//! What the readers of files say about bad input: one line with the place and the reason, and never a panic.
//!
//! The random tests print their seed and take another from `BLKMQ_SEED`, their length from `BLKMQ_CASES`.

use std::sync::atomic::AtomicBool;

use blkmq::driver::spec;
use blkmq::{Class, Clock, RequestQueue, VirtualClock};
use blkmq_sched::SCHEDULERS;
use blkmq_workbench::blktrace::{self, Action, TraceFault};
use blkmq_workbench::{Classes, Load, Settings, Speed};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};

use crate::whole::{self, Recording};

fn recording() -> Recording {
    Recording::of_mq_deadline("merge")
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("the variable holds a number"))
}

/// A runner of `cases` cases, from the seed 0x5eed; `BLKMQ_CASES` and `BLKMQ_SEED` replace them.
pub(crate) fn runner(cases: u32, config: Config) -> TestRunner {
    let (seed, cases) = (number("BLKMQ_SEED", 0x5eed), number("BLKMQ_CASES", cases.into()) as u32);
    println!("BLKMQ_SEED={seed} BLKMQ_CASES={cases}");
    TestRunner::new(Config {
        cases,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..config
    })
}

fn virtual_queue() -> RequestQueue {
    let driver =
        spec::open("null,irqmode=2,completion_nsec=1ms,hw_queue_depth=2").expect("the device is well described");
    RequestQueue::builder(driver).clock(Clock::Virtual(VirtualClock::new())).build().expect("it makes sense")
}

/// The message of the reader of traces, which must be a single line.
fn complaint(trace: &[u8]) -> String {
    let text = blktrace::read(trace).expect_err("this trace is broken").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Red if, for a trace that is cut at any byte, the records before the cut are not read, or if the error does not say
/// where the cut record starts.
#[test]
fn a_trace_cut_at_any_byte_is_told_by_the_record_it_was_cut_in() {
    let trace = recording().trace;
    let mut starts = vec![0];
    for event in blktrace::read(&trace).unwrap().iter().take(6) {
        starts.push(starts.last().unwrap() + 48 + event.payload.len());
    }
    for cut in 0..*starts.last().unwrap() {
        let start = *starts.iter().rfind(|start| **start <= cut).unwrap();
        let whole = starts.iter().position(|other| *other == start).unwrap();
        if start == cut {
            assert_eq!(blktrace::read(&trace[..cut]).unwrap().len(), whole);
            continue;
        }
        assert_eq!(blktrace::Records::new(&trace[..cut]).filter(Result::is_ok).count(), whole, "cut at {cut}");
        let text = complaint(&trace[..cut]);
        assert!(text.starts_with(&format!("byte {start}: the trace is truncated")), "cut at {cut}: {text}");
    }
}

#[test]
fn swapped_bytes_wrong_magic_and_unknown_versions_are_called_by_their_names() {
    let trace = recording().trace;
    let first = 48 + blktrace::read(&trace).unwrap()[0].payload.len();
    for at in [0, first] {
        let spoilt = |word: [u8; 4]| {
            let mut trace = trace.clone();
            trace[at..at + 4].copy_from_slice(&word);
            trace
        };
        let place = format!("byte {at}: ");
        let text = complaint(&spoilt(0x6561_7407_u32.to_be_bytes()));
        assert!(text.starts_with(&place) && text.contains("bytes are swapped"), "{text}");
        let text = complaint(&spoilt(0x6561_7406_u32.to_le_bytes()));
        assert!(text.starts_with(&place) && text.contains("version 6 is unknown"), "{text}");
        let text = complaint(&spoilt(*b"\x7fELF"));
        assert!(text.starts_with(&place) && text.contains("not a blktrace record"), "{text}");
    }
    assert!(complaint(b"kernel 6.12\n").contains("not a blktrace record"));
}

#[test]
fn a_payload_beyond_the_end_is_told_with_both_lengths() {
    let mut trace = recording().trace[..48].to_vec();
    trace[46..48].copy_from_slice(&300_u16.to_le_bytes());
    trace.extend([0; 299]);
    let error = blktrace::read(&trace).unwrap_err();
    assert_eq!(error.fault, TraceFault::Payload { stated: 300, left: 299 });
    trace.push(0);
    assert_eq!(blktrace::read(&trace).unwrap().len(), 1);
}

#[test]
fn notices_are_no_events_of_io() {
    let trace = recording().trace;
    let events = blktrace::read(&trace).unwrap();
    let notices: Vec<_> = events.iter().filter(|event| event.action == Action::Notify).collect();
    assert_eq!(notices.len(), 9);
    assert!(notices.iter().any(|event| event.payload.starts_with(b"fio\0")));
}

#[test]
fn settings_that_cannot_be_read_name_the_line_and_the_word() {
    let scheduler = "scheduler none [mq-deadline]\n";
    let cases = [
        ("scheduler none mq-deadline\n".to_owned(), "q: line 1: 'none mq-deadline' does not say which"),
        (format!("{scheduler}fifo_batch\n"), "q: line 2: 'fifo_batch' is not of the form NAME VALUE"),
        (format!("{scheduler}\nfifo_batch many\n"), "q: line 3: fifo_batch: 'many' is not a whole number"),
        (format!("{scheduler}fifo_batch -1\n"), "q: line 2: fifo_batch: -1 is not within 0..2147483647"),
        (format!("{scheduler}fifo_bach 1\n"), "q: line 2: 'fifo_bach' is no setting of mq-deadline; accepted: "),
        (format!("{scheduler}nr_requests 0\n"), "q: line 2: nr_requests: '0' is not a number from 1 to 65536"),
        ("nr_requests 64\n".to_owned(), "q: there is no line 'scheduler'"),
        ("scheduler [none]\n".to_owned(), "q: scheduler: 'none' makes no choices"),
    ];
    for (text, expected) in cases {
        let result =
            Settings::parse("q", &text).and_then(|settings| whole::replay(&[], &settings, &Classes::default()));
        let error = result.expect_err("these settings are wrong").to_string();
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{text}: {error}");
    }
}

#[test]
fn changed_settings_are_checked_as_those_of_the_file() {
    for (change, expected) in [
        ("fifo_batch", "--set fifo_batch: 'fifo_batch' is not of the form NAME=VALUE"),
        ("=1", "--set =1: '=1' is not of the form"),
        (
            "iosched/fifo_bach=1",
            "--set iosched/fifo_bach=1: 'fifo_bach' is no knob of mq-deadline; accepted: read_expire",
        ),
        ("iosched/nomerges=1", "--set iosched/nomerges=1: 'nomerges' is no knob"),
        ("iosched/front_merges=2", "--set iosched/front_merges=2: front_merges: 2 is not within 0..1"),
    ] {
        let mut settings = recording().settings(&[]);
        let result = settings.set(change).and_then(|()| whole::replay(&[], &settings, &Classes::default()));
        let error = result.expect_err("this change is wrong").to_string();
        assert!(error.starts_with(expected), "{change}: {error}");
    }
}

#[test]
fn a_class_reaches_to_before_the_end_of_its_range() {
    let classes = Classes::parse("c", "8 16 rt # a comment\n0 32 idle\n").expect("the classes are well formed");
    let of = [0, 7, 8, 15, 16, 31, 32].map(|sector| classes.of(sector));
    let (rt, be, idle) = (Class::RealTime, Class::BestEffort, Class::Idle);
    assert_eq!(of, [idle, idle, rt, rt, idle, idle, be]);
}

#[test]
fn classes_that_cannot_be_read_name_the_line_and_the_word() {
    for (text, expected) in [
        ("0 8\n", "c: line 1: '0 8' is not of the form FIRST END CLASS"),
        ("# all\n0 x be\n", "c: line 2: 'x' is not a sector number"),
        ("8 8 be\n", "c: line 1: the range 8 8 is empty"),
        ("0 8 best\n", "c: line 1: 'best' is not a class; accepted: rt, be, idle"),
    ] {
        assert!(Classes::parse("c", text).unwrap_err().to_string().starts_with(expected), "{text}");
    }
}

/// A few words of a recording are overwritten by others. Red if the reader panics, if a replay of what the reader takes
/// does not make one choice for each issue, or if an operation that is played is neither done nor refused.
#[test]
fn spoilt_traces_are_refused_or_replayed() {
    let trace = recording().trace[..40_000].to_vec();
    let (queue, limit) = (recording().queue, trace.len());
    let word = prop_oneof![any::<u32>(), 0..64_u32, Just(u32::MAX)];
    let spoil = proptest::collection::vec((0..limit / 4, word), 0..24);
    let cut = 0..limit;
    runner(256, Config::default())
        .run(&(spoil, cut), |(spoil, cut)| {
            let mut trace = trace.clone();
            for (at, word) in spoil {
                trace[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
            }
            // The readable part of a broken trace is replayed too, so that the replay meets more than whole traces.
            let mut events: Vec<_> = blktrace::Records::new(&trace[..cut]).map_while(Result::ok).collect();
            events.sort_by_key(|event| (event.time, event.sequence));
            let issues = events.iter().filter(|event| event.action == Action::Issue).count();
            for scheduler in SCHEDULERS.iter().filter(|known| blkmq_sched::replay(known.name).is_some()) {
                let mut settings = Settings::parse("queue.txt", &queue).unwrap();
                settings.use_scheduler(scheduler.name);
                let agreement = whole::replay(&events, &settings, &Classes::default()).unwrap();
                prop_assert_eq!(agreement.choices.len(), issues);
            }
            let load = Load::read(events.into_iter().map(Ok), &Classes::default()).unwrap();
            let outcome = blkmq_workbench::play(
                &load,
                &virtual_queue(),
                Speed::Scaled(1.0),
                &AtomicBool::new(false),
                &mut |_| (),
            )
            .unwrap();
            let refused: u64 = outcome.refused.iter().map(|(_, n)| n).sum();
            prop_assert_eq!(outcome.completed + refused, load.nr_operations);
            Ok(())
        })
        .unwrap();
}

/// Red if any text, or the text of a recording with a piece replaced, is neither refused nor applied.
#[test]
fn any_settings_are_refused_or_applied() {
    let queue = recording().queue;
    let limit = queue.len();
    let text = prop_oneof![any::<String>(), "[a-z_/ =\\[\\]\n0-9-]{0,80}"];
    runner(256, Config::default())
        .run(&(text, 0..limit, 0..limit), |(text, from, to)| {
            let spoilt = format!("{}{text}{}", &queue[..from.min(to)], &queue[from.max(to)..]);
            for text in [&text, &spoilt] {
                let _ = Classes::parse("c", text);
                let Ok(mut settings) = Settings::parse("q", text) else { continue };
                let _ = settings.set(text);
                if let Err(error) = whole::replay(&[], &settings, &Classes::default()) {
                    prop_assert!(!error.what.is_empty());
                }
            }
            Ok(())
        })
        .unwrap();
}
