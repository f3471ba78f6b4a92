//! How far a run has come, for a thread that watches the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The progress of a run. Any thread may read it at any time without slowing the run down.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Vec<Arc<Cell>>>);

/// The progress of a run at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Snapshot {
    /// Operations that completed, those of `ramp_time` included.
    pub ios: u64,
    /// Their data.
    pub bytes: u64,
    /// Threads, or tasks on a virtual clock, that have begun and not ended.
    pub running: usize,
    /// The part of the run that is done, from 0 to 1, as far as it is known.
    pub fraction: f64,
}

/// The progress of one thread, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Cell {
    ios: AtomicU64,
    bytes: AtomicU64,
    /// The part that is done, in millionths. [`ENDED`] if the thread has ended.
    millionths: AtomicU64,
}

/// A number above all values for a thread that works.
const ENDED: u64 = 1_000_001;

impl Progress {
    /// Begins anew with so many cells.
    pub(super) fn begin(&self, nr: usize) -> Vec<Arc<Cell>> {
        let cells: Vec<Arc<Cell>> = (0..nr).map(|_| Arc::default()).collect();
        (*self.0.lock().unwrap_or_else(PoisonError::into_inner)).clone_from(&cells);
        cells
    }

    /// How far the run has come now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = Snapshot::default();
        let mut millionths = 0;
        for cell in cells.iter() {
            let done = cell.millionths.load(Ordering::Relaxed);
            snapshot.ios += cell.ios.load(Ordering::Relaxed);
            snapshot.bytes += cell.bytes.load(Ordering::Relaxed);
            snapshot.running += usize::from(done != ENDED && done != 0);
            millionths += done.min(1_000_000);
        }
        snapshot.fraction = millionths as f64 / (cells.len().max(1) as f64 * 1e6);
        snapshot
    }
}

impl Cell {
    /// Reports the progress. COST: three stores of the thread's own line, every few hundred requests.
    pub(super) fn report(&self, ios: u64, bytes: u64, fraction: f64) {
        self.ios.store(ios, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        let millionths = (fraction.clamp(0.0, 1.0) * 1e6) as u64;
        self.millionths.store(millionths.max(1), Ordering::Relaxed);
    }

    /// The thread has ended.
    pub(super) fn end(&self, ios: u64, bytes: u64) {
        self.report(ios, bytes, 1.0);
        self.millionths.store(ENDED, Ordering::Relaxed);
    }
}
