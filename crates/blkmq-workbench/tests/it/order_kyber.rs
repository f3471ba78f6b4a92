//! The rules of a replay of kyber, on traces written by hand: when a choice is made, what is measured, and when depths
//! change.

use blkmq_sched::SchedDomain;
use blkmq_workbench::blktrace::{self, Action};
use blkmq_workbench::order::Adjustment;
use blkmq_workbench::{Classes, Settings, TextError};

use crate::whole::{self, Whole};
use crate::written::Trace;

fn try_replay(trace: &Trace, settings: &str) -> Result<Whole, TextError> {
    let events = blktrace::read(&trace.bytes).expect("the trace is well formed");
    let settings = Settings::parse("queue.txt", settings).expect("the settings are well formed");
    whole::replay(&events, &settings, &Classes::default())
}

const SETTINGS: &str = "scheduler none [kyber]\nnr_requests 64\nread_lat_nsec 20000000\n";

fn replay(trace: &Trace) -> Whole {
    try_replay(trace, SETTINGS).expect("the settings are accepted")
}

/// A trace in which the device has this many discards, of the sectors 0, 8, 16 and so on.
fn with_discards(number: u64) -> Trace {
    (0..number).fold(Trace::default(), |trace, at| trace.add(1, "Id", 8 * at, 8).add(2, "Dd", 8 * at, 8))
}

/// Red if tokens are not counted, if a choice in vain does not end the turn, or if nothing is chosen behind the
/// completion that brings a token back. Then the read that comes later would be chosen first, since reads had the turn.
#[test]
fn a_completion_that_brings_a_token_is_followed_by_a_choice() {
    let trace = with_discards(64).then("I5000+8 2:D5000+8 Id6000+8 0:Cd0+8 I7000+8 2:Dd6000+8 2:D7000+8");
    assert_eq!(replay(&trace).last_words(2), "6000D 7000R");
    // Without a token nothing is chosen, and what Linux took has one nevertheless.
    let trace = with_discards(64).then("Id6000+8 2:Dd6000+8");
    assert_eq!(replay(&trace).last_words(2), "504D -");
    let trace = trace.then("0:Cd0+8 Id7000+8 2:Dd7000+8");
    assert_eq!(replay(&trace).last_words(1), "-", "64 of 65 are still out");
    let trace = with_discards(63).then("Id6000+8 2:Dd6000+8 0:Cd0+8 Id7000+8 2:Dd7000+8");
    assert_eq!(replay(&trace).last_words(1), "7000D");
}

/// Microseconds of a tick of Linux's timer.
const TICK_US: u64 = 4000;

/// 500 writes that are in the device for a second, and 500 reads. One second after the beginning the first read is
/// allocated. So many microseconds later the first is inserted and issued, and so many the first completes. Each read
/// completes that long after its own allocation. Something happens long after.
fn congested(issue_us: u64, complete_us: u64) -> Trace {
    let reads = || (0..500).map(|at| 100_000 + 8 * at);
    let writes = || (0..500).map(|at| 8 * at);
    let mut trace = Trace::of("@1000");
    for sector in writes() {
        trace = trace.add(1, "Iw", sector, 8).add(2, "Dw", sector, 8);
    }
    trace = trace.then("@1000000");
    for sector in reads() {
        trace = trace.add(1, "G", sector, 8);
    }
    trace = trace.at(1_000_000 + issue_us);
    for sector in reads() {
        trace = trace.add(1, "I", sector, 8).add(2, "D", sector, 8);
    }
    trace = trace.at(1_000_000 + complete_us);
    for sector in reads() {
        trace = trace.add(0, "C", sector, 8);
    }
    for sector in writes() {
        trace = trace.add(0, "Cw", sector, 8);
    }
    trace.then("@2000000 9:Q0+8")
}

