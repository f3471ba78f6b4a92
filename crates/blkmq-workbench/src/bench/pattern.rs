//! Which operation a job does next: its direction, its length and its place.

mod place;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::plan::{Plan, SECTOR, sizes};
use crate::job::{BlockSize, ByDirection, Direction, Operations, Order};
use place::Places;

/// An operation that has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) direction: Direction,
    /// First byte on the device.
    pub(super) at: u64,
    /// Length in bytes, at least 1.
    pub(super) bytes: u64,
}

impl Operation {
    /// The byte after the last one.
    pub(super) fn end(&self) -> u64 {
        self.at + self.bytes
    }
}

/// The operations of a job's passes, one after the other.
#[derive(Debug)]
pub(super) struct Pattern {
    rng: SmallRng,
    seed: u64,
    operations: Operations,
    order: Order,
    percentage_random: ByDirection<u32>,
    sizes: ByDirection<Sizes>,
    /// The first byte of the area, and the area's length in bytes.
    start: u64,
    len: u64,
    smallest: u64,
    /// Random places are blocks whose starts are multiples of this number of bytes.
    align: u64,
    places: Places,
    /// For each direction: where the next operation goes if it follows the one before; and how many more will follow.
    following: ByDirection<u64>,
    run: ByDirection<u32>,
    /// The block that was trimmed and has to be written next.
    trimmed: Option<Operation>,
    /// What the operations have in common, if they differ only in their random places.
    alike: Option<Alike>,
    /// How many such operations are left of this pass.
    left_alike: u64,
    /// Whether a pass ends at the end of the area. As in fio, a pass that leaves holes ends there, unless the job says
    /// how much it transfers.
    ends_with_area: bool,
    /// Bytes and operations of a whole pass, and those that are left of this one.
    pass: (u64, u64),
    left: (u64, u64),
}

/// What operations have in common that differ only in their random places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alike {
    pub(super) direction: Direction,
    pub(super) nr_sectors: u64,
}

/// Lengths, in bytes.
#[derive(Debug, Clone)]
enum Sizes {
    Fixed(u64),
    /// A multiple of `step` that is at least `min` and at most `min + (count - 1) * step`.
    Range {
        min: u64,
        step: u64,
        count: u64,
    },
    /// Each length, with the sum of the percentages up to and including its own.
    Split(Vec<(u64, u64)>),
}

/// A random number below `bound`. All numbers are equally likely, up to a part in 2^64. COST: a multiplication, no
/// division.
pub(super) fn below(rng: &mut SmallRng, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

impl Sizes {
    /// `grain`: the lengths of an unaligned range differ by multiples of this many bytes.
    fn new(size: &BlockSize, is_unaligned: bool, grain: u64) -> Self {
        match size {
            BlockSize::Range(range) if range.start() < range.end() => {
                let (min, max) = (*range.start(), *range.end());
                let step = if is_unaligned { grain } else { min };
                Self::Range { min, step, count: (max - min) / step + 1 }
            }
            BlockSize::Split(parts) => {
                let mut sum = 0;
                let add = |&(bytes, percent): &(u64, u32)| {
                    sum += u64::from(percent);
                    (bytes, sum)
                };
                Self::Split(parts.iter().map(add).collect())
            }
            other => Self::Fixed(*other.bounds().end()),
        }
    }

    fn choose(&self, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Fixed(bytes) => *bytes,
            Self::Range { min, step, count } => min + below(rng, *count) * step,
            Self::Split(parts) => {
                let at = below(rng, 100);
                let part = parts.iter().find(|(_, sum)| at < *sum).or(parts.last());
                part.map_or(SECTOR, |(bytes, _)| *bytes)
            }
        }
    }
}

impl Pattern {
    pub(super) fn new(plan: &Plan) -> Self {
        let job = &plan.job;
        let align = job.operations.directions().map(|direction| job.blockalign[direction]).min();
        let align = align.unwrap_or(plan.grain);
        let (smallest, _) = sizes(job);
        let blocks = (plan.len - smallest) / align + 1;
        let places = Places::new(job, blocks, plan.seed);
        let alike = match (job.operations, &job.order) {
            (Operations::Only(direction), Order::Random { every: 1 })
                if direction != Direction::Trim
                    && !plan.is_partial
                    && job.percentage_random[direction] == 100
                    && smallest == sizes(job).1
                    && align >= smallest =>
            {
                Some(Alike { direction, nr_sectors: smallest / SECTOR })
            }
            _ => None,
        };
        let mut pattern = Self {
            rng: SmallRng::seed_from_u64(plan.seed),
            seed: plan.seed,
            operations: job.operations,
            order: job.order,
            percentage_random: job.percentage_random,
            sizes: ByDirection::from_fn(|direction| Sizes::new(&job.bs[direction], job.bs_unaligned, plan.grain)),
            start: plan.start,
            len: plan.len,
            smallest,
            align,
            places,
            following: ByDirection::all(0),
            run: ByDirection::all(0),
            trimmed: None,
            alike,
            left_alike: 0,
            ends_with_area: matches!(job.order, Order::Sequential { skip: 1.. }) && job.io_size.is_none(),
            pass: (plan.pass_bytes, plan.pass_ios),
            left: (0, 0),
        };
        pattern.begin_pass(false);
        pattern
    }

