//! What each submitter has had done for its client. Only the submitter's thread writes it.

use std::ops::AddAssign;

use blkmq_sched::Op;

use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What was done: reads first, all other operations second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Served {
    pub(super) operations: [u64; 2],
    pub(super) sectors: [u64; 2],
}

impl Served {
    /// An operation that is over was handed out.
    #[inline(always)]
    pub(crate) fn add(&mut self, op: Op, nr_sectors: u32) {
        let of = usize::from(op != Op::Read);
        self.operations[of] += 1;
        self.sectors[of] += u64::from(nr_sectors);
    }
}

impl Served {
    /// What was added to `earlier`.
    pub(in crate::queue) fn since(self, earlier: Self) -> Self {
        let of = |now: [u64; 2], before: [u64; 2]| [0, 1].map(|of: usize| now[of].saturating_sub(before[of]));
        Self { operations: of(self.operations, earlier.operations), sectors: of(self.sectors, earlier.sectors) }
    }

    pub(in crate::queue) fn operations(self) -> [u64; 2] {
        self.operations
    }

    pub(in crate::queue) fn sectors(self) -> [u64; 2] {
        self.sectors
    }
}

impl AddAssign for Served {
    fn add_assign(&mut self, other: Self) {
        for of in 0..2 {
            self.operations[of] += other.operations[of];
            self.sectors[of] += other.sectors[of];
        }
    }
}

/// One submitter's sums since it came, and how many operations it has outstanding.
#[derive(Debug)]
pub(crate) struct Service(Line<Cells>);

#[derive(Debug, Default)]
struct Cells {
    operations: [AtomicU64; 2],
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
    /// COST: five stores to the thread's own line, once for all that was reaped together.
    #[inline]
    pub(crate) fn show(&self, served: Served, outstanding: usize) {
        for of in 0..2 {
            self.0.operations[of].store(served.operations[of], Ordering::Relaxed);
            self.0.sectors[of].store(served.sectors[of], Ordering::Relaxed);
        }
        self.note_outstanding(outstanding);
    }

    /// Notes how many operations are outstanding.
    #[inline]
    pub(crate) fn note_outstanding(&self, outstanding: usize) {
        self.0.outstanding.store(outstanding as u32, Ordering::Relaxed);
    }

    pub(in crate::queue) fn served(&self) -> Served {
        let read = |cells: &[AtomicU64; 2]| [0, 1].map(|of: usize| cells[of].load(Ordering::Relaxed));
        Served { operations: read(&self.0.operations), sectors: read(&self.0.sectors) }
    }

    pub(in crate::queue) fn outstanding(&self) -> u32 {
        self.0.outstanding.load(Ordering::Relaxed)
    }
}
