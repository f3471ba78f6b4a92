//! Q11: how soon a new client of a high class gets the device.

use std::time::Duration;

use blkmq::{Class, Op};

use super::error::JudgeError;
use super::load::{End, LARGE, Plan, SMALL};
use super::measuring::{Measuring, Test, ms};
use super::promises::Promises;
use super::row::{Figure, Target, aimed};
use crate::job::nanoseconds;

pub(super) const TEST: Test = Test {
    id: "Q11",
    title: "a reader of the real-time class begins beside eight readers of 64 KiB",
    nr_runs: 1,
    needs_none: false,
    measure,
    judge,
};

/// Milliseconds.
const MOST_MS: f64 = 100.0;
/// The bandwidth that has to be reached, as a part of the steady one.
const REACHED: f64 = 0.9;
/// Operations of the window over which the bandwidth is measured.
const OPERATIONS: usize = 32;
/// Operations that the reader does in its time, about.
const LENGTH: u64 = 4000;

const REACHES: &str = "90 % of its bandwidth";

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let area = on.site.area();
    let depth = on.site.depth().clamp(16, 128);
    let mut clients: Vec<Plan> =
        (0..8).map(|n| Plan::new(format!("reader {n}"), Op::Read, LARGE, depth, area.clone())).collect();
    // Long enough for the queue to be full, and for the reader to get steady even if it gets a tenth of the device.
    let second = |operations: u64| operations as f64 / on.speed.iops;
    let active = Duration::from_secs_f64(match on.slice {
        Some(slice) => slice.as_secs_f64() * 0.75,
        None => second(10 * LENGTH / on.shorter).clamp(1.0, 300.0),
    });
    let begin_ns = nanoseconds(active / 3);
    let burst =
        Plan { class: Class::RealTime, begin_ns, is_logged: true, ..Plan::new("burst", Op::Read, SMALL, 16, area) };
    clients.push(burst);
    let time_ns = begin_ns + nanoseconds(active);
    let outcome = on.run(clients, End::at(begin_ns, time_ns))?;
    let times = outcome.clients[8].log.iter().map(|(time, _)| *time).filter(|time| *time <= time_ns);
    let times: Vec<u64> = times.collect();
    let reached_ns = reached(&times, begin_ns, time_ns).unwrap_or(time_ns) - begin_ns;
    let share = 100.0 * outcome.rate(8..9) / outcome.rate(0..9).max(1.0);
    Ok(vec![
        Figure::new(
            REACHES,
            ms(reached_ns),
            "ms",
            "From its first read until the client has 90 % of its steady bandwidth.",
        ),
        Figure::new("its part", share, "%", "What the client then has of all bytes that the device does."),
    ])
}

/// When a client, active from `begin` to `end`, had reached 90 % of the bandwidth of its second half: the beginning of
/// the first window of some operations that is so quick. `None` if it never did.
fn reached(times: &[u64], begin: u64, end: u64) -> Option<u64> {
    let middle = begin + (end - begin) / 2;
    let late = times.iter().filter(|time| **time > middle).count();
    let window = OPERATIONS.min(late / 4);
    if window == 0 {
        return None;
    }
    let steady = late as f64 / (end - middle) as f64;
    let starts = std::iter::once(begin).chain(times.iter().copied());
    let ends = times.iter().skip(window - 1);
    let quick = |start: u64, end: u64| window as f64 >= REACHED * steady * (end - start) as f64;
    starts.zip(ends).find(|(start, end)| quick(*start, **end)).map(|(start, _)| start)
}

fn judge(own: Vec<Figure>, _: &[Figure], promises: &Promises) -> Vec<Figure> {
    aimed(own, |figure| (promises.classes && figure.case == REACHES).then_some(Target::AtMost(MOST_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the time is not that at which the bandwidth becomes steady.
    #[test]
    fn the_bandwidth_is_reached_where_it_becomes_steady() {
        let at_once: Vec<u64> = (1..=1000).map(|n| 1000 + n * 10).collect();
        assert_eq!(reached(&at_once, 1000, 11_000), Some(1000));
        // One operation in 100 ns until 3000, then one in 10 ns.
        let slow = (1..=20).map(|n| 1000 + n * 100);
        let late: Vec<u64> = slow.chain((1..=800).map(|n| 3000 + n * 10)).collect();
        let found = reached(&late, 1000, 11_000).expect("it does");
        assert!((2900..=3000).contains(&found), "{found}");
        assert_eq!(reached(&[], 0, 1000), None);
    }
}
