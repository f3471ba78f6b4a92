//! Q9: how long an application takes to start under load.
//!
//! The reads of a starting application come in the way in which the traces of the S suite
//! (github.com/Algodev-github/S, `comm_startup_lat/*.trace`) have them, drawn by a generator of our own:
//! - Three quarters are in groups of 32 reads of 4 KiB that touch each other, of which only the last one is waited for:
//!   what a file system reads of a folder.
//! - The others are waited for one by one. Half of them are of 4 KiB, the others of 8 to 128 KiB. A third of them begin
//!   within 1 MiB of the one before, the others elsewhere.
//! - Between two of them the application computes, for a fraction of a millisecond or some milliseconds.
//! - The three applications do 718, 1268 and 2781 reads.

use std::ops::Range;
use std::time::Duration;

use blkmq::Op;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::error::JudgeError;
use super::load::{End, Pace, Plan, SMALL, Step};
use super::measuring::{Measuring, Test, ms};
use super::promises::Promises;
use super::row::{Figure, Target, aimed};
use crate::job::nanoseconds;

pub(super) const TEST: Test = Test {
    id: "Q9",
    title: "an application starts beside readers and writers; a start is waited for 600 s at most",
    nr_runs: (APPLICATIONS.len() * LOADS.len()) as u32,
    needs_none: true,
    measure,
    judge,
};

const APPLICATIONS: [(&str, usize); 3] = [("small", 718), ("medium", 1268), ("large", 2781)];

/// What runs beside it: readers and writers.
const LOADS: [(&str, u64, u64); 4] =
    [("idle", 0, 0), ("10 readers", 10, 0), (STOPPED, 0, 5), ("5 readers, 5 writers", 5, 5)];

/// The load whose writers stop when the application starts. A device that has taken their data into a cache of its own
/// still writes that, whatever the scheduler does.
const STOPPED: &str = "5 writers that stop";

/// Times the start without load.
const MOST_RATIO: f64 = 1.5;

/// How long the load runs before the application starts.
const BEFORE: Duration = Duration::from_millis(500);
/// A start that takes longer is not waited for.
const LONGEST: Duration = Duration::from_secs(600);

/// Bytes of an operation of a background client.
const STREAM: u32 = 131_072;

/// Reads of a group, the one that is waited for included.
const GROUP: usize = 32;
/// One of so many steps is a group, so that three quarters of the reads are in groups.
const STEPS_PER_GROUP: u32 = 12;

/// Sectors of the reads that are waited for, one as likely as the other.
const LENGTHS: [u32; 16] = [8, 8, 8, 8, 8, 8, 8, 8, 16, 16, 24, 32, 32, 88, 136, 256];
/// Microseconds for which the application computes, one as likely as the other.
const THINK_US: [u64; 10] = [30, 100, 200, 300, 400, 500, 1000, 2000, 4000, 12_000];

/// The reads of a starting application in `area`.
pub(super) fn script(nr_reads: usize, area: &Range<u64>) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(nr_reads as u64);
    let small = SMALL / 512;
    let longest = u64::from(LENGTHS[LENGTHS.len() - 1]) + GROUP as u64 * u64::from(small);
    let (mut steps, mut left, mut at) = (Vec::new(), nr_reads, area.start);
    while left > 0 {
        let near = rng.random_range(0..3) == 0;
        let (low, high) = if near { (at, (at + 2048).min(area.end)) } else { (area.start, area.end) };
        let high = high.min(area.end - longest).max(low + 1);
        let first = rng.random_range(low..high).next_multiple_of(u64::from(small)).min(area.end - longest);
        let think_ns = 1000 * THINK_US[rng.random_range(0..THINK_US.len())];
        let step = if left >= GROUP && rng.random_range(0..STEPS_PER_GROUP) == 0 {
            let place = |n: usize| (first + n as u64 * u64::from(small), small);
            Step { think_ns, ahead: (0..GROUP - 1).map(place).collect(), read: place(GROUP - 1) }
        } else {
            Step { think_ns, ahead: Vec::new(), read: (first, LENGTHS[rng.random_range(0..LENGTHS.len())]) }
        };
        left -= step.ahead.len() + 1;
        at = step.read.0;
        steps.push(step);
    }
    steps
}

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    for (application, nr_reads) in APPLICATIONS {
        let mut idle_ns = 1;
        for (name, readers, writers) in LOADS {
            let nr_reads = nr_reads / on.shorter as usize;
            let started_ns = start(on, nr_reads, readers, writers, name == STOPPED)?;
            if readers + writers == 0 {
                idle_ns = started_ns.max(1);
                let meaning = "How long the application takes to start on an idle device.";
                figures.push(Figure::new(format!("{application}: {name}"), ms(started_ns), "ms", meaning));
                continue;
            }
            let ratio = started_ns as f64 / idle_ns as f64;
            let meaning = "How many times longer the application takes to start than on an idle device.";
            figures.push(Figure::new(format!("{application}: {name}"), ratio, "times", meaning));
        }
    }
    Ok(figures)
}

