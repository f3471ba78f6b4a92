//! One thread's sums for the statistics of a queue or of a range of sectors.

use blkmq_sched::Op;

use super::stat::DiskStats;
use super::{add, get};
use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// The kinds of operations that are counted apart, in the order of the kernel's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(in crate::queue) enum Group {
    Read,
    Write,
    Discard,
    Flush,
}

impl Group {
    const COUNT: usize = 4;

    /// An operation that only flushes counts as a write. The queue's own flushes are not counted here.
    pub(in crate::queue) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write | Op::WriteZeroes | Op::Flush => Self::Write,
            Op::Discard => Self::Discard,
        }
    }
}

#[derive(Debug, Default)]
struct GroupSums {
    ios: AtomicU64,
    merges: AtomicU64,
    sectors: AtomicU64,
    ns: AtomicU64,
}

/// One thread's sums. Only that thread writes them. The one exception is [`reset`](Self::reset), which the control path
/// calls in a queue that is frozen and drained. Reads and writes lie on one line of 64 bytes.
#[derive(Debug)]
pub(in crate::queue) struct Sums(Line<Cells>);

#[derive(Debug, Default)]
struct Cells {
    groups: [GroupSums; Group::COUNT],
    /// Operations that entered a range. Those that entered the queue are in [`Counters`](super::Counters).
    entered: AtomicU64,
    /// Operations that entered the queue and are not counted here.
    skipped: AtomicU64,
}

impl Sums {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("submitter.sums", Cells::default()))
    }

    fn group(&self, group: Group) -> &GroupSums {
        &self.0.groups[group as usize]
    }

    /// Operations enter a range.
    pub(in crate::queue) fn entered(&self, operations: u64) {
        let entered = get(&self.0.entered).wrapping_add(operations);
        // ORDERING: Release pairs with the Acquire in `nr_entered`; see `Counters::entered`.
        self.0.entered.store(entered, Ordering::Release);
    }

    /// Operations enter the queue that are not counted.
    pub(in crate::queue) fn skipped(&self, operations: u64) {
        add(&self.0.skipped, operations);
    }

    /// Operations that entered joined a request.
    pub(in crate::queue) fn merged(&self, group: Group, operations: u64) {
        add(&self.group(group).merges, operations);
    }

    /// A request counts this much longer than from its own beginning.
    pub(in crate::queue) fn lasted(&self, group: Group, ns: u64) {
        add(&self.group(group).ns, ns);
    }

    /// Requests are over.
    ///
    /// COST: three loads and stores of the thread's own line.
    #[inline]
    pub(in crate::queue) fn ended(&self, group: Group, requests: u64, sectors: u64, ns: u64) {
        let sums = self.group(group);
        add(&sums.ios, requests);
        add(&sums.sectors, sectors);
        add(&sums.ns, ns);
    }

    /// Starts from zero. The owner is kept out meanwhile.
    pub(in crate::queue) fn reset(&self) {
        let cells = self.0.groups.iter().flat_map(|sums| [&sums.ios, &sums.merges, &sums.sectors, &sums.ns]);
        cells.chain([&self.0.entered, &self.0.skipped]).for_each(|cell| cell.store(0, Ordering::Relaxed));
    }

    pub(in crate::queue) fn nr_entered(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `entered`.
        self.0.entered.load(Ordering::Acquire)
    }

    /// Of the operations that entered, those that are not in flight as a request: not counted, joined to a request, or
    /// over with it.
    pub(in crate::queue) fn nr_gone(&self) -> u64 {
        let groups = [Group::Read, Group::Write, Group::Discard].map(|group| self.group(group));
        groups.iter().fold(get(&self.0.skipped), |sum, of| sum.wrapping_add(get(&of.ios)).wrapping_add(get(&of.merges)))
    }

    /// The sums of all threads. The numbers that come from elsewhere, how much is in flight and the busy time, are left
    /// at zero.
    pub(super) fn stat<'a>(all: impl Iterator<Item = &'a Self>) -> DiskStats {
        let mut sums = [[0_u64; 4]; Group::COUNT];
        for thread in all {
            for (sum, of) in sums.iter_mut().zip(&thread.0.groups) {
                for (sum, cell) in sum.iter_mut().zip([&of.ios, &of.merges, &of.sectors, &of.ns]) {
                    // One thread's sum may be below zero: it took back what another thread counted.
                    *sum = sum.wrapping_add(get(cell));
                }
            }
        }
        let [read, write, discard, flush] = sums;
        let ms = |ns: u64| ns / 1_000_000;
        DiskStats {
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
