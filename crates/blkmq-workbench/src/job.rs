//! One job, in the words of fio: what it does to a device, how fast, for how long, and what of it is measured.
//!
//! A field has the name of fio's option unless its text says otherwise. A value that depends on other options is the
//! final one: a job of a synchronous engine has an `iodepth` of 1, `iodepth_low` is never 0, and so on.

use std::ops::{Index, IndexMut, RangeInclusive};
use std::time::Duration;

use blkmq::{Class, IoPriority};

with_defaults! {
/// A job of a job file. The default of each field is fio's default, which the field's text gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The section's name, or what `name` says. Not unique.
    pub name: String = String::new(),
    /// A text that reports show. Default: none.
    pub description: Option<String> = None,
    /// The files that `filename` names, for a program that opens them: a job runs on the device that it is given.
    /// Default: none.
    pub files: Vec<String> = Vec::new(),
    /// How many threads run this job, each independently. At least 1. Default: 1.
    pub numjobs: u32 = 1,
    /// Start only after all jobs before this one have ended. Default: false.
    pub stonewall: bool = false,
    /// The job's group, counted from 0: one more than that of the job before if `stonewall` or `new_group` is set.
    pub group: u32 = 0,
    /// Report all jobs of the group as one. Default: false, one report for each thread.
    pub group_reporting: bool = false,

    /// What the job does; from `rw`, `rwmixread` and `rwmixwrite`. Default: reads.
    pub operations: Operations = Operations::Only(Direction::Read),
    /// In which order it goes through its area; from `rw` and the number behind its colon. Default: sequential.
    pub order: Order = Order::Sequential { skip: 0 },
    /// With a random [`Order`]: how many percent of the operations are at random places. Each other operation follows
    /// the one before it. Default: 100.
    pub percentage_random: ByDirection<u32> = ByDirection::all(100),
    /// How random places are chosen. Default: evenly.
    pub random_distribution: Distribution = Distribution::Random,
    /// With a random [`Order`]: do not keep track of which blocks were visited. Default: false, each block of the area
    /// is visited once before any block is visited again. Always true with `blockalign` and with a distribution that is
    /// not even.
    pub norandommap: bool = false,
    /// Where the job's random numbers start; from `randseed`, `randrepeat` and `allrandrepeat`. Threads of a job
    /// differ. `None`: anew in each run. Default: [`Job::SEED`].
    pub seed: Option<u64> = Some(Self::SEED),

    /// How long an operation is. Default: 4096 bytes.
    pub bs: ByDirection<BlockSize> = ByDirection::all(BlockSize::Fixed(4096)),
    /// Random offsets are multiples of this many bytes, counted from the start of the area; from `blockalign`.
    /// Default: the smallest block size of the direction.
    pub blockalign: ByDirection<u64> = ByDirection::all(4096),
    /// A range of block sizes stands for any whole number of the device's blocks in it, not only for multiples of its
    /// smallest size. If a bound, or another length or place of the job, is no whole number of blocks, the range stands
    /// for any number of bytes, or with `verify_interval` for any whole number of intervals. Default: false.
    pub bs_unaligned: bool = false,

    /// Length of the area that one thread uses, from its start; from `size` and `filesize`. Default: `None`, up to the
    /// end of the device.
    pub size: Option<Extent> = None,
    /// Where the first thread's area starts. Default: 0.
    pub offset: Extent = Extent::Bytes(0),
    /// How far the area of a thread lies behind the area of the job's previous thread. Default: 0.
    pub offset_increment: Extent = Extent::Bytes(0),
    /// If `offset` or `offset_increment` is a percentage, the start of an area is rounded up to a multiple of this many
    /// bytes. Default: 0, which stands for the smallest block size.
    pub offset_align: u64 = 0,
    /// How much one thread transfers in one pass, in bytes or percent of `size`. With more than `size`, the thread
    /// continues at the start of the area; with less, the pass ends early. Default: `None`, as much as `size`.
    pub io_size: Option<Extent> = None,
    /// The most operations that one thread does in one pass. The number does not make a pass longer. Default: `None`,
    /// as many as fit.
    pub number_ios: Option<u64> = None,
    /// How many passes one thread does. At least 1. Default: 1.
    pub loops: u64 = 1,

    /// The engine's name, which says only whether the job waits for each operation. Default: `psync`, which waits.
    pub ioengine: String = "psync".to_owned(),
    /// The most operations that one thread keeps outstanding. At least 1, and 1 for engines that wait. Default: 1.
    pub iodepth: u32 = 1,
    /// How many operations are submitted together. From 1 to `iodepth`. Default: 1; 0 in a file means `iodepth`.
    pub iodepth_batch_submit: u32 = 1,
    /// How many completions a thread waits for when it must wait. From 0 (it polls and does not wait) to `iodepth`.
    /// Default: 1.
    pub iodepth_batch_complete_min: u32 = 1,
    /// The most completions that are taken at once. From `iodepth_batch_complete_min`, which is the default, to
    /// `iodepth`.
    pub iodepth_batch_complete_max: u32 = 1,
    /// Once `iodepth` was reached, submit again when at most this many operations are outstanding. From 1 to `iodepth`,
    /// the default.
    pub iodepth_low: u32 = 1,
    /// Refuse operations that are no whole number of the device's blocks, as the kernel does if the page cache is
    /// bypassed; from `direct` and `buffered`. Default: false.
    pub direct: bool = false,
    /// Use polled hardware queues. Default: false.
    pub hipri: bool = false,
    /// Let the device register the buffers, so that it need not prepare their memory for each operation. Default:
    /// false.
    pub fixedbufs: bool = false,
    /// The priority of each operation; from `prioclass` and `prio`. Default: `None`, the client's.
    pub priority: Option<IoPriority> = None,
    /// How many percent of the operations have the priority `cmdprio` instead. Default: 0.
    pub cmdprio_percentage: ByDirection<u32> = ByDirection::all(0),
    /// From `cmdprio_class` and `cmdprio`. Default: real-time, level 0.
    pub cmdprio: ByDirection<IoPriority> = ByDirection::all(IoPriority { class: Class::RealTime, level: 0 }),

    /// End after this time, even within a pass. Default: `None`.
    pub runtime: Option<Duration> = None,
    /// Begin new passes until `runtime` has elapsed; there is a `runtime` then. Default: false.
    pub time_based: bool = false,
    /// Run for this long before anything is measured; `runtime` counts from its end. Default: 0.
    pub ramp_time: Duration = Duration::ZERO,
    /// Wait before the first operation, each thread for a random time in this range. Default: 0 to 0.
    pub startdelay: RangeInclusive<Duration> = Duration::ZERO..=Duration::ZERO,

    /// The most bytes per second of one thread. At least 1. Default: `None`, as fast as it goes.
    pub rate: ByDirection<Option<u64>> = ByDirection::all(None),
    /// The most operations per second of one thread, if all have the shortest length of their direction; longer ones
    /// count as several. At least 1. Default: `None`.
    pub rate_iops: ByDirection<Option<u64>> = ByDirection::all(None),
    /// When operations with a rate are due. Default: linear. Poisson distances do not depend on lengths.
    pub rate_process: RateProcess = RateProcess::Linear,
    /// Do not make up for think time later: it does not count against the rate. Default: false.
    pub rate_ignore_thinktime: bool = false,
    /// Pause after each `thinktime_blocks` operations. Operations that are outstanding then complete before the pause,
    /// and count towards the next one; at least one is submitted between two pauses. Default: 0, never.
    pub thinktime: Duration = Duration::ZERO,
    /// The first part of the pause during which the thread computes instead of sleeping. At most `thinktime`. Default:
    /// 0.
    pub thinktime_spin: Duration = Duration::ZERO,
    /// How many operations are between two pauses. At least 1. Default: 1; with `thinktime_iotime` the largest number,
    /// which is never reached.
    pub thinktime_blocks: u64 = 1,
    /// Count operations for `thinktime_blocks` when they are submitted, not when they are complete. Default: false.
    pub thinktime_blocks_issue: bool = false,
    /// Pause after this much time with I/O, or after `thinktime_blocks` if that is sooner. Default: 0, off.
    pub thinktime_iotime: Duration = Duration::ZERO,

    /// Flush before the next operation whenever the number of writes is a multiple of this one, unless nothing has
    /// completed since the last flush. As with fio, no flush follows the last write. Default: 0, never.
    pub fsync: u32 = 0,
    /// The same as `fsync`, because a block device knows no difference; with both, a multiple of either. Default: 0,
    /// never.
    pub fdatasync: u32 = 0,
    /// Flush when the job ends, if it writes; from `end_fsync` and `fsync_on_close`. Default: false.
    pub end_fsync: bool = false,
    /// Each write is durable when it completes (forced unit access). Default: false.
    pub sync: bool = false,

    /// What written blocks hold, so that they can be checked. Default: `None`, nothing is checked.
    pub verify: Option<Verify> = None,
    /// Check after a pass of writes what the pass wrote. Reads are always checked as they complete. Default: true.
    pub do_verify: bool = true,
    /// How many bytes have a header of their own, which takes 44 of them. The number divides every block size. Default:
    /// 0, the length of the operation.
    pub verify_interval: u64 = 0,
    /// Check after this many blocks were written instead of after the pass. Default: 0, after the pass.
    pub verify_backlog: u64 = 0,
    /// How many blocks are checked at each `verify_backlog`. Default: `verify_backlog`.
    pub verify_backlog_batch: u64 = 0,
    /// End the job at the first block that is not what was written. Default: false, count and go on, and fail at the
    /// end.
    pub verify_fatal: bool = false,

    /// Which latencies are taken; from `gtod_reduce`, `disable_lat`, `disable_clat` and `disable_slat`.
    pub measure: Measure = Measure { lat: true, clat: true, slat: true },
    /// Report percentiles of completion latencies. Default: true.
    pub clat_percentiles: bool = true,
    /// Report percentiles of total latencies. Default: false.
    pub lat_percentiles: bool = false,
    /// Report percentiles of submission latencies. Default: false.
    pub slat_percentiles: bool = false,
    /// Which percentiles are reported, in rising order, each above 0 and up to 100. Default: [`Job::PERCENTILES`].
    pub percentile_list: Vec<f64> = Self::PERCENTILES.to_vec(),

    /// The options that the job's own section sets, as written, with fio's full names. For reports.
    pub options: Vec<(String, String)> = Vec::new(),
}
}

