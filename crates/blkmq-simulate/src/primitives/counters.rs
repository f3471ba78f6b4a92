//! Threads that add to one counter.

use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_vcpu::sync::{Arc, Condvar, Mutex};
use blkmq_vcpu::{LockKind, place_at};

use super::{MakeRound, OnLine, Rounds, add_by_cas, each_acts};
use crate::published::CounterDesign;

/// A counter, alone or under a lock.
type Count = OnLine<AtomicU64>;

/// Adds one under a lock.
fn add(count: &Count) {
    count.0.store(count.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// How long all threads take for an addition of one of them, in nanoseconds. `None`: that design is not modelled.
pub(crate) fn counter(rounds: &Rounds, design: CounterDesign, threads: usize) -> Option<f64> {
    let locks = if design == CounterDesign::Ticket { LockKind::Ticket } else { LockKind::Futex };
    let make: fn() -> MakeRound = match design {
        CounterDesign::Add => || each_acts(counted(), |count, _| _ = count.0.fetch_add(1, Ordering::Relaxed)),
        CounterDesign::Cas => || each_acts(counted(), |count, _| add_by_cas(&count.0)),
        CounterDesign::Mutex | CounterDesign::Ticket => || {
            let lock = Arc::new(OnLine::<Mutex<Count>>::default());
            place_at("lock.word", &lock.0);
            place_at("count", &*lock.0.lock().expect("it does not poison"));
            each_acts(lock, |lock, _| add(&lock.0.lock().expect("it does not poison")))
        },
        CounterDesign::Fifo => || {
            each_acts(Fifo::new(), |lock, me| {
                lock.take(me);
                add(&lock.count);
                lock.let_go();
            })
        },
        CounterDesign::PauseSpin => return None,
    };
    Some(rounds.with_locks(locks).ns_per_round(threads, make))
}

fn counted() -> Arc<Count> {
    let count = Arc::new(Count::default());
    place_at("count", &*count);
    count
}

/// A lock that is handed to its waiters in turn. Each sleeps at a condition of its own.
#[repr(align(64))]
#[derive(Debug)]
struct Fifo {
    queue: Mutex<Vec<usize>>,
    count: Count,
    waiters: Vec<OnLine<Condvar>>,
}

impl Fifo {
    /// For any number of threads that a machine has.
    fn new() -> Arc<Self> {
        let waiters = OnLine::vec("lock.node", 512);
        let lock = Arc::new(Self { queue: Mutex::default(), count: Count::default(), waiters });
        place_at("lock.word", &lock.queue);
        place_at("count", &lock.count);
        lock
    }

    /// The first of the queue has the lock.
    fn take(&self, me: usize) {
        let mut queue = self.queue.lock().expect("it does not poison");
        queue.push(me);
        while queue.first() != Some(&me) {
            queue = self.waiters[me].0.wait(queue).expect("it does not poison");
        }
    }

    fn let_go(&self) {
        let mut queue = self.queue.lock().expect("it does not poison");
        queue.remove(0);
        if let Some(next) = queue.first() {
            self.waiters[*next].0.notify_one();
        }
    }
}
