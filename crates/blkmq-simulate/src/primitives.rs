//! Locks, counters and queues by themselves, on the CPUs of a machine: what published benchmarks of such things ran.
//! They are here to hold the model of cache lines against measurements, and nothing of the block layer is in them.
//!
//! Every ordering here is `Relaxed`: memory on virtual CPUs is sequentially consistent, and these locks protect
//! nothing that is real.

mod combining;
mod counters;
mod flat;
mod heap;
mod sections;
mod small_locks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Cores, Ended, LockKind, Options, Random, place_at, run, sync, thread, time, work};

pub(crate) use counters::counter;
pub(crate) use heap::{Task, priority_queue};
pub(crate) use sections::{Operation, sections};
pub(crate) use small_locks::small_locks;

/// A value that begins at a cache line of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
struct OnLine<T>(T);

impl<T: Default> OnLine<T> {
    /// So many values, each on a line that is called `name`.
    fn vec(name: &'static str, nr: usize) -> Vec<Self> {
        let mut lines = Vec::new();
        lines.resize_with(nr, Self::default);
        lines.iter().for_each(|line| place_at(name, line));
        lines
    }
}

/// What a thread does again and again. It says whether the round counts.
pub(crate) type Round = Box<dyn FnMut() -> bool + Send>;

/// Makes the round of the thread with a number.
pub(crate) type MakeRound = Box<dyn FnMut(usize) -> Round>;

/// Threads that each do the same again and again, on the CPUs of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    /// The machine. Thread n runs on the CPU of that number.
    pub(crate) cores: Cores,
    /// The number from which everything else follows.
    pub(crate) seed: u64,
    /// The rounds of each thread, on average, that are measured, after half as many that are not.
    pub(crate) each: u64,
}

/// What the threads have done so far. It is no part of the machine.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Each thread acts on `shared` again and again, by its number. Every round counts.
fn each_acts<T: Send + Sync + 'static>(
    shared: sync::Arc<T>,
    act: impl Fn(&T, usize) + Clone + Send + 'static,
) -> MakeRound {
    Box::new(move |me| {
        let (shared, act) = (shared.clone(), act.clone());
        Box::new(move || {
            act(&shared, me);
            true
        })
    })
}

/// Adds one by compare-exchange.
fn add_by_cas(number: &sync::atomic::AtomicU64) {
    let mut seen = number.load(Ordering::Relaxed);
    while let Err(now) = number.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
        seen = now;
    }
}

impl Rounds {
    /// The same rounds on a machine whose mutexes are of this kind.
    fn with_locks(&self, locks: LockKind) -> Self {
        Self { cores: Cores { locks, ..self.cores.clone() }, ..self.clone() }
    }

    /// Runs so many threads, and returns the time for which all of them worked, divided by their rounds, in
    /// nanoseconds. `make` is called on the machine.
    ///
    /// # Panics
    /// If the threads wait for each other forever.
    pub(crate) fn ns_per_round(&self, threads: usize, make: impl FnOnce() -> MakeRound + Send + 'static) -> f64 {
        let rounds = self.each * threads as u64;
        let warm = rounds / 2;
        let progress = Arc::new(Progress::default());
        let cores = Cores { seed: self.seed, ..self.cores.clone() };
        let options = Options { cores: Some(cores), ..Options::default() };
        let (seed, kept) = (self.seed, Arc::clone(&progress));
        let main = move || {
            let (mut make, mut random) = (make(), Random::new(seed));
            let mut workers: Vec<_> = (0..threads)
                .map(|number| {
                    let (mut round, progress) = (make(number), Arc::clone(&kept));
                    // Threads of a real program do not begin at the same moment.
                    let delay = random.below(1_000_000);
                    move || {
                        work(delay);
                        while progress.ended.load(Ordering::Relaxed) == 0 {
                            if round() {
                                progress.count(warm, rounds);
                            }
                        }
                    }
                })
                .collect();
            let mut first = workers.remove(0);
            let others: Vec<_> = workers.into_iter().map(thread::spawn).collect();
            first();
            others.into_iter().for_each(|other| other.join().expect("a panic ends the run"));
        };
        let ended = run(Box::new(Uniform::new(Random::new(seed), 1)), options, main);
        assert_eq!(ended, Ended::Finished, "{threads} threads");
        let [begun, ended] = [&progress.begun, &progress.ended].map(|time| time.load(Ordering::Relaxed));
        (ended - begun) as f64 / rounds as f64
    }
}

impl Progress {
    /// A thread has done a round.
    fn count(&self, warm: u64, rounds: u64) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done == warm {
            self.begun.store(time::now(), Ordering::Relaxed);
        } else if done == warm + rounds {
            self.ended.store(time::now(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use blkmq_vcpu::cache::Distances;
    use blkmq_vcpu::{Cores, work};

    use super::combining::Chained;
    use super::flat::Flat;
    use super::{MakeRound, Rounds};

    /// What a lock protects: how often it was done for each thread, and how many are at it.
    #[derive(Debug, Default)]
    struct Protected {
        inside: AtomicU64,
        done: [AtomicU64; 8],
    }

    impl Protected {
        fn section(&self, thread: usize) {
            assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "two sections at a time");
            work(50_000);
            self.inside.fetch_sub(1, Ordering::Relaxed);
            self.done[thread].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs 8 threads, each of which has its section done again and again by `run`, and asserts that each one was done
    /// once, when it was asked for, and alone.
    fn check(run: impl FnOnce() -> Box<dyn Fn(usize, &Protected) + Send + Sync> + Send + 'static) {
        let rounds = Rounds { cores: Cores::new(Distances::new(8, |_, _| 70_000)), seed: 3, each: 200 };
        let ns = rounds.ns_per_round(8, move || -> MakeRound {
            let (run, protected) = (Arc::new(run()), Arc::new(Protected::default()));
            Box::new(move |me| {
                let (run, protected) = (Arc::clone(&run), Arc::clone(&protected));
                let mut asked = 0;
                Box::new(move || {
                    asked += 1;
                    run(me, &protected);
                    assert_eq!(protected.done[me].load(Ordering::Relaxed), asked, "thread {me}");
                    work(100_000);
                    true
                })
            })
        });
        assert!(ns >= 50.0, "{ns} ns for sections of 50 ns one after the other");
    }

    /// Red if a holder passes over a waiter, hands the lock to two, or lets go while it has some.
    #[test]
    fn a_chained_lock_does_each_section_once_and_alone() {
        for combines in [false, true] {
            check(move || {
                let lock = Chained::new(8, combines);
                Box::new(move |me, protected| lock.run(me, |thread| protected.section(thread), 0))
            });
        }
    }

    /// Red if a waiter goes before its section is done, or does what the holder has done.
    #[test]
    fn flat_combining_does_each_section_once_and_alone() {
        check(|| {
            let lock = Flat::new(8);
            Box::new(move |me, protected| lock.run(me, |thread| protected.section(thread), 0))
        });
    }
}