/// A kind of operation for which options can have values of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards, which fio calls trims.
    Trim,
}

/// A value for each direction: in a file `4k,8k,16k`. A single value holds for all directions. Of two values, the
/// second holds for writes and trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByDirection<T> {
    /// For reads.
    pub read: T,
    /// For writes.
    pub write: T,
    /// For trims.
    pub trim: T,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operations {
    /// Only operations of this direction.
    Only(Direction),
    /// Reads and writes, chosen at random.
    ReadWrite {
        /// How many percent are reads; 0 to 100. fio's default: 50.
        read_percent: u32,
    },
    /// Each block is trimmed and then written.
    TrimWrite,
}

/// In which order a job goes through its area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each operation starts where the one before ended.
    Sequential {
        /// The distance in bytes from that end; negative for a start before it. fio's default: 0.
        skip: i64,
    },
    /// At places chosen by the job's distribution.
    Random {
        /// A new random place after this many operations; the operations in between follow the one before them. At
        /// least 1, fio's default.
        every: u32,
    },
}

/// Lengths of operations, in bytes, each at least 1. A read or write that begins or ends within a block of the device
/// reads the block first; a trim must be of whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockSize {
    /// Always this length.
    Fixed(u64),
    /// Multiples of the lower bound up to the upper bound, all equally often.
    Range(RangeInclusive<u64>),
    /// Each length with the percentage of operations that have it. The percentages make 100; some may be 0.
    Split(Vec<(u64, u32)>),
}

