//! When the operations of a job with a rate are due.

use blkmq::Time;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp1};

use super::plan::mix;
use crate::job::{ByDirection, Direction, Job, RateProcess};

/// When the next operation of each direction is due.
#[derive(Debug)]
pub(super) struct Pace {
    directions: ByDirection<Option<Meter>>,
    rng: SmallRng,
    is_poisson: bool,
    pub(super) ignores_thinktime: bool,
}

/// The rate of one direction, and when its next operation is due.
#[derive(Debug, Clone, Copy)]
struct Meter {
    /// Nanoseconds that a byte takes, and that the shortest operation takes.
    ns_per_byte: f64,
    ns_per_shortest: f64,
    /// When the next operation is due.
    due: f64,
}

impl Pace {
    /// The pace of a job that begins now; `None` if it has no rate.
    pub(super) fn new(job: &Job, seed: u64, now: Time) -> Option<Self> {
        let meter = |direction: Direction| {
            // As in fio, a rate of operations is the rate of bytes with which that many of the shortest ones are done.
            let shortest = *job.bs[direction].bounds().start() as f64;
            let of_iops = || job.rate_iops[direction].map(|iops| iops as f64 * shortest);
            let bytes = job.rate[direction].map(|bytes| bytes as f64).or_else(of_iops)?;
            let ns_per_byte = 1e9 / bytes;
            Some(Meter { ns_per_byte, ns_per_shortest: ns_per_byte * shortest, due: now.0 as f64 })
        };
        let directions = ByDirection::from_fn(meter);
        Direction::ALL.iter().any(|direction| directions[*direction].is_some()).then(|| Self {
            directions,
            rng: SmallRng::seed_from_u64(mix(seed, 9)),
            is_poisson: job.rate_process == RateProcess::Poisson,
            ignores_thinktime: job.rate_ignore_thinktime,
        })
    }

    /// When the next operation of this direction is due.
    pub(super) fn due(&self, direction: Direction) -> Time {
        Time(self.directions[direction].map_or(0, |meter| meter.due as u64))
    }

    /// In a mixture, the direction that goes next: the one that was drawn, unless the other one is due before it. So
    /// the rate of one direction does not hold back the other. As in fio, the mixture changes instead.
    pub(super) fn turn(&self, drawn: Direction, now: Time) -> Direction {
        let other = if drawn == Direction::Read { Direction::Write } else { Direction::Read };
        let is_first = self.due(drawn) <= now || self.due(drawn) <= self.due(other);
        if is_first { drawn } else { other }
    }

    /// Called when an operation was submitted. Sets when the next one is due. A job that is late catches up, as in fio.
    pub(super) fn submitted(&mut self, direction: Direction, bytes: u64) {
        let Some(meter) = &mut self.directions[direction] else { return };
        // As in fio, the distances of a Poisson process do not depend on the lengths of the operations.
        meter.due += if self.is_poisson {
            let factor: f64 = Exp1.sample(&mut self.rng);
            meter.ns_per_shortest * factor
        } else {
            meter.ns_per_byte * bytes as f64
        };
    }

    /// Called for a pause of this length that does not count against the rate, after an operation of this direction. As
    /// in fio, only this direction's rate makes up for the pause, and an operation follows the pause at once if one
    /// would have been due in it.
    pub(super) fn pause(&mut self, direction: Direction, ns: u64) {
        let Some(meter) = &mut self.directions[direction] else { return };
        let is_in_pause = !self.is_poisson && meter.ns_per_shortest <= ns as f64;
        meter.due += ns as f64 - if is_in_pause { meter.ns_per_shortest } else { 0.0 };
    }
}
