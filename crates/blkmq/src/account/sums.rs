//! One thread's sums for the statistics of a queue or of a range of sectors.

use blkmq_sched::Op;

use super::{add, get};
use crate::account::Stat;
use crate::sync::Line;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What is counted apart, in the order of the kernel's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Group {
    Read,
    Write,
    Discard,
    Flush,
}

impl Group {
    const COUNT: usize = 4;

    /// An operation that only flushes counts as a write; the queue's own flushes do not come by here.
    pub(crate) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write | Op::WriteZeroes | Op::Flush => Self::Write,
            Op::Discard => Self::Discard,
        }
    }

    /// 0 for reads and 1 for all others, as `inflight` tells them apart.
    pub(crate) const fn direction(self) -> usize {
        !matches!(self, Self::Read) as usize
    }
}

/// One group's sums, on a line of their own: a load of reads dirties one.
#[derive(Debug, Default)]
#[repr(align(64))]
struct GroupSums {
    started: AtomicU64,
    /// Started requests that joined another one, and so will not complete by themselves.
    joined: AtomicU64,
    merges: AtomicU64,
    ios: AtomicU64,
    sectors: AtomicU64,
    ns: AtomicU64,
}

/// One thread's sums. Only that thread writes them.
#[derive(Debug)]
pub(crate) struct Sums(Line<[GroupSums; Group::COUNT]>);

impl Sums {
    pub(crate) fn new() -> Self {
        Self(Line::new("submitter.sums", Default::default()))
    }

    /// Requests enter the queue, after `merges` operations have joined them.
    ///
    /// COST: a load and a store of the thread's own line, two if something merged.
    #[inline]
    pub(crate) fn started(&self, group: Group, requests: u64, merges: u64) {
        let sums = &self.0[group as usize];
        let started = sums.started.load(Ordering::Relaxed).wrapping_add(requests);
        // ORDERING: Release, so that who sees these requests sees the stamp that was moved before they came, and counts
        // no idle time as busy; pairs with the Acquire in `nr_started`.
        sums.started.store(started, Ordering::Release);
        if merges > 0 {
            add(&sums.merges, merges);
        }
    }

    /// Operations that were not started joined a request.
    pub(crate) fn merged(&self, group: Group, operations: u64) {
        add(&self.0[group as usize].merges, operations);
    }

    /// A started request joined another one.
    pub(crate) fn joined(&self, group: Group) {
        let sums = &self.0[group as usize];
        add(&sums.joined, 1);
        add(&sums.merges, 1);
    }

    /// A request counts this much longer than from its own beginning.
    pub(crate) fn lasted(&self, group: Group, ns: u64) {
        add(&self.0[group as usize].ns, ns);
    }

    /// Requests are over.
    ///
    /// COST: three loads and stores of the thread's own line.
    #[inline]
    pub(crate) fn ended(&self, group: Group, requests: u64, sectors: u64, ns: u64) {
        let sums = &self.0[group as usize];
        add(&sums.ios, requests);
        add(&sums.sectors, sectors);
        add(&sums.ns, ns);
    }

    /// Starts from zero. The owner is kept out meanwhile.
    pub(crate) fn reset(&self) {
        for sums in self.0.iter() {
            for cell in [&sums.started, &sums.joined, &sums.merges, &sums.ios, &sums.sectors, &sums.ns] {
                cell.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Requests of a direction that began, and those that are over. The flush group counts neither.
    fn nr_started(&self, direction: usize) -> u64 {
        self.in_direction(direction).fold(0, |sum, sums| {
            // ORDERING: Acquire pairs with the Release in `started`.
            sum.wrapping_add(sums.started.load(Ordering::Acquire))
        })
    }

    fn nr_ended(&self, direction: usize) -> u64 {
        self.in_direction(direction)
            .fold(0, |sum, sums| sum.wrapping_add(get(&sums.ios)).wrapping_add(get(&sums.joined)))
    }

    fn in_direction(&self, direction: usize) -> impl Iterator<Item = &GroupSums> {
        [Group::Read, Group::Write, Group::Discard]
            .into_iter()
            .filter(move |group| group.direction() == direction)
            .map(|group| &self.0[group as usize])
    }

    /// Reads and writes that began and are not over, in the sums of all threads. A look while requests move may miss the
    /// beginning of one whose end it sees, so the difference is held at zero.
    pub(crate) fn in_flight<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> [u64; 2] {
        [0, 1].map(|direction| {
            let ended = all.clone().fold(0_u64, |sum, thread| sum.wrapping_add(thread.nr_ended(direction)));
            let started = all.clone().fold(0_u64, |sum, thread| sum.wrapping_add(thread.nr_started(direction)));
            u64::try_from(started.wrapping_sub(ended).cast_signed()).unwrap_or(0)
        })
    }

    /// The sums of all threads. What comes from elsewhere, how much is in flight and the busy time, is left at zero.
    pub(crate) fn stat<'a>(all: impl Iterator<Item = &'a Self>) -> Stat {
        let mut sums = [[0_u64; 4]; Group::COUNT];
        for thread in all {
            for (sum, of) in sums.iter_mut().zip(thread.0.iter()) {
                for (sum, cell) in sum.iter_mut().zip([&of.ios, &of.merges, &of.sectors, &of.ns]) {
                    *sum += get(cell);
                }
            }
        }
        let [read, write, discard, flush] = sums;
        let ms = |ns: u64| ns / 1_000_000;
        Stat {
            read_ios: read[0],
            read_merges: read[1],
            read_sectors: read[2],
            read_ticks: ms(read[3]),
            write_ios: write[0],
            write_merges: write[1],
            write_sectors: write[2],
            write_ticks: ms(write[3]),
            in_flight: 0,
            io_ticks: 0,
            time_in_queue: ms(read[3] + write[3] + discard[3] + flush[3]),
            discard_ios: discard[0],
            discard_merges: discard[1],
            discard_sectors: discard[2],
            discard_ticks: ms(discard[3]),
            flush_ios: flush[0],
            flush_ticks: ms(flush[3]),
        }
    }
}
