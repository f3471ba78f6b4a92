//! What the threads of a modelled load do: a job of fio's in a closed loop, without an end and without a clock.

use blkmq_vcpu::{Random, time, work};
use blkmq_virtual::SECTOR_SIZE;
use blkmq_virtual::{Bio, Buffer, Buffers, Flags, Limits, Op, Submitter, Time};
use blkmq_workbench::job::{BlockSize, Direction, Distribution, Extent, Operations, Order};
use blkmq_workbench::{Job, JobFile, Mode, System};

use crate::pace::{InFlight, Pace, Paced};
use crate::tally;

/// The longest sleep before a thread re-checks the end of the run, in nanoseconds.
pub(crate) const LONGEST_NS: u64 = 50_000_000;

/// What each thread of a load does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// How many percent of the operations are reads; the others are `other`.
    read_percent: u64,
    other: Op,
    is_random: bool,
    /// Bytes of an operation.
    bytes: u64,
    /// The first thread's area; each further thread's lies `increment` bytes behind it.
    offset: Extent,
    increment: Extent,
    size: Option<Extent>,
    flags: Flags,
    pub(crate) pace: Pace,
}

/// The area of a thread, in operations from a first sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    sector: u64,
    /// How many operations lie in it, one behind the other.
    places: u64,
}

/// What the operations of a thread are, and where they go, one after the other.
pub(crate) struct AccessPattern {
    read_percent: u64,
    other: Op,
    is_random: bool,
    area: Area,
    nr_sectors: u64,
    random: Random,
    /// Where the next operation goes, unless that is random.
    next: u64,
}

impl AccessPattern {
    /// For how long the thread waits before it begins, in picoseconds: threads of a real load do not begin at the same
    /// time.
    pub(crate) fn lateness(&mut self) -> u64 {
        self.random.below(1_000_000)
    }

    /// The next operation, and its first sector.
    pub(crate) fn next(&mut self) -> (Op, u64) {
        let Self { area, random, .. } = self;
        let op = if random.below(100) < self.read_percent { Op::Read } else { self.other };
        let place = if self.is_random { random.below(area.places) } else { self.next % area.places };
        self.next += 1;
        (op, area.sector + place * self.nr_sectors)
    }
}

impl Load {
    /// The load of a job. How long the job runs, what it measures, and how many threads it has is left out.
    ///
    /// # Errors
    /// The job does something that is not modelled.
    pub fn of(job: &Job) -> Result<Self, String> {
        refuse_what_is_not_modelled(job)?;
        let (read_percent, other) = match job.operations {
            Operations::Only(Direction::Read) => (100, Op::Read),
            Operations::Only(Direction::Write) => (0, Op::Write),
            Operations::Only(Direction::Trim) => (0, Op::Discard),
            Operations::ReadWrite { read_percent } => (u64::from(read_percent), Op::Write),
            Operations::TrimWrite => {
                return Err(
                    "rw: trimwrite is not modelled; give read, write, trim, or a mix of reads and writes".into()
                );
            }
        };
        let bytes = block_size(job)?;
        Ok(Self {
            read_percent,
            other,
            is_random: matches!(job.order, Order::Random { .. }),
            bytes,
            offset: job.offset,
            increment: job.offset_increment,
            size: job.size,
            // A write of direct I/O is one that a thread waits for, as in Linux.
            flags: Flags { polled: job.hipri, sync: true, fua: job.sync, ..Flags::default() },
            pace: Pace {
                depth: job.iodepth,
                batch: job.iodepth_batch_submit,
                take_min: job.iodepth_batch_complete_min.max(1),
                take_max: job.iodepth_batch_complete_max.max(1),
                low: job.iodepth_low,
            },
        })
    }

    /// The load of a job that does `operations`, written as options of fio, with `depth` of them outstanding, which it
    /// submits and takes back by `batch`.
    ///
    /// # Panics
    /// If that is no job, or none that is modelled.
    #[must_use]
    pub fn closed_loop(operations: &str, depth: usize, batch: usize) -> Self {
        // Without an engine that submits many at once, a job has one operation outstanding.
        let text = format!(
            "[job]\nioengine=io_uring\ndirect=1\n{operations}\niodepth={depth}\niodepth_batch_submit={batch}\n\
             iodepth_batch_complete={batch}\n"
        );
        let file = JobFile::parse("job", &text, &[], Mode::Strict, &System).expect("the caller names a job");
        Self::of(&file.jobs[0]).expect("the caller names a job that is modelled")
    }