/// A length or a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// In bytes.
    Bytes(u64),
    /// In percent of the device; 0 to 100.
    Percent(u32),
}

/// How random places are chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Each block as often as any other.
    Random,
    /// The k-th most popular block in proportion to k to the power of minus theta. Theta is above 0 and not 1.
    Zipf {
        /// Theta.
        theta: f64,
    },
    /// Self-similar: a share h of the blocks gets a share 1-h of the operations, and the same holds within that share.
    /// H is between 0 and 1.
    Pareto {
        /// H.
        h: f64,
    },
    /// Around the middle of the area.
    Normal {
        /// Standard deviation, in percent of the area; above 0, up to 100.
        deviation: f64,
    },
    /// Parts of the area, one behind the other.
    Zoned(Vec<Zone>),
}

/// A part of an area in [`Distribution::Zoned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// How many percent of the operations fall into it; all zones make 100.
    pub access: u32,
    /// How many percent of the area it has; all zones make 100.
    pub span: u32,
}

/// When operations with a rate are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateProcess {
    /// At even distances.
    Linear,
    /// At the times of a Poisson process, whose distances have an exponential distribution.
    Poisson,
}

/// What written blocks hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// A header with the block's place and the CRC-32C of random content.
    Crc32c,
}

/// Which latencies are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// From the start of an operation to its completion.
    pub lat: bool,
    /// From the submission of an operation to its completion.
    pub clat: bool,
    /// From the start of an operation to its submission.
    pub slat: bool,
}

