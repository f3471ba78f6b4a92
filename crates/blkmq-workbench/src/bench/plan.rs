//! What one thread of a job does on a given device: everything in sectors and nanoseconds, and checked.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use blkmq::{Limits, Op};
use nix::sys::sysinfo::sysinfo;

use super::{BenchError, JobError};
use crate::job::{BlockSize, Direction, Extent, Job, Operations, Order, nanoseconds};

/// Bytes of a sector.
pub(super) const SECTOR: u64 = 512;

/// Bytes of the header that begins a verified block.
pub(super) const HEADER: usize = 44;

/// What one thread of a job does.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) job: Job,
    /// The job's place in the list.
    pub(super) index: usize,
    /// The number of this thread among the job's threads.
    pub(super) thread: u32,
    /// The thread starts when all of the stages before have ended.
    pub(super) stage: usize,
    /// The seed of the thread's random numbers.
    pub(super) seed: u64,
    /// The area: first byte of the device, and length in bytes.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The device's logical block size, in bytes.
    pub(super) block: u64,
    /// Some operation may begin or end within a block of the device.
    pub(super) is_partial: bool,
    /// Operations that change data lock their blocks, because a job of the stage, perhaps this one, changes parts of
    /// them.
    pub(super) locks_ranges: bool,
    /// The lengths of an unaligned range differ by multiples of this many bytes.
    pub(super) grain: u64,
    /// Bytes and operations of one pass at most.
    pub(super) pass_bytes: u64,
    pub(super) pass_ios: u64,
    /// Nanoseconds from the begin of the measurement to its end. `None` for no limit.
    pub(super) run_ns: Option<u64>,
    pub(super) ramp_ns: u64,
    pub(super) delay_ns: u64,
    /// The job verifies, and no other thread writes to its area.
    pub(super) is_alone: bool,
}

/// Mixes numbers into one that looks random.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    // The finalizer of SplitMix64.
    let mut z = a ^ b.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The plans of all threads of `jobs` on a device with these limits. `keeps_data`: the device keeps what is written.
pub(super) fn plans(jobs: &[Job], limits: &Limits, keeps_data: bool) -> Result<Vec<Plan>, BenchError> {
    let mut plans = Vec::new();
    let mut stage = 0;
    for (index, job) in jobs.iter().enumerate() {
        if job.stonewall && index > 0 {
            stage += 1;
        }
        check(job, limits, keeps_data)?;
        let seed = job.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        for thread in 0..job.numjobs {
            let seed = mix(mix(seed, index as u64), u64::from(thread));
            plans.push(Plan::new(job, limits, index, thread, stage, seed)?);
        }
    }
    check_memory(&plans)?;
    for at in 0..plans.len() {
        plans[at].locks_ranges = plans.iter().any(|plan| plan.changes_parts_for(&plans[at]));
        // Only a job that verifies needs this.
        plans[at].is_alone = plans[at].job.verify.is_some()
            && plans.iter().enumerate().all(|(other, plan)| other == at || !plan.changes(&plans[at]));
    }
    Ok(plans)
}

/// Refuses jobs whose buffers do not fit into the machine's memory. Without this check the system would end the program
/// while it runs.
fn check_memory(plans: &[Plan]) -> Result<(), BenchError> {
    let Ok(system) = sysinfo() else { return Ok(()) };
    let memory = u128::from(system.ram_total());
    let bytes = |plan: &Plan| u128::from(plan.bytes_of_operation()) * u128::from(plan.job.iodepth);
    let all: u128 = plans.iter().map(bytes).sum();
    match plans.iter().max_by_key(|plan| bytes(plan)) {
        Some(largest) if all > memory => Err(fault(&largest.job, JobError::Memory { all, memory })),
        _ => Ok(()),
    }
}

fn fault(job: &Job, error: JobError) -> BenchError {
    BenchError::Job { name: job.name.clone(), error }
}

/// Checks what a job asks for against what the device can do.
fn check(job: &Job, limits: &Limits, keeps_data: bool) -> Result<(), BenchError> {
    if let Some((option, _)) = lengths(job).into_iter().find(|(_, bytes)| *bytes == 0) {
        return Err(fault(job, JobError::Empty { option }));
    }
    let (is_trim, block) = (job.operations.includes(Direction::Trim), u64::from(limits.logical_block_size));
    if (is_trim || job.direct)
        && let Some((option, bytes)) = within_block(job, limits)
    {
        return Err(fault(job, JobError::Block { option, bytes, block, is_trim }));
    }
    if job.verify.is_some() && !keeps_data {
        return Err(fault(job, JobError::Forgets));
    }
    let verified = if job.verify_interval > 0 { job.verify_interval } else { sizes(job).0 };
    if job.verify.is_some() && verified < HEADER as u64 {
        return Err(fault(job, JobError::Header { bytes: verified, least: HEADER as u64 }));
    }
    if job.operations.includes(Direction::Trim) && limits.max_op_sectors(Op::Discard) == 0 {
        return Err(fault(job, JobError::NoTrim));
    }
    Ok(())
}

