//! folly's benchmark of small locks: a section that adds to a few lines, and an empty loop.

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_vcpu::sync::{Arc, Mutex};
use blkmq_vcpu::{LockKind, place_at, together, work};

use super::combining::Chained;
use super::flat::Flat;
use super::{OnLine, Round, Rounds, add_by_cas};
use crate::published::LockDesign;

/// What a holder does to take over the section of another thread: to call it, and to pass its result on.
const OTHER: Picoseconds = 5_000;

/// A lock for small sections.
#[derive(Debug, Clone)]
enum Lock {
    Mutex(Arc<OnLine<Mutex<()>>>),
    Chained(Arc<Chained>),
    Flat(Arc<Flat>),
    Free,
}

/// How long a thread takes for a round, in nanoseconds. `asked`: so many threads were asked for at each lock, of which
/// there are as many as the machine's CPUs allow. `outside`: the work between two sections.
pub(crate) fn small_locks(rounds: &Rounds, design: LockDesign, asked: usize, outside: Picoseconds) -> f64 {
    let cpus = rounds.cores.distances.nr_cpus();
    let running = cpus.max(asked);
    let nr_locks = (running / asked).max(1);
    let ns = rounds.with_locks(LockKind::Futex).ns_per_round(running, move || {
        let locks: Vec<_> = (0..nr_locks).map(|_| Protected::new(design, running)).collect();
        Box::new(move |me| locks[me % nr_locks].round(me, outside))
    });
    ns * running as f64
}

/// A lock with the lines that it protects.
#[derive(Debug, Clone)]
struct Protected {
    design: LockDesign,
    lock: Lock,
    numbers: Arc<Vec<OnLine<AtomicU64>>>,
}

impl Protected {
    fn new(design: LockDesign, threads: usize) -> Self {
        let numbers = Arc::new(OnLine::vec("number", design.lines()));
        let lock = match design {
            LockDesign::Mutex => {
                let lock = Arc::new(OnLine::default());
                place_at("lock.word", &lock.0);
                Lock::Mutex(lock)
            }
            LockDesign::Distributed => Lock::Chained(Chained::new(threads, false)),
            LockDesign::Combining => Lock::Chained(Chained::new(threads, true)),
            LockDesign::FlatCombining => Lock::Flat(Flat::new(threads)),
            LockDesign::Add | LockDesign::Xor | LockDesign::Cas => Lock::Free,
        };
        Self { design, lock, numbers }
    }

    fn round(&self, me: usize, outside: Picoseconds) -> Round {
        let Self { design, lock, numbers } = self.clone();
        // The lines do not depend on each other, so a core has all of them under way at once.
        let section = move || {
            together(|| numbers.iter().for_each(|number| _ = number.0.load(Ordering::Relaxed)));
            numbers.iter().for_each(|number| number.0.store(1, Ordering::Relaxed));
        };
        let numbers = Arc::clone(&self.numbers);
        let mut act: Box<dyn FnMut() + Send> = match lock {
            Lock::Mutex(lock) => Box::new(move || {
                let _held = lock.0.lock().expect("it does not poison");
                section();
            }),
            Lock::Chained(lock) => Box::new(move || lock.run(me, |_| section(), OTHER)),
            Lock::Flat(lock) => Box::new(move || lock.run(me, |_| section(), OTHER)),
            Lock::Free => Box::new(move || numbers.iter().for_each(|number| freely(design, &number.0))),
        };
        Box::new(move || {
            act();
            work(outside);
            true
        })
    }
}

/// Changes a number without a lock.
fn freely(design: LockDesign, number: &AtomicU64) {
    match design {
        LockDesign::Add => _ = number.fetch_add(1, Ordering::Relaxed),
        LockDesign::Xor => _ = number.fetch_xor(1, Ordering::Relaxed),
        _ => add_by_cas(number),
    }
}
