//! Q5: what a scheduler adds to the latency of a reader that is alone.

use std::time::Duration;

use blkmq::Op;

use super::error::JudgeError;
use super::load::{Plan, SMALL};
use super::measuring::{Measuring, Test, value};
use super::promises::Promises;
use super::row::{Figure, Target};

pub(super) const TEST: Test = Test {
    id: "Q5",
    title: "a reader alone, one read of 4 KiB at a time",
    nr_runs: 1,
    needs_none: true,
    measure,
    judge,
};

/// Microseconds that a scheduler may add.
const MOST_ADDED: f64 = 2.0;

const CASES: [(&str, f64, &str); 2] =
    [("p99", 99.0, "99 of 100 reads took no longer."), ("p99.9", 99.9, "999 of 1000 reads took no longer.")];

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let reader = Plan::new("reader", Op::Read, SMALL, 1, on.site.area());
    let end = on.end(Duration::from_secs(120), 20_000);
    let outcome = on.run(vec![reader], end)?;
    let at = |percent| outcome.clients[0].latency.percentile(percent) as f64 / 1e3;
    Ok(CASES.map(|(case, percent, meaning)| Figure::new(case, at(percent), "us", meaning)).to_vec())
}

fn judge(own: Vec<Figure>, none: &[Figure], _: &Promises) -> Vec<Figure> {
    let added = own.iter().map(|figure| {
        let added = figure.value - value(none, &figure.case);
        let meaning = "What the scheduler adds to the time without a scheduler.";
        Figure::new(format!("{} added", figure.case), added, "us", meaning).aims(true, Target::AtMost(MOST_ADDED))
    });
    let added: Vec<Figure> = added.collect();
    own.into_iter().chain(added).collect()
}