/// A duration in nanoseconds, which are at most `u64::MAX`.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Job {
    /// fio's default seed.
    pub const SEED: u64 = 0x89;
    /// The percentiles that fio reports by default.
    pub const PERCENTILES: [f64; 17] =
        [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

    /// A job of that name with fio's defaults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl<T> ByDirection<T> {
    /// The same value for all directions.
    #[must_use]
    pub fn all(value: T) -> Self
    where
        T: Clone,
    {
        Self::from_fn(|_| value.clone())
    }

    /// The value of each direction.
    pub fn from_fn(mut value: impl FnMut(Direction) -> T) -> Self {
        let [read, write, trim] = Direction::ALL.map(&mut value);
        Self { read, write, trim }
    }
}

impl<T> Index<Direction> for ByDirection<T> {
    type Output = T;

    fn index(&self, direction: Direction) -> &T {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
            Direction::Trim => &self.trim,
        }
    }
}

impl<T> IndexMut<Direction> for ByDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
            Direction::Trim => &mut self.trim,
        }
    }
}

impl Direction {
    /// All of them, in fio's order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];
}

impl Operations {
    /// The directions in which the job does operations.
    pub(crate) fn directions(self) -> impl Iterator<Item = Direction> {
        Direction::ALL.into_iter().filter(move |direction| self.includes(*direction))
    }

    /// True if the job does operations of this direction.
    #[must_use]
    pub fn includes(self, direction: Direction) -> bool {
        match self {
            Self::Only(only) => only == direction,
            Self::ReadWrite { .. } => direction != Direction::Trim,
            Self::TrimWrite => direction != Direction::Read,
        }
    }
}

impl BlockSize {
    /// The shortest and the longest length.
    #[must_use]
    pub fn bounds(&self) -> RangeInclusive<u64> {
        match self {
            Self::Fixed(bytes) => *bytes..=*bytes,
            Self::Range(range) => range.clone(),
            Self::Split(parts) => {
                let sizes = || parts.iter().map(|(bytes, _)| *bytes);
                sizes().min().unwrap_or(0)..=sizes().max().unwrap_or(0)
            }
        }
    }
}

impl Extent {
    /// The length in bytes on a device of `capacity` bytes.
    #[must_use]
    pub fn bytes(self, capacity: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(capacity) * u128::from(percent) / 100) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_a_device() {
        assert_eq!(Extent::Bytes(512).bytes(100), 512);
        assert_eq!(Extent::Percent(33).bytes(1000), 330);
        assert_eq!(Extent::Percent(100).bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn bounds_and_directions() {
        assert_eq!(BlockSize::Split(vec![(4096, 20), (512, 80)]).bounds(), 512..=4096);
        assert_eq!(BlockSize::Range(512..=1024).bounds(), 512..=1024);
        let includes = |operations: Operations| Direction::ALL.map(|direction| operations.includes(direction));
        assert_eq!(includes(Operations::Only(Direction::Trim)), [false, false, true]);
        assert_eq!(includes(Operations::ReadWrite { read_percent: 0 }), [true, true, false]);
        assert_eq!(includes(Operations::TrimWrite), [false, true, true]);
        let mut lengths = ByDirection::all(1);
        lengths[Direction::Write] = 2;
        assert_eq!(Direction::ALL.map(|direction| lengths[direction]), [1, 2, 1]);
    }
}