/// The options of a job that say how long its operations are, and to what their random places are aligned; each with
/// its values in bytes.
fn lengths(job: &Job) -> Vec<(&'static str, u64)> {
    let mut lengths = Vec::new();
    for direction in job.operations.directions() {
        match &job.bs[direction] {
            BlockSize::Fixed(bytes) => lengths.push(("bs", *bytes)),
            BlockSize::Range(range) => {
                lengths.push(("bsrange", *range.start()));
                // The other lengths are multiples of the first one.
                lengths.extend(job.bs_unaligned.then_some(("bsrange", *range.end())));
            }
            BlockSize::Split(parts) => lengths.extend(parts.iter().map(|(bytes, _)| ("bssplit", *bytes))),
        }
        if matches!(job.order, Order::Random { .. }) {
            lengths.push(("blockalign", job.blockalign[direction]));
        }
    }
    lengths
}

/// A length or place of a job that begins or ends within a block of the device, with its option. `None` if all of the
/// job's operations are whole blocks.
fn within_block(job: &Job, limits: &Limits) -> Option<(&'static str, u64)> {
    let skip = if let Order::Sequential { skip } = job.order { skip.unsigned_abs() } else { 0 };
    let capacity = whole_bytes(limits);
    let increment = if job.numjobs > 1 { place(job, job.offset_increment, capacity) } else { 0 };
    let offset = place(job, job.offset, capacity);
    let places = [("skip of rw", skip), ("offset", offset), ("offset_increment", increment)];
    let is_within = |bytes: u64| !bytes.is_multiple_of(limits.logical_block_size.into());
    lengths(job).into_iter().chain(places).find(|(_, bytes)| is_within(*bytes))
}

/// Bytes of the device without a last sector of which it has only a part, because such a sector does not return
/// everything that is written to it.
fn whole_bytes(limits: &Limits) -> u64 {
    limits.size_bytes() / SECTOR * SECTOR
}

/// The byte of the device that an offset of a job stands for.
fn place(job: &Job, extent: Extent, capacity: u64) -> u64 {
    let to = if job.offset_align > 0 { job.offset_align } else { sizes(job).0 };
    let bytes = extent.bytes(capacity);
    if matches!(extent, Extent::Percent(_)) { bytes - bytes % to } else { bytes }
}

impl Plan {
    fn new(job: &Job, limits: &Limits, index: usize, thread: u32, stage: usize, seed: u64) -> Result<Self, BenchError> {
        let block = u64::from(limits.logical_block_size);
        let is_partial = within_block(job, limits).is_some();
        let capacity = match (is_partial, limits.missing_bytes) {
            (false, _) => whole_bytes(limits),
            // The missing end of a last block cannot be read to be written back.
            (true, 0) => limits.whole_sectors() * SECTOR,
            (true, _) => limits.size_bytes(),
        };
        let (smallest, largest) = sizes(job);
        let align = |extent| place(job, extent, capacity);
        let distance = u128::from(align(job.offset_increment)) * u128::from(thread);
        let start = u128::from(align(job.offset)) + distance;
        let least = match job.size {
            Some(Extent::Bytes(bytes)) => bytes.max(largest),
            _ => largest,
        };
        let end = start + u128::from(least);
        if end > u128::from(capacity) {
            let (thread, nr_threads) = (thread + 1, job.numjobs);
            return Err(fault(job, JobError::BehindEnd { thread, nr_threads, end, capacity }));
        }
        // The start is less than the capacity, which fits into 64 bits.
        let start = start as u64;
        // As in fio, an area that is a share of the device ends at the end of the device.
        let len = job.size.map_or(u64::MAX, align).min(capacity - start);
        if len < largest {
            return Err(fault(job, JobError::Area { len, largest }));
        }
        // As in fio, the last operation of a pass is whole, and the end of the area ends a pass that visits each place
        // once.
        let visits_once = match job.order {
            Order::Sequential { .. } => !matches!(job.operations, Operations::ReadWrite { .. }),
            Order::Random { .. } => !job.norandommap,
        };
        let pass_bytes = match job.io_size {
            Some(extent) => extent.bytes(len).next_multiple_of(smallest),
            None if visits_once => len - len % smallest,
            None => len.next_multiple_of(smallest),
        };
        let (least, most) = (nanoseconds(*job.startdelay.start()), nanoseconds(*job.startdelay.end()));
        let share = mix(seed, 1) as f64 / u64::MAX as f64;
        Ok(Self {
            job: job.clone(),
            index,
            thread,
            stage,
            seed,
            start,
            len,
            block,
            is_partial,
            locks_ranges: false,
            grain: match job.verify_interval {
                _ if !is_partial => block,
                0 => 1,
                interval => interval,
            },
            pass_bytes: pass_bytes.max(smallest),
            pass_ios: job.number_ios.unwrap_or(u64::MAX),
            run_ns: job.runtime.map(nanoseconds),
            ramp_ns: nanoseconds(job.ramp_time),
            is_alone: false,
            delay_ns: least + (most.saturating_sub(least) as f64 * share) as u64,
        })
    }

