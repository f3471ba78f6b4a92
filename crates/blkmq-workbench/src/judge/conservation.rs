//! Q10: whether the device idles while requests wait, and how much of its throughput a scheduler keeps.

use std::time::Duration;

use blkmq::Op;

use super::error::JudgeError;
use super::load::{Plan, SMALL};
use super::measuring::{Measuring, Test, value};
use super::promises::Promises;
use super::row::{Figure, Target, aimed};

pub(super) const TEST: Test = Test {
    id: "Q10",
    title: "four readers and two writers at random places, and one sequential reader, all of 4 KiB",
    nr_runs: 1,
    needs_none: true,
    measure,
    judge,
};

/// Percent of the time.
const MOST_IDLE: f64 = 1.0;

const DONE: &str = "done";

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let area = on.site.area();
    let depth = on.site.depth().min(64);
    let mut clients = vec![Plan::new("stream", Op::Read, SMALL, 1, area.clone()).sequential(on.site.part(0, 2))];
    clients.extend((0..4).map(|n| Plan::new(format!("reader {n}"), Op::Read, SMALL, depth, area.clone())));
    clients.extend((0..2).map(|n| Plan::new(format!("writer {n}"), Op::Write, SMALL, depth, area.clone())));
    let end = on.end(Duration::from_secs(120), 200_000);
    let outcome = on.run(clients, end)?;
    let percent = |ns: u64| 100.0 * ns as f64 / outcome.counted_ns.max(1) as f64;
    Ok(vec![
        Figure::new(
            "idle",
            percent(outcome.idle_ns),
            "%",
            "Share of the time in which the device had nothing to do while requests waited.",
        ),
        Figure::new(
            "idle as asked",
            percent(outcome.asked_ns),
            "%",
            "The same, while the scheduler had named a time until which it holds requests back.",
        ),
        Figure::new(DONE, outcome.iops(), "IOPS", "What all clients together got done."),
    ])
}

fn judge(own: Vec<Figure>, none: &[Figure], promises: &Promises) -> Vec<Figure> {
    let kept = 100.0 * value(&own, DONE) / value(none, DONE);
    let bound = Target::AtMost(MOST_IDLE);
    let mut figures = aimed(own, |figure| match &*figure.case {
        "idle" => Some(bound),
        "idle as asked" => (!promises.idles).then_some(bound),
        _ => None,
    });
    figures.push(Figure::new("kept", kept, "%", "The same as a share of the throughput without a scheduler."));
    figures
}
