//! A limiter in made-up lives of a device.

use blkmq_sched::limiter::{Limiter, Phase, Progress};
use blkmq_sched::{Op, Time};

pub(crate) const US: u64 = 1000;
pub(crate) const MS: u64 = 1000 * US;

/// A volume that does 100,000 writes of 4 KiB a second, which have a queue of 2 ms in it, and reads that take as long.
pub(crate) const FULL: Moment = Moment { writes: 100, latency: 2 * MS, read: Some(2 * MS), in_flight: None };

/// The same without a queue.
pub(crate) const QUICK: Moment = Moment { latency: 100 * US, read: Some(100 * US), ..FULL };

/// A limiter, and what it is told each millisecond.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) limiter: Limiter,
    pub(crate) progress: Progress,
    pub(crate) now: Time,
    /// Whether nothing is held back although it could be.
    pub(crate) is_free: bool,
}

/// What happens within a millisecond.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// Writes of 4 KiB that complete, and how long each was with the device, in nanoseconds.
    pub(crate) writes: u64,
    pub(crate) latency: u64,
    /// How long the read that completes was with the device, in nanoseconds.
    pub(crate) read: Option<u64>,
    /// The work with the device, in nanoseconds. `None`: as much as these writes are.
    pub(crate) in_flight: Option<u64>,
}

impl World {
    /// A limiter that paces, since reads were slow.
    pub(crate) fn paced() -> Self {
        let mut world = Self::default();
        world.run(FULL, 302);
        assert_eq!(world.limiter.phase(), Phase::Paced);
        world
    }

    /// So many milliseconds, which are alike.
    pub(crate) fn run(&mut self, moment: Moment, ms: u64) {
        (0..ms).for_each(|_| self.pass(moment));
    }

    pub(crate) fn pass(&mut self, moment: Moment) {
        self.now = self.now.after(MS);
        let Moment { writes, latency, read, in_flight } = moment;
        let others = &mut self.progress.others;
        others.requests += writes;
        others.sectors += writes * 8;
        others.in_device += writes * latency;
        self.progress.least_read = read.map(|_| 50 * US);
        if let Some(read) = read {
            let reads = &mut self.progress.reads;
            reads.requests += 1;
            reads.sectors += 8;
            reads.in_device += read;
        }
        let cost = u64::from(self.limiter.cost(Op::Write, 8));
        self.progress.in_flight = in_flight.unwrap_or(latency * writes * cost / MS);
        self.progress.held_back = !self.limiter.is_open() && !self.is_free;
        self.limiter.fold(&self.progress, self.now);
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.limiter.phase() == Phase::Probing
    }
}
