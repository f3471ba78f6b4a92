//! Q8: how long requests wait at most: those that sector order never reaches, writes beside reads, and a lower class
//! beside a higher one.

use std::time::Duration;

use blkmq::{Class, Op};

use super::error::JudgeError;
use super::journal::longest_passing;
use super::load::{Plan, SMALL};
use super::measuring::{Measuring, Test, ms};
use super::order::record;
use super::promises::{Deadlines, Promises};
use super::row::{Figure, Target};
use super::world::Outcome;

pub(super) const TEST: Test = Test {
    id: "Q8",
    title: "how long requests wait for the device at most, beside a flood of reads of 128 KiB",
    nr_runs: CASES.len() as u32,
    needs_none: false,
    measure,
    judge,
};

/// Bytes of the flood's operations: so many that some seconds of a quick device are not too many operations.
const FLOOD: u32 = 131_072;
/// Requests of the flood that wait in front of the device.
const WAITING: u32 = 64;

/// A client that waits, and its bound.
struct Case {
    name: &'static str,
    /// How long a run has to be for the bound to be reached.
    seconds: u64,
    op: Op,
    class: Class,
    depth: u32,
    /// The bound without batch and drain, in nanoseconds.
    bound: fn(&Deadlines) -> u64,
    longest: &'static str,
    missed: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        name: "a read behind the sweep",
        seconds: 6,
        op: Op::Read,
        class: Class::BestEffort,
        depth: 1,
        bound: |deadlines| deadlines.read_ns,
        longest: "The longest wait of a read that lies behind all those of a sequential flood.",
        missed: "How many of these reads waited longer than the bound.",
    },
    Case {
        name: "a write beside reads",
        seconds: 8,
        op: Op::Write,
        class: Class::BestEffort,
        depth: 4,
        bound: |deadlines| deadlines.write_ns,
        longest: "The longest wait of a write beside the flood.",
        missed: "How many of these writes waited longer than the bound.",
    },
    Case {
        name: "the idle class",
        seconds: 13,
        op: Op::Read,
        class: Class::Idle,
        depth: 1,
        bound: |deadlines| deadlines.aging_ns,
        longest: "The longest wait of a read of the idle class beside the flood.",
        missed: "How many of these reads waited longer than the bound.",
    },
];

/// How the cases of the longest waits end.
pub(super) const LONGEST: &str = "longest wait";
const PASSING: &str = "reads that pass a write";

/// What batch and drain add to a bound, in nanoseconds: the time of one batch at the rate of the run, and the longest
/// time that the device took for a request.
fn allowance(outcome: &Outcome, batch: u64) -> u64 {
    let drain = outcome.clients.iter().map(|client| client.longest_device_ns).max().unwrap_or(0);
    (batch as f64 * 1e9 / outcome.iops().max(1.0)) as u64 + drain
}

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    let promised = on.contestant.promises.deadlines;
    for case in &CASES {
        let end = on.whole(Duration::from_secs(case.seconds));
        let outcome = on.run(clients(on, case), end)?;
        let victim = &outcome.clients[0];
        let longest = Figure::new(format!("{}: {LONGEST}", case.name), ms(victim.longest_wait_ns), "ms", case.longest);
        let bound = promised.map(|promised| (case.bound)(&promised) + allowance(&outcome, promised.batch));
        // A run that is shorter than the bound says nothing about it.
        let bound = bound.filter(|bound| *bound < end.time_ns);
        let figure = longest.aims(bound.is_some(), Target::AtMost(ms(bound.unwrap_or(0))));
        figures.push(figure);
        if let Some(bound) = bound {
            let missed = victim.log.iter().filter(|(_, wait)| *wait > bound).count();
            let figure = Figure::new(format!("{}: missed", case.name), missed as f64, "requests", case.missed);
            figures.push(figure.aims(true, Target::AtMost(0.0)));
        }
    }
    let events = record(on, clients(on, &CASES[1]))?;
    let most = promised.map_or(0, |promised| (promised.starved + 1) * promised.batch);
    let meaning = "How many reads went, at most, one behind the other while a write waited.";
    let figure = Figure::new(PASSING, longest_passing(&events) as f64, "requests", meaning);
    figures.push(figure.aims(promised.is_some(), Target::AtMost(most as f64)));
    Ok(figures)
}

/// A client that waits, and a flood of reads that sector order, direction or class prefers.
fn clients(on: &Measuring<'_>, case: &Case) -> Vec<Plan> {
    let victim = Plan {
        class: case.class,
        is_logged: true,
        ..Plan::new("victim", case.op, SMALL, case.depth, on.site.part(0, 2))
    };
    let flood = Plan {
        merges: false,
        ..Plan::new("flood", Op::Read, FLOOD, on.site.depth() + WAITING, on.site.area()).sequential(on.site.part(1, 2))
    };
    vec![victim, flood]
}

fn judge(own: Vec<Figure>, _: &[Figure], _: &Promises) -> Vec<Figure> {
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::load::End;

    /// Red if a run is too short to reach the bound of what mq-deadline promises.
    #[test]
    fn each_run_is_longer_than_its_bound() {
        let promised = Promises::MQ_DEADLINE.deadlines.expect("it promises some");
        for case in &CASES {
            let end = End::after(Duration::from_secs(case.seconds), u64::MAX);
            assert!((case.bound)(&promised) + 1_000_000_000 < end.time_ns, "{}", case.name);
        }
    }
}
