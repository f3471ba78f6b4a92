//! Threads of a kernel that all take one lock: what a benchmark of system calls comes to, whose lock limits it.

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_vcpu::sync::{Arc, Mutex};
use blkmq_vcpu::{LockKind, place_at, together, work};

use super::combining::Chained;
use super::{OnLine, Rounds, each_acts};
use crate::published::KernelLocks;

/// Lines that the lock protects and that each holder changes.
const LINES: usize = 3;

/// Lines of a thread's own that its section reads and changes: its stack and its arguments. A combiner has to fetch
/// them.
const OWN_LINES: usize = 2;

/// What a combiner does to go over to another thread's section and back, beside fetching its lines: it saves and loads
/// registers, and returns to another stack.
const OTHER: Picoseconds = 40_000;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    /// How often it takes the lock.
    pub(crate) holds: u32,
    /// Its work while it holds the lock, each time, beside the lines.
    pub(crate) inside: Picoseconds,
    /// Its other work.
    pub(crate) outside: Picoseconds,
}

#[derive(Debug)]
struct Lines {
    shared: Vec<OnLine<AtomicU64>>,
    own: Vec<Vec<OnLine<AtomicU64>>>,
}

impl Lines {
    fn new(threads: usize) -> Self {
        let own = (0..threads).map(|_| OnLine::vec("thread.stack", OWN_LINES)).collect();
        Self { shared: OnLine::vec("lock.data", LINES), own }
    }

    /// The section of a thread.
    fn section(&self, thread: usize, inside: Picoseconds) {
        let all = || self.shared.iter().chain(&self.own[thread]);
        together(|| all().for_each(|number| _ = number.0.load(Ordering::Relaxed)));
        work(inside);
        all().for_each(|number| number.0.store(1, Ordering::Relaxed));
    }
}

/// Nanoseconds of all threads for an operation.
pub(crate) fn sections(rounds: &Rounds, locks: KernelLocks, operation: Operation, threads: usize) -> f64 {
    rounds.with_locks(LockKind::Queued).ns_per_round(threads, move || {
        let lines = Arc::new(Lines::new(threads));
        let hold: Box<dyn Fn(usize) + Send + Sync> = match locks {
            KernelLocks::Queued => {
                let lock = Arc::new(OnLine::<Mutex<()>>::default());
                place_at("lock.word", &lock.0);
                Box::new(move |me| {
                    let _held = lock.0.lock().expect("it does not poison");
                    lines.section(me, operation.inside);
                })
            }
            KernelLocks::Combining => {
                let lock = Chained::new(threads, true);
                Box::new(move |me| lock.run(me, |thread| lines.section(thread, operation.inside), OTHER))
            }
        };
        each_acts(Arc::new(hold), move |hold, me| {
            (0..operation.holds).for_each(|_| hold(me));
            work(operation.outside);
        })
    })
}