/// Nanoseconds that an application takes to start beside so many clients, which may stop when it starts.
fn start(
    on: &mut Measuring<'_>,
    nr_reads: usize,
    readers: u64,
    writers: u64,
    is_stopped: bool,
) -> Result<u64, JudgeError> {
    let own = on.site.part(0, 16);
    let steps = script(nr_reads, &own);
    let application = Plan {
        pace: Pace::Script(steps),
        begin_ns: nanoseconds(BEFORE),
        ..Plan::new("application", Op::Read, SMALL, 256, own)
    };
    let stream = |n: u64, op, depth| {
        let area = on.site.part(n + 1, 16);
        let plan = Plan::new(format!("stream {n}"), op, STREAM, depth, area.clone()).sequential(area);
        Plan { end_ns: if is_stopped { nanoseconds(BEFORE) } else { plan.end_ns }, ..plan }
    };
    let readers_and_writers =
        (0..readers + writers).map(|n| if n < readers { stream(n, Op::Read, 4) } else { stream(n, Op::Write, 32) });
    let clients = std::iter::once(application).chain(readers_and_writers).collect();
    let end = End::at(0, nanoseconds(LONGEST));
    let outcome = on.run(clients, end)?;
    Ok(outcome.clients[0].script_ns.unwrap_or(outcome.counted_ns))
}

/// The target allows for what the device does by itself: the shortest start behind writers that stop.
fn judge(own: Vec<Figure>, none: &[Figure], promises: &Promises) -> Vec<Figure> {
    let floor = |application: &str| {
        let case = format!("{application}: {STOPPED}");
        let starts = own.iter().chain(none).filter(|figure| figure.case == case);
        starts.map(|figure| figure.value).reduce(f64::min).map_or(1.0, |least| least.max(1.0))
    };
    let floors: Vec<(&str, f64)> =
        APPLICATIONS.iter().map(|(application, _)| (*application, floor(application))).collect();
    aimed(own, |figure| {
        let is_judged = figure.unit == "times" && !figure.case.ends_with(STOPPED);
        let of = floors.iter().find(|(name, _)| figure.case.starts_with(name) && figure.case.ends_with("writers"));
        let most = MOST_RATIO * of.map_or(1.0, |(_, floor)| *floor);
        (is_judged && promises.quick_start).then_some(Target::AtMost(most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a script has another number of reads, leaves its area, or has other parts than the traces.
    #[test]
    fn a_script_is_like_the_traces() {
        let area = 4096..(1 << 21);
        for (name, nr_reads) in APPLICATIONS {
            let steps = script(nr_reads, &area);
            let all = |step: &Step| step.ahead.iter().copied().chain([step.read]).collect::<Vec<_>>();
            let reads: Vec<(u64, u32)> = steps.iter().flat_map(all).collect();
            assert_eq!(reads.len(), nr_reads, "{name}");
            assert!(reads.iter().all(|(at, len)| *at >= area.start && at + u64::from(*len) <= area.end && at % 8 == 0));
            let grouped: usize = steps.iter().filter(|step| !step.ahead.is_empty()).map(|_| GROUP).sum();
            let share = grouped as f64 / nr_reads as f64;
            assert!((0.6..0.9).contains(&share), "{name}: {share} of the reads are in groups");
            let think = steps.iter().map(|step| step.think_ns).sum::<u64>() / steps.len() as u64;
            assert!((1_000_000..4_000_000).contains(&think), "{name}: {think} ns between two steps");
        }
    }
}
