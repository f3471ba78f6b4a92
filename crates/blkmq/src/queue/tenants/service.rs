//! What each submitter has had done for its client. Only the submitter's thread writes it.

use std::ops::AddAssign;

use blkmq_sched::Op;

use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Served {
    /// Reads, writes, and operations that move no data.
    pub(super) operations: [u64; 3],
    /// Of reads, and of writes.
    pub(super) sectors: [u64; 2],
}

impl Served {
    /// An operation that is over was handed out.
    #[inline(always)]
    pub(crate) fn add(&mut self, op: Op, nr_sectors: u32) {
        let of = usize::from(op != Op::Read);
        if op.moves_data() {
            self.operations[of] += 1;
            self.sectors[of] += u64::from(nr_sectors);
        } else {
            self.operations[2] += 1;
        }
    }

    /// What was added to `earlier`.
    pub(in crate::queue) fn since(self, earlier: Self) -> Self {
        Self {
            operations: [0, 1, 2].map(|of: usize| self.operations[of].saturating_sub(earlier.operations[of])),
            sectors: [0, 1].map(|of: usize| self.sectors[of].saturating_sub(earlier.sectors[of])),
        }
    }

    pub(in crate::queue) fn operations(self) -> [u64; 3] {
        self.operations
    }

    pub(in crate::queue) fn sectors(self) -> [u64; 2] {
        self.sectors
    }
}

impl AddAssign for Served {
    fn add_assign(&mut self, other: Self) {
        let add = |sums: &mut [u64], others: &[u64]| sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        add(&mut self.operations, &other.operations);
        add(&mut self.sectors, &other.sectors);
    }
}

/// One submitter's sums since it came, and how many operations it has outstanding.
#[derive(Debug)]
pub(crate) struct Service(Line<Cells>);

#[derive(Debug, Default)]
struct Cells {
    operations: [AtomicU64; 3],
    sectors: [AtomicU64; 2],
    outstanding: AtomicU32,
}

impl Service {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("submitter.service", Cells::default()))
    }

    /// The submitter leaves, and the next one begins with nothing. Returns what was done. Called under the lock of the
    /// table of clients.
    pub(in crate::queue) fn end(&self) -> Served {
        let served = self.served();
        let cells = &self.0;
        cells.operations.iter().chain(&cells.sectors).for_each(|cell| cell.store(0, Ordering::Relaxed));
        cells.outstanding.store(0, Ordering::Relaxed);
        served
    }

    /// Shows what was handed out since the submitter came, and how many operations are outstanding.
    ///
    /// COST: six stores to the thread's own line, once for all that was reaped together.
    #[inline]
    pub(crate) fn show(&self, served: Served, outstanding: usize) {
        let show = |cells: &[AtomicU64], sums: &[u64]| {
            cells.iter().zip(sums).for_each(|(cell, sum)| cell.store(*sum, Ordering::Relaxed));
        };
        show(&self.0.operations, &served.operations);
        show(&self.0.sectors, &served.sectors);
        self.note_outstanding(outstanding);
    }

    /// Notes how many operations are outstanding.
    #[inline]
    pub(crate) fn note_outstanding(&self, outstanding: usize) {
        self.0.outstanding.store(outstanding as u32, Ordering::Relaxed);
    }

    pub(in crate::queue) fn served(&self) -> Served {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Served { operations: self.0.operations.each_ref().map(read), sectors: self.0.sectors.each_ref().map(read) }
    }

    pub(in crate::queue) fn outstanding(&self) -> u32 {
        self.0.outstanding.load(Ordering::Relaxed)
    }
}
