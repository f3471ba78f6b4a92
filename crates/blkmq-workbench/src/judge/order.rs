//! Q13: how far the order of dispatch is from the ideal order.

use std::sync::Arc;

use blkmq::Op;

use super::error::JudgeError;
use super::journal::{Event, Journal, Recorder, disorder};
use super::load::{End, Load, Plan, SMALL};
use super::measuring::{Measuring, Test};
use super::promises::{Order, Promises};
use super::row::{Figure, Target, aimed};
use super::site::run_on;

pub(super) const TEST: Test = Test {
    id: "Q13",
    title: "the order in which a device gets the requests of four readers and four writers",
    nr_runs: 0,
    needs_none: false,
    measure,
    judge,
};

const OPERATIONS: u64 = 20_000;
/// Requests that wait in front of the device, of each direction.
const WAITING: u32 = 64;

/// Runs `clients` on a device that notes what it gets, which takes as many requests at once as the judged one, on
/// virtual time.
pub(super) fn record(on: &mut Measuring<'_>, clients: Vec<Plan>) -> Result<Vec<Event>, JudgeError> {
    let limits = on.site.driver()?.limits();
    let journal = Arc::new(Journal::default());
    let depth = u16::try_from(on.site.depth()).unwrap_or(u16::MAX);
    let recorder = Arc::new(Recorder::new(limits, depth, Arc::clone(&journal)));
    let end = End { operations: OPERATIONS / on.shorter, ..End::at(0, u64::MAX) };
    let load = Load { journal: Some(Arc::clone(&journal)), ..Load::new(clients, end) };
    run_on(vec![recorder], true, on.contestant, &load, on.pool, on.stop)?;
    Ok(journal.take())
}

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let depth = (on.site.depth() / 2 + WAITING).div_ceil(4);
    let client =
        |n: u32, op| Plan { merges: false, ..Plan::new(format!("client {n}"), op, SMALL, depth, on.site.area()) };
    let clients = (0..8).map(|n| client(n, if n % 2 == 0 { Op::Read } else { Op::Write })).collect();
    let events = record(on, clients)?;
    let mut figures = Vec::new();
    for (order, name) in ORDERS {
        let found = disorder(&events, order);
        let of = |what, value, unit, meaning| Figure::new(format!("{name}: {what}"), value, unit, meaning);
        figures.push(of(MEAN, found.mean_rank, "requests", "How many requests should have gone before one that went."));
        figures.push(of(
            "largest rank error",
            found.largest_rank as f64,
            "requests",
            "The same for the worst of them.",
        ));
        figures.push(of(
            "inverted",
            100.0 * found.inverted,
            "%",
            "Share of the requests before which another one should have gone.",
        ));
    }
    Ok(figures)
}

const MEAN: &str = "mean rank error";
const ORDERS: [(Order, &str); 3] =
    [(Order::Arrival, "by arrival"), (Order::Submitter, "by arrival of each client"), (Order::Sector, "by sector")];

fn judge(own: Vec<Figure>, _: &[Figure], promises: &Promises) -> Vec<Figure> {
    let Some((order, batch)) = promises.order else { return own };
    let (_, name) = ORDERS.iter().find(|(other, _)| *other == order).expect("each order has a name");
    let case = format!("{name}: {MEAN}");
    aimed(own, |figure| (figure.case == case).then_some(Target::AtMost(batch as f64)))
}