    /// The area of thread `thread` on a device of so many bytes. `None`: the device ends before it.
    fn area(&self, thread: u64, capacity: u64) -> Option<Area> {
        let increment = self.increment.bytes(capacity).checked_mul(thread)?;
        let start = self.offset.bytes(capacity).checked_add(increment)?.checked_next_multiple_of(self.bytes)?;
        let left = capacity.checked_sub(start)?;
        let places = self.size.map_or(left, |size| size.bytes(capacity).min(left)) / self.bytes;
        (places > 0).then_some(Area { sector: start / SECTOR_SIZE as u64, places })
    }

    /// What thread `thread` does to a device of so many bytes that has room for it.
    pub(crate) fn pattern(&self, thread: u64, capacity: u64, random: Random) -> AccessPattern {
        let area = self.area(thread, capacity).expect("the areas of all threads were checked");
        let Self { read_percent, other, is_random, .. } = *self;
        AccessPattern { read_percent, other, is_random, area, nr_sectors: self.nr_sectors(), random, next: 0 }
    }

    /// Sectors of an operation.
    pub(crate) const fn nr_sectors(&self) -> u64 {
        self.bytes / SECTOR_SIZE as u64
    }

    /// Bytes of an operation.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether all of its operations are reads.
    pub(crate) const fn only_reads(&self) -> bool {
        self.read_percent == 100
    }

    /// Whether a thread polls for its reads at a queue for that.
    pub(crate) const fn is_polled(&self) -> bool {
        self.flags.polled
    }

    /// Slots that each submitter needs.
    pub(crate) fn slots(&self) -> u16 {
        u16::try_from(self.pace.depth).map_or(u16::MAX, |depth| depth.max(256))
    }

    /// The part of it for one of so many devices that each thread goes to in turn.
    pub(crate) fn shared_by(&self, devices: usize) -> Self {
        let Pace { depth, batch, take_min, take_max, low } = self.pace;
        let depth = (depth / devices as u32).max(1);
        let [batch, take_min, take_max] = [batch, take_min, take_max].map(|number| number.min(depth));
        Self { pace: Pace { depth, batch, take_min, take_max, low: low / devices as u32 }, ..self.clone() }
    }

    /// Whether so many threads can do this to a device with such limits.
    ///
    /// # Errors
    /// Their areas are not on it, or it takes no such operations, or a thread has no slots for all of them.
    pub fn fits(&self, threads: usize, limits: &Limits) -> Result<(), String> {
        let capacity = limits.size_bytes();
        if let Some(thread) = (1..=threads as u64).find(|thread| self.area(thread - 1, capacity).is_none()) {
            return Err(format!(
                "size, offset, offset_increment: the area of thread {thread} does not fit; the device ends at \
                 {capacity} bytes, and --device may give it another size"
            ));
        }
        let nr_sectors = self.nr_sectors();
        let reads = (self.read_percent > 0).then_some((Op::Read, Flags::NONE));
        let others = (self.read_percent < 100).then_some((self.other, self.flags));
        for (op, flags) in reads.into_iter().chain(others) {
            let sector = self.area(0, capacity).map_or(0, |area| area.sector);
            let checked = limits.check(op, sector, nr_sectors);
            checked.and_then(|()| limits.check_durability(op, &flags)).map_err(|status| {
                format!(
                    "rw, bs, sync: the device takes no such operation ({op:?} of {nr_sectors} sectors): {status}; \
                     --device may give another one"
                )
            })?;
            let parts = nr_sectors.div_ceil(limits.max_op_sectors(op).into());
            if parts * u64::from(self.pace.depth) > self.slots().into() {
                return Err(format!(
                    "bs, iodepth: {} operations of {parts} requests each are more than the {} that a thread may have \
                     outstanding",
                    self.pace.depth,
                    self.slots()
                ));
            }
        }
        Ok(())
    }
}

fn refuse_what_is_not_modelled(job: &Job) -> Result<(), String> {
    let plain = Job::new("");
    let is_every = !matches!(job.order, Order::Random { every: 2.. });
    let refused = [
        (job.random_distribution != Distribution::Random, "random_distribution"),
        (job.percentage_random != plain.percentage_random, "percentage_random"),
        (!is_every || matches!(job.order, Order::Sequential { skip } if skip != 0), "rw"),
        (job.rate != plain.rate || job.rate_iops != plain.rate_iops, "rate, rate_iops"),
        (!job.thinktime.is_zero(), "thinktime"),
        (job.fsync.max(job.fdatasync) > 0, "fsync, fdatasync"),
        (job.verify.is_some(), "verify"),
        (job.priority.is_some(), "prio, prioclass"),
        (job.cmdprio_percentage != plain.cmdprio_percentage, "cmdprio_percentage"),
    ];
    match refused.into_iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, option)) => Err(format!("{option}: not modelled; leave it out, or give it fio's default")),
    }
}

