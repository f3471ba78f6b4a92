//! Where schedulers are judged: a model on virtual time, or a real device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq::driver::Driver;
use blkmq::driver::spec::Opener;
use blkmq::{Clock, Op, RequestQueue, VirtualClock};

use super::Contestant;
use super::error::JudgeError;
use super::load::{End, Load, Plan};
use super::world::{self, IO_TIMEOUT_MS, Outcome};
use crate::buffers::BufferPool;
use crate::device::{holds_data, is_real};

/// The null device that a bare `null` stands for: some requests at once, each of which takes the same time.
const NULL: &str = "null,irqmode=2,completion_nsec=100us,hw_queue_depth=8";

/// Operations that openers do.
const OPENING: u64 = 1000;

/// Bytes of a real device that are used, from its beginning.
const MOST_BYTES: u64 = 4 << 30;
/// The least bytes on which streams and random places have room beside each other.
const LEAST_BYTES: u64 = 64 << 20;
/// Bytes of the writes that fill a device.
const FILL_BYTES: u32 = 1 << 20;
const SECTOR: u64 = 512;

/// A device on which schedulers are judged.
#[derive(Debug, Clone)]
pub struct Site {
    spec: String,
    kind: Kind,
    /// Requests that the device takes at once.
    depth: u32,
    /// The sectors that are used.
    area: Range<u64>,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Each run opens a new one, so no run depends on another.
    Model,
    Real(Arc<dyn Driver>),
}

impl Site {
    /// Opens the device of this spec. `overwrites`: a real device may hold data, all of which the judgement may
    /// overwrite.
    ///
    /// # Errors
    /// What is wrong with the spec; or the device holds data, is too small, or takes no time.
    pub fn open(spec: &str, overwrites: bool, opener: &Opener<'_>) -> Result<Self, JudgeError> {
        let spec = if spec == "null" { NULL } else { spec };
        let driver = blkmq_drivers::open_for(spec, opener).map_err(JudgeError::Device)?;
        let name = driver.name();
        let is_model = name != "ram" && !is_real(name);
        if !driver.takes_time() {
            return Err(JudgeError::Unfit(format!(
                "device {name} takes no time, so nothing waits; give irqmode=2, or the bare name null for {NULL}"
            )));
        }
        let (limits, topology) = (driver.limits(), driver.topology());
        let bytes = limits.capacity_sectors * SECTOR;
        if bytes < LEAST_BYTES {
            return Err(JudgeError::Unfit(format!(
                "device {name} has {bytes} bytes; the loads need at least {LEAST_BYTES}"
            )));
        }
        if limits.logical_block_size > 4096 {
            let block = limits.logical_block_size;
            return Err(JudgeError::Unfit(format!(
                "device {name} has blocks of {block} bytes; the loads have reads of 4096"
            )));
        }
        if !is_model && !overwrites && holds_data(&*driver, bytes) {
            return Err(JudgeError::Unfit(format!(
                "device {name} may hold data, and the loads write all over it; give one that is empty, or --overwrite"
            )));
        }
        let end = if is_model { bytes } else { bytes.min(MOST_BYTES) } / SECTOR;
        Ok(Self {
            spec: spec.to_owned(),
            kind: if is_model { Kind::Model } else { Kind::Real(driver) },
            depth: u32::from(topology.depth) * u32::from(topology.default_queues),
            // The loads have operations of up to 1 MiB.
            area: 0..end - end % (u64::from(FILL_BYTES) / SECTOR),
        })
    }

    /// Whether the device is a model, on virtual time.
    #[must_use]
    pub fn is_model(&self) -> bool {
        matches!(self.kind, Kind::Model)
    }