    /// The name of the thread's client in the queue.
    pub(super) fn client(&self) -> String {
        format!("{} {}.{}", self.job.name, self.index, self.thread)
    }

    /// Whether this thread writes or trims where another one works.
    fn changes(&self, other: &Self) -> bool {
        let overlaps = self.start < other.start + other.len && other.start < self.start + self.len;
        overlaps && self.job.operations != Operations::Only(Direction::Read)
    }

    /// Whether this thread changes parts of blocks at the same time as `other` changes these blocks.
    fn changes_parts_for(&self, other: &Self) -> bool {
        let first = |plan: &Self| plan.start / self.block;
        let end = |plan: &Self| (plan.start + plan.len).div_ceil(self.block);
        let overlaps = first(self) < end(other) && first(other) < end(self);
        let changes = |plan: &Self| plan.job.operations != Operations::Only(Direction::Read);
        self.is_partial && changes(self) && changes(other) && self.stage == other.stage && overlaps
    }

    /// The most bytes of whole blocks that an operation lies in.
    pub(super) fn longest(&self) -> u64 {
        let (_, largest) = sizes(&self.job);
        if self.is_partial { largest.next_multiple_of(self.block) + self.block } else { largest }
    }

    /// The most memory that an operation needs, in bytes: one of parts needs its own data beside that of its blocks.
    fn bytes_of_operation(&self) -> u64 {
        let own = if self.is_partial { sizes(&self.job).1 } else { 0 };
        self.longest().saturating_add(own)
    }

    /// Whether the job measures how long something takes, or does something at a certain time.
    pub(super) fn is_timed(&self) -> bool {
        let Job { measure, rate, rate_iops, thinktime, startdelay, .. } = &self.job;
        let has_rate = |direction| rate[direction].is_some() || rate_iops[direction].is_some();
        measure.lat
            || measure.clat
            || measure.slat
            || Direction::ALL.into_iter().any(has_rate)
            || !thinktime.is_zero()
            || !startdelay.end().is_zero()
    }

    /// Whether only its runtime ends the job.
    pub(super) fn is_time_based(&self) -> bool {
        self.job.time_based && self.run_ns.is_some()
    }

    /// Sets the plan to run for this many nanoseconds of measurement, with new passes until they have elapsed.
    pub(super) fn set_runtime(&mut self, ns: u64) {
        self.run_ns = Some(ns);
        self.job.time_based = true;
    }

    /// The most slots that the job's operations take. An operation larger than a request takes several.
    pub(super) fn slots(&self, limits: &Limits) -> u64 {
        let largest = self.longest();
        let most = u64::from(limits.max_op_sectors(Op::Read).max(1)) * SECTOR;
        let segments = u64::from(limits.max_segment_size) * u64::from(limits.max_segments);
        let boundary = u64::from(limits.boundary_sectors) * SECTOR;
        let piece = most.min(segments).min(if boundary == 0 { u64::MAX } else { boundary }).max(SECTOR);
        // One piece more, because a boundary may lie anywhere in the operation.
        let pieces = largest.div_ceil(piece) + u64::from(largest > piece || boundary > 0);
        pieces * (u64::from(self.job.iodepth) + 1)
    }
}

/// The shortest and the longest operation of all directions of a job, in bytes.
pub(super) fn sizes(job: &Job) -> (u64, u64) {
    let bounds = job.operations.directions().map(|direction| job.bs[direction].bounds());
    bounds.fold((u64::MAX, 0), |(least, most), bounds| (least.min(*bounds.start()), most.max(*bounds.end())))
}