/// Red if the timer is set by another completion than the first, or goes off at another tick than the 26th behind the
/// one that has begun.
#[test]
fn depths_change_at_the_tick_after_25_from_the_first_completion() {
    for (complete_us, depth) in [(3000, 64), (7000, 128), (13_000, 192), (15_001, 256), (30_000, 256)] {
        let time = ((1_000_000 + complete_us) / TICK_US + 26) * TICK_US * 1000;
        let expected = Adjustment { time, of: SchedDomain::Read, depth };
        let ours = replay(&congested(1000, complete_us)).adjustments.expect("kyber has depths");
        assert_eq!(ours, if depth < 256 { vec![expected] } else { vec![] });
    }
}

/// Red if a fold comes between two completions of one interrupt, or if a later completion is taken for one of them. The
/// reads are cut if the fold behind the slow writes knows of 500 of them, and the last one completes behind the tick.
#[test]
fn a_fold_waits_for_the_interrupt_that_is_running() {
    let tick_us = 1_108_000;
    let sectors = 0..500;
    let issue = |trace: Trace, insert: &str, issue: &str| {
        sectors.clone().fold(trace, |trace, at| trace.add(1, insert, at, 1).add(2, issue, at, 1))
    };
    let complete = |trace: Trace, what: &str, number: usize| {
        sectors.clone().take(number).fold(trace, |trace, at| trace.add(0, what, at, 1))
    };
    let nr_depths = |pause_us: u64| {
        let writes = issue(Trace::of("@1000"), "Iw", "Dw");
        let written = complete(writes.at(tick_us - 26 * TICK_US + 1), "Cw", 500);
        let reads = issue(written.at(tick_us - 2000), "I", "D");
        let all_but_one = complete(reads.at(tick_us - 499), "C", 499);
        let trace = all_but_one.at(tick_us + pause_us).then("0:C499+1");
        replay(&trace).adjustments.expect("kyber has depths").len()
    };
    assert_eq!([0, 2, 7, 8, 9, 100].map(nr_depths), [1, 1, 1, 0, 0, 0]);
}

/// Red if the total latency runs from the insertion: without the allocations the reads took a quarter of that.
#[test]
fn the_total_latency_runs_from_the_allocation() {
    let trace = congested(10_000, 19_000);
    assert_eq!(replay(&trace).adjustments, Some(vec![]), "more than three quarters of the target");
    let events = blktrace::read(&trace.bytes).unwrap();
    let without: Vec<_> = events.into_iter().filter(|event| event.action != Action::GetRequest).collect();
    let settings = Settings::parse("queue.txt", SETTINGS).unwrap();
    let agreement = whole::replay(&without, &settings, &Classes::default()).unwrap();
    let expected = Some((SchedDomain::Read, 128));
    assert_eq!(agreement.adjustments.unwrap().first().map(|first| (first.of, first.depth)), expected);
}

/// Red if a message about a knob is not heard, is heard at another time, or a bad one is not refused.
#[test]
fn a_message_changes_a_knob() {
    let slow = |trace: Trace| replay(&trace).adjustments.expect("kyber has depths").len();
    let congested = congested(1000, 13_000);
    assert_eq!(slow(congested), 1);
    let mut at_once = Trace::default().message("knob write_lat_nsec=4000000000\n\0");
    at_once.bytes.extend(self::congested(1000, 13_000).bytes);
    assert_eq!(slow(at_once), 0, "a write that takes a second is within its target then");
    let late = self::congested(1000, 13_000).message("knob write_lat_nsec=4000000000");
    assert_eq!(slow(late), 1);
    for (settings, heard) in [("[kyber]", ["many", "-1"]), ("[mq-deadline]", ["", "-1"])] {
        for value in heard {
            let knob = if settings == "[kyber]" { "read_lat_nsec" } else { "read_expire" };
            let trace = Trace::default().message(&format!("knob {knob}={value}"));
            let error = try_replay(&trace, &format!("scheduler none {settings}\n")).unwrap_err();
            let text = format!("the trace at 1000 ns: 'knob {knob}={value}': {knob}: ");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }
    for other in ["knob fifo_batch=x", "knobs read_lat_nsec=x", "knob read_lat_nsec", "read_lat_nsec=x", ""] {
        assert!(try_replay(&Trace::default().message(other), "scheduler [kyber]\n").is_ok(), "{other}");
    }
}