    /// If the operations of this pass are alike: what they have in common, and how many are still to come.
    #[inline]
    pub(super) fn alike(&self) -> Option<(Alike, u64)> {
        Some((self.alike?, self.left_alike))
    }

    /// The first sector of the next operation of those that are alike.
    ///
    /// COST: a random number, two multiplications and some ten instructions, or a [`Permutation`](place::Permutation).
    #[inline(always)]
    pub(super) fn next_alike(&mut self) -> u64 {
        (self.start + self.places.next(&mut self.rng) * self.align) / SECTOR
    }

    /// Called when this many operations that are alike were chosen.
    pub(super) fn took(&mut self, alike: Alike, nr: u64) {
        self.left.0 -= nr * alike.nr_sectors * SECTOR;
        self.left.1 -= nr;
        self.left_alike -= nr;
    }

    /// The next operation of this pass. `None` at the end of the pass. `turn` may replace the direction that a mixture
    /// has drawn.
    pub(super) fn next(&mut self, turn: impl FnOnce(Direction) -> Direction) -> Option<Operation> {
        if self.left.1 == 0 {
            return None;
        }
        if let Some(trimmed) = self.trimmed.take() {
            self.left.1 -= 1;
            return Some(Operation { direction: Direction::Write, ..trimmed });
        }
        let direction = match self.operations {
            Operations::Only(direction) => direction,
            Operations::ReadWrite { read_percent } => {
                let is_read = below(&mut self.rng, 100) < u64::from(read_percent);
                let drawn = if is_read { Direction::Read } else { Direction::Write };
                if matches!(read_percent, 1..100) { turn(drawn) } else { drawn }
            }
            Operations::TrimWrite => Direction::Trim,
        };
        let len = self.sizes[direction].choose(&mut self.rng);
        if self.left.0 < self.smallest {
            return None;
        }
        if self.ends_with_area && self.len.saturating_sub(self.following[direction]) < self.smallest {
            self.following = ByDirection::all(0);
            return None;
        }
        let (at, room) = self.place(direction, len);
        let len = len.min(room).min(self.left.0 - self.left.0 % self.smallest);
        self.left.0 -= len;
        self.left.1 -= 1;
        let skip = if let Order::Sequential { skip } = self.order { skip } else { 0 };
        self.following[direction] = (at + len).saturating_add_signed(skip);
        if skip < 0 && at + len < skip.unsigned_abs() {
            // A step backwards past the start continues from the end.
            self.following[direction] = self.len - self.len % self.smallest - self.smallest;
        }
        let step = Operation { direction, at: self.start + at, bytes: len };
        if self.operations == Operations::TrimWrite {
            self.trimmed = Some(step);
        }
        Some(step)
    }

    /// The start of the next operation, as a distance from the start of the area, and the room after it.
    fn place(&mut self, direction: Direction, len: u64) -> (u64, u64) {
        let follows = match self.order {
            Order::Sequential { .. } => true,
            Order::Random { every } => {
                if self.run[direction] > 0 {
                    self.run[direction] -= 1;
                    true
                } else {
                    self.run[direction] = every - 1;
                    let percent = self.percentage_random[direction];
                    percent < 100 && below(&mut self.rng, 100) >= u64::from(percent)
                }
            }
        };
        let mut at = if follows { self.following[direction] } else { self.places.next(&mut self.rng) * self.align };
        let room = self.len.saturating_sub(at);
        // An operation that does not fit at the end is shortened. If not even the shortest one fits, it begins at the
        // start.
        if room < len.min(self.smallest) {
            at = 0;
        }
        let room = self.len - at;
        (at, room - room % self.smallest)
    }

    /// Begins another pass. If the pass is one of the job's loops (`is_repeated`), it is the same as the one before. A
    /// pass that only fills the time goes on with new random numbers.
    pub(super) fn begin_pass(&mut self, is_repeated: bool) {
        self.left = self.pass;
        self.left_alike = self.alike.map_or(0, |alike| (self.left.0 / (alike.nr_sectors * SECTOR)).min(self.left.1));
        self.trimmed = None;
        if is_repeated {
            self.rng = SmallRng::seed_from_u64(self.seed);
            self.following = ByDirection::all(0);
            self.run = ByDirection::all(0);
            self.places.restart(self.seed);
        }
    }

    /// The share of this pass that was begun, from 0 to 1.
    pub(super) fn fraction(&self) -> f64 {
        let share = |all: u64, left: u64| if all == u64::MAX { 0.0 } else { 1.0 - left as f64 / all.max(1) as f64 };
        share(self.pass.0, self.left.0).max(share(self.pass.1, self.left.1))
    }
}