fn block_size(job: &Job) -> Result<u64, String> {
    let mut sizes = Vec::new();
    for direction in Direction::ALL.into_iter().filter(|direction| job.operations.includes(*direction)) {
        match job.bs[direction] {
            BlockSize::Fixed(bytes) => sizes.push(bytes),
            BlockSize::Range(_) | BlockSize::Split(_) => {
                return Err("bs: several sizes are not modelled; give one, as in bs=4k".to_owned());
            }
        }
    }
    let bytes = sizes[0];
    if sizes.iter().any(|other| *other != bytes) {
        return Err("bs: reads and writes of different sizes are not modelled; give one size, as in bs=4k".to_owned());
    }
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_SIZE as u64) {
        return Err(format!("bs: {bytes} bytes are no whole number of sectors of {SECTOR_SIZE} bytes"));
    }
    Ok(bytes)
}

/// A thread of a load.
pub(crate) struct Worker<'l> {
    load: &'l Load,
    pattern: AccessPattern,
    submitter: Submitter,
    /// Work of its own before each operation, in picoseconds.
    t0: u64,
    buffers: Vec<Buffer>,
    /// When each outstanding operation was submitted, and what the thread had done for others then; and which places
    /// in this list are free.
    begun: Vec<(u64, u64)>,
    free: Vec<usize>,
    in_flight: InFlight,
}

impl<'l> Worker<'l> {
    /// Thread `thread` of a load, whose device has so many bytes and room for it.
    pub(crate) fn new(load: &'l Load, thread: u64, submitter: Submitter, random: Random, t0: u64) -> Self {
        let capacity = submitter.queue().limits().size_bytes();
        let pattern = load.pattern(thread, capacity, random);
        let depth = load.pace.depth as usize;
        let buffers = (0..depth).map(|_| Buffer::zeroed(load.bytes as usize)).collect();
        let (begun, free) = (vec![(0, 0); depth], (0..depth).collect());
        Self { load, pattern, submitter, t0, buffers, begun, free, in_flight: InFlight::default() }
    }

    /// Waits for a moment.
    pub(crate) fn begin(&mut self) {
        work(self.pattern.lateness());
    }

    /// Takes back what is still outstanding.
    pub(crate) fn end(mut self) -> Submitter {
        self.take_all();
        self.submitter
    }
}

impl Paced for Worker<'_> {
    fn pace(&self) -> Pace {
        self.load.pace
    }

    fn in_flight(&mut self) -> &mut InFlight {
        &mut self.in_flight
    }

    fn submit_one(&mut self) {
        let load = self.load;
        if self.t0 > 0 {
            work(self.t0);
        }
        let (op, sector) = self.pattern.next();
        let buffer = if op == Op::Discard { None } else { self.buffers.pop() };
        let buffers = buffer.map_or(Buffers::None, Buffers::One);
        let begun = self.free.pop().expect("it is free while fewer operations are outstanding");
        self.begun[begun] = (time::now(), tally::nr_taken_over());
        let flags = if op == Op::Write { load.flags } else { Flags { polled: load.flags.polled, ..Flags::NONE } };
        let bio =
            Bio { op, sector, nr_sectors: load.nr_sectors(), flags, priority: None, buffers, user_data: begun as u64 };
        self.submitter.submit(bio).expect("there are slots, and the device takes such operations");
    }

    fn flush_plug(&mut self) {
        self.submitter.flush_plug();
    }

    fn reap(&mut self) -> bool {
        let Some(done) = self.submitter.reap() else { return false };
        let begun = done.bio.user_data as usize;
        let (since, taken_over) = self.begun[begun];
        if done.status.is_ok() {
            tally::done(since, taken_over);
        } else {
            tally::fail(format!("an operation of the load failed: {}", done.status));
        }
        self.free.push(begun);
        if let Buffers::One(buffer) = done.bio.buffers {
            self.buffers.push(buffer);
        }
        true
    }

    fn poll(&mut self) -> bool {
        self.submitter.poll()
    }

    fn wait(&mut self, for_all: bool) {
        let until = Time(time::now() + LONGEST_NS);
        let submitter = &mut self.submitter;
        let min = if for_all { usize::MAX } else { 1 };
        tally::in_wait(|| _ = submitter.wait(min, Some(until)));
    }

    fn is_over(&self) -> bool {
        tally::is_over()
    }
}
