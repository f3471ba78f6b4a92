//! Flat combining: each thread has a record in a list, says there what it wants, and tries to get the lock. The holder
//! looks at all records, and does what it finds. ("Flat Combining and the Synchronization-Parallelism Tradeoff", SPAA
//! 2010.)

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::sync::Arc;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_vcpu::{place_at, work};

use super::OnLine;

/// A holder that has done so many sections of others lets go, as in folly.
const MOST: usize = 100;

/// How long a waiter pauses between two polls of its record and of the lock.
const PAUSE: Picoseconds = 20_000;

/// The lock and the records.
#[derive(Debug)]
pub(super) struct Flat {
    lock: OnLine<AtomicU64>,
    /// By thread: whether it wants something.
    records: Vec<OnLine<AtomicU64>>,
}

impl Flat {
    /// For threads with numbers below `threads`.
    pub(super) fn new(threads: usize) -> Arc<Self> {
        let flat = Arc::new(Self { lock: OnLine::default(), records: OnLine::vec("flat.record", threads) });
        place_at("flat.lock", &flat.lock);
        flat
    }

    /// Thread `me` has its section done, by itself or by the holder. `section` does the section of the thread with
    /// that number. To do it for another thread takes `other` more.
    pub(super) fn run(&self, me: usize, mut section: impl FnMut(usize), other: Picoseconds) {
        let mine = &self.records[me].0;
        if self.try_lock() {
            section(me);
            return self.serve(me, section, other);
        }
        mine.store(1, Ordering::Relaxed);
        loop {
            if self.lock.0.load(Ordering::Relaxed) == 0 && self.try_lock() {
                if mine.load(Ordering::Relaxed) == 1 {
                    mine.store(0, Ordering::Relaxed);
                    section(me);
                }
                return self.serve(me, section, other);
            }
            if mine.load(Ordering::Relaxed) == 0 {
                return;
            }
            work(PAUSE);
        }
    }

    fn try_lock(&self) -> bool {
        self.lock.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Scans all records for requests until a scan finds none, or up to a bound. Then releases the lock.
    fn serve(&self, me: usize, mut section: impl FnMut(usize), other: Picoseconds) {
        let mut done = 0;
        loop {
            let before = done;
            for (number, record) in self.records.iter().enumerate() {
                if number != me && record.0.load(Ordering::Relaxed) == 1 {
                    work(other);
                    section(number);
                    record.0.store(0, Ordering::Relaxed);
                    done += 1;
                }
            }
            if done == before || done >= MOST {
                return self.lock.0.store(0, Ordering::Relaxed);
            }
        }
    }
}
