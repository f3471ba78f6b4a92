//! What the readers of recordings of BFQ say about bad input, and what a replay makes of decisions that fit no trace.
//!
//! The random tests print their seed and take another from `BLKMQ_SEED`, their length from `BLKMQ_CASES`.

use blkmq_workbench::blktrace::{Action, Category, Event};
use blkmq_workbench::order::{self, Decision, Decisions, Groups, Insertions, Line, Processes, Queue};
use blkmq_workbench::{Settings, TextError};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::input::runner;

const PROCESSES: &str = "1 a / 2 4\n2 b g 2 0\n3 c g/h 3 7\n4 d - 1 -\n";
const GROUPS: &str = "g default 10\ng/h 1000\n";

/// An event about a read of 4 KiB.
fn event(action: Action, pid: u32, time: u64, sector: u64) -> Event {
    let (sequence, bytes, device, cpu, error, has_group) = (0, 4096, 1, 0, 0, false);
    let (category, payload) = (Category::READ, Box::default());
    Event { sequence, time, sector, bytes, action, category, pid, device, cpu, error, has_group, payload }
}

fn parsed(text: &str) -> Result<Vec<Line>, TextError> {
    Decisions::new("file.txt".to_owned(), text.as_bytes()).collect()
}

/// Red if a reader panics, or if an error has several lines or does not name the file and the line.
#[test]
fn any_words_are_read_or_refused_with_their_place() {
    let words = "ask serve none slot expire finish 603S 603A SHARED S TOO_IDLE PREEMPTED 1 0 - / a/b // 1000 1001 \
                 18446744073709551616 # \u{e9} default 4294967296S";
    let word = prop::sample::select(words.split(' ').collect::<Vec<&'static str>>());
    let line = prop::collection::vec(word, 0..7).prop_map(|words| words.join(" "));
    let text = prop::collection::vec(line, 0..6).prop_map(|lines: Vec<String>| lines.join("\n"));
    let tested = runner(256, Config::default()).run(&text, |text| {
        let results = [
            parsed(&text).map(|_| ()),
            Processes::parse("file.txt", &text).map(|_| ()),
            Groups::parse("file.txt", &text).map(|_| ()),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            let error = error.to_string();
            prop_assert!(error.starts_with("file.txt: line ") && error.lines().count() == 1, "{}", error);
        }
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Event(Action, u32, u64, u32, bool),
    Line(Decision),
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        4 => Just(Action::Insert), 1 => Just(Action::BackMerge), 1 => Just(Action::FrontMerge), 3 => Just(Action::Issue),
        3 => Just(Action::Complete), 1 => Just(Action::Requeue),
    ];
    let sector = prop_oneof![8 => (0..40_u64).prop_map(|at| at * 8), 1 => any::<u64>()];
    let bytes = prop_oneof![8 => Just(4096_u32), 1 => any::<u32>()];
    let event = (action, 1..6_u32, sector, bytes, any::<bool>())
        .prop_map(|(action, pid, sector, bytes, is_write)| Step::Event(action, pid, sector, bytes, is_write));
    let queue = prop_oneof![6 => (1..6_u32).prop_map(Queue::Sync), 1 => Just(Queue::Async), 1 => Just(Queue::Shared)];
    let reason = prop::sample::select(blkmq_sched::Reason::ALL.to_vec());
    let line = prop_oneof![
        4 => Just(Decision::Ask),
        2 => queue.clone().prop_map(Decision::Slot),
        4 => (queue.clone(), (0..40_u64).prop_map(|at| at * 8)).prop_map(|(q, sector)| Decision::Serve(q, sector)),
        1 => Just(Decision::Nothing),
        1 => (queue, reason).prop_map(|(q, reason)| Decision::Expire(q, reason)),
    ];
    prop_oneof![event, line.prop_map(Step::Line)]
}

/// Red if a replay panics where Linux cannot have done what is written, or if a question has no answer.
#[test]
fn decisions_that_fit_no_trace_are_not_followed() {
    let steps = prop::collection::vec((step(), 0..5_000_000_u64), 0..120);
    let tested = runner(256, Config::default()).run(&(steps, any::<bool>()), |(steps, rotational)| {
        let (mut events, mut decisions, mut time) = (Vec::new(), Vec::new(), 0);
        for (sequence, (step, wait)) in (0..).zip(steps) {
            time += wait;
            match step {
                Step::Line(what) => decisions.push(Line { time, what }),
                Step::Event(action, pid, sector, bytes, is_write) => events.push(Event {
                    sequence,
                    bytes,
                    category: if is_write { Category::WRITE } else { Category::READ },
                    ..event(action, pid, time, sector)
                }),
            }
        }
        let asks = decisions.iter().filter(|line| line.what == Decision::Ask).count();
        let settings = format!("scheduler [bfq]\nrotational {}\n", u8::from(rotational));
        let settings = Settings::parse("queue.txt", &settings).expect("these settings are right");
        let processes = Processes::parse("processes.txt", PROCESSES).expect("these processes are right");
        let groups = Groups::parse("groups.txt", GROUPS).expect("these groups are right");
        let events = events.into_iter().map(Ok);
        let insertions = Insertions::count(events.clone()).expect("none is an error");
        let steps = order::steps(events, decisions.into_iter().map(Ok));
        let replayed = order::replay_bfq(steps, &insertions, &settings, &processes, &groups).expect("they are right");
        let answers = replayed.map(|replayed| replayed.expect("there is room for five").answer);
        prop_assert_eq!(answers.flatten().count(), asks);
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

/// Red if a reader repeats a word as it stands in the file: it could clear the screen, or turn the line around.
#[test]
fn a_word_that_is_refused_is_shown_without_what_controls_a_terminal() {
    let word = "expi\u{1b}[2J\u{202e}";
    let results = [
        parsed(&format!("1 {word} 1")).map(|_| ()),
        parsed(&format!("1 slot {word}")).map(|_| ()),
        Processes::parse("file.txt", &format!("1 a / {word} 4")).map(|_| ()),
        Groups::parse("file.txt", &format!("a {word}")).map(|_| ()),
    ];
    for error in results.map(|result| result.expect_err("none of them is right").to_string()) {
        assert!(error.contains("'expi\\u{1b}[2J\\u{202e}'") && !error.contains(blkmq::is_hidden), "{error:?}");
    }
}

/// Red if decisions are not put in the order of time, if a line that is too far behind its place is returned out of
/// order, or if a line without an end is read into memory.
#[test]
fn decisions_are_read_ahead_for_a_while_only() {
    let times = |text: &str| parsed(text).map(|lines| lines.iter().map(|line| line.time).collect::<Vec<_>>());
    assert_eq!(times("5 ask\n3 none\n\n# 1 ask\n5 charge 1S\n4 ask\n5 none"), Ok(vec![3, 4, 5, 5]));
    let late = |number: u64| (0..number).map(|at| format!("{} ask\n", 100 + at)).collect::<String>() + "7 ask\n";
    assert_eq!(times(&late(65_535)).map(|times| times[0]), Ok(7));
    let text = times(&late(65_536)).unwrap_err().to_string();
    assert!(text.starts_with("file.txt: line 65537: the decision at 7 ns follows one at 100 ns"), "{text}");
    let text = parsed(&"1".repeat(10_000)).unwrap_err().to_string();
    assert_eq!(text, "file.txt: line 1: the line is longer than 4095 bytes");
    let error = Decisions::new("d".to_owned(), &b"1 ask\n\xff\n"[..]).find_map(Result::err).unwrap().to_string();
    assert!(error.starts_with("d: line 2: the line is not UTF-8"), "{error}");
}

/// Red if requests that no decision serves are not bounded.
#[test]
fn requests_that_are_never_served_are_refused_before_they_fill_memory() {
    let settings = Settings::parse("queue.txt", "scheduler [bfq]\n").expect("these settings are right");
    let steps = order::steps((0..300_000).map(|at| Ok(event(Action::Insert, 1, at, 16 * at))), std::iter::empty());
    let (processes, groups) = (Processes::default(), Groups::default());
    let mut replayed =
        order::replay_bfq(steps, &Insertions::default(), &settings, &processes, &groups).expect("they are right");
    let text = replayed.find_map(Result::err).expect("nothing is served").to_string();
    assert!(text.starts_with("the trace at 262144 ns: more than 262144 insertions"), "{text}");
    assert!(text.contains("wait for a line 'serve'"), "{text}");
}
