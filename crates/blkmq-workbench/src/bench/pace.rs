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
    /// Nanoseconds that an operation takes, and that a byte takes.
    ns_per_io: f64,
    ns_per_byte: f64,
    /// When the next operation is due.
    due: f64,
}

impl Pace {
    /// The pace of a job that begins now; `None` if it has no rate.
    pub(super) fn new(job: &Job, seed: u64, now: Time) -> Option<Self> {
        let meter = |direction: Direction| {
            let (rate, iops) = (job.rate[direction], job.rate_iops[direction]);
            let ns = |rate: Option<u64>| rate.map_or(0.0, |rate| 1e9 / rate as f64);
            let due = now.0 as f64;
            (rate.is_some() || iops.is_some()).then(|| Meter { ns_per_io: ns(iops), ns_per_byte: ns(rate), due })
        };
        let directions =
            ByDirection { read: meter(Direction::Read), write: meter(Direction::Write), trim: meter(Direction::Trim) };
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
        let mean = meter.ns_per_io.max(meter.ns_per_byte * bytes as f64);
        let factor: f64 = if self.is_poisson { Exp1.sample(&mut self.rng) } else { 1.0 };
        meter.due += mean * factor;
    }

    /// Moves everything that is due later by this much.
    pub(super) fn delay(&mut self, ns: u64) {
        for direction in Direction::ALL {
            if let Some(meter) = &mut self.directions[direction] {
                meter.due += ns as f64;
            }
        }
    }
}