    /// The device's spec.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn area(&self) -> Range<u64> {
        self.area.clone()
    }

    /// The part of the area with this number, of `parts` equal ones.
    pub(super) fn part(&self, number: u64, parts: u64) -> Range<u64> {
        let unit = u64::from(FILL_BYTES) / SECTOR;
        let len = self.area.end / parts / unit * unit;
        assert!(len > 0 && number < parts, "the area has part {number} of {parts}");
        number * len..(number + 1) * len
    }

    /// Buffers for runs on this device.
    pub(super) fn pool(&self) -> BufferPool {
        BufferPool::new(usize::MAX, !self.is_model())
    }

    /// Opens the device, or takes the one that is open.
    pub(super) fn driver(&self) -> Result<Arc<dyn Driver>, JudgeError> {
        match &self.kind {
            Kind::Model => blkmq_drivers::open(&self.spec).map_err(JudgeError::Device),
            Kind::Real(driver) => Ok(Arc::clone(driver)),
        }
    }

    /// Opens this many devices of a model, as different as their seeds make them, or takes the one real device.
    fn drivers(&self, count: usize) -> Result<Vec<Arc<dyn Driver>>, JudgeError> {
        if !self.is_model() || count == 1 {
            return Ok(vec![self.driver()?]);
        }
        // A device without a seed, or one whose seed the spec says, is the same each time.
        let seeded = |seed| blkmq_drivers::open(&format!("{},seed={seed}", self.spec));
        (0..count).map(|seed| seeded(seed).or_else(|_| self.driver())).collect()
    }

    /// Runs `load` behind a scheduler, on `count` devices of this kind, which each client takes in turn. A real device
    /// is one.
    pub(super) fn run(
        &self,
        count: usize,
        contestant: &Contestant,
        load: &Load,
        pool: &mut BufferPool,
        stop: &AtomicBool,
    ) -> Result<Outcome, JudgeError> {
        run_on(self.drivers(count)?, self.is_model(), contestant, load, pool, stop)
    }

    /// Fills a real device, where a hole would be read without the disk.
    pub(super) fn fill(&self, pool: &mut BufferPool, stop: &AtomicBool) -> Result<(), JudgeError> {
        let Kind::Real(driver) = &self.kind else { return Ok(()) };
        if !(driver.extent(0, self.area.end * SECTOR).is_zero && driver.keeps_data()) {
            return Ok(());
        }
        let nr_writes = self.area.end * SECTOR / u64::from(FILL_BYTES);
        let writer = Plan::new("filler", Op::Write, FILL_BYTES, 8, self.area()).sequential(self.area());
        let end = End { operations: nr_writes, ..End::at(0, u64::MAX) };
        self.run(1, &Contestant::named("none"), &Load::new(vec![writer], end), pool, stop).map(drop)
    }
}

/// Runs `load` on a queue in front of each of `drivers`, which have one clock.
pub(super) fn run_on(
    drivers: Vec<Arc<dyn Driver>>,
    is_virtual: bool,
    contestant: &Contestant,
    load: &Load,
    pool: &mut BufferPool,
    stop: &AtomicBool,
) -> Result<Outcome, JudgeError> {
    let clock = if is_virtual { Clock::Virtual(VirtualClock::new()) } else { Clock::real() };
    let mut queues = Vec::new();
    for driver in drivers {
        // An operation that is larger than a request takes several slots.
        let most = driver.limits().max_op_sectors(Op::Read).max(1) * SECTOR as u32;
        let pieces = |bytes: u32| bytes.div_ceil(most) + u32::from(bytes > most);
        let slots = load.clients.iter().map(|plan| plan.depth * pieces(plan.bytes)).max().unwrap_or(0) + 1;
        let slots = u16::try_from(slots).map_or(32768, |slots| slots.min(32768));
        let choice = contestant.scheduler.choice();
        let mut builder = RequestQueue::builder(driver).clock(clock.clone()).slots(slots).scheduler(choice);
        if is_virtual {
            builder = builder.io_timeout_ms(IO_TIMEOUT_MS);
        }
        let refused = |error| JudgeError::Queue(contestant.name.clone(), error);
        let q = builder.build().map_err(refused)?;
        for (name, value) in &load.knobs {
            q.set_knob(name, value).map_err(refused)?;
        }
        queues.push(q);
    }
    if !load.openers.is_empty() {
        let end = End { operations: OPENING, ..End::at(0, u64::MAX) };
        world::run(&queues, &Load::new(load.openers.clone(), end), pool, stop)?;
    }
    world::run(&queues, load, pool, stop)
}

/// How quick a device is, as a run without a scheduler found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed {
    /// Reads of 4 KiB a second at random places, with as many outstanding as the device takes, 128 at most.
    pub(super) iops: f64,
}

impl Speed {
    pub(super) fn of(
        site: &Site,
        time: Duration,
        pool: &mut BufferPool,
        stop: &AtomicBool,
    ) -> Result<Self, JudgeError> {
        let depth = site.depth().min(128);
        let reader = Plan::new("reader", Op::Read, super::load::SMALL, depth, site.area());
        let load = Load::new(vec![reader], End::after(time, 20_000));
        let outcome = site.run(1, &Contestant::named("none"), &load, pool, stop)?;
        Ok(Self { iops: outcome.iops().max(1.0) })
    }
}
