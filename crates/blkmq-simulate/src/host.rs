//! What accesses to cache lines cost on the machine that this runs on: the machine `two-core`.

use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use blkmq_vcpu::cache::{Costs, Distances, Picoseconds};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Runs whose median is taken. A run is much shorter than the time for which a thread has a processor, so that the
/// runs in which another program took it are few.
const RUNS: usize = 101;

/// How many rounds a run has in which two threads pass a line to and fro, and how many operations any other run has.
const ROUNDS: u64 = 1000;
const OPERATIONS: u32 = 10_000;

/// The most CPUs whose distances are measured.
const MOST_CPUS: usize = 16;

/// A machine as it was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Host {
    pub(crate) distances: Distances,
    pub(crate) costs: Costs,
}

/// A value alone on its lines, of which processors may fetch two at once.
#[repr(align(128))]
struct Alone<T>(T);

fn not_pinned(error: Errno) -> String {
    format!("the system lets no thread stay on a CPU: {error}")
}

/// Measures the CPUs that this process may use.
///
/// # Errors
/// These are fewer than two, or the system does not let a thread stay on a CPU.
pub(crate) fn measure() -> Result<Host, String> {
    let allowed = sched_getaffinity(None).map_err(not_pinned)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).take(MOST_CPUS).collect();
    if cpus.len() < 2 {
        return Err(format!("this process may use {} CPU; to be measured, a machine needs two", cpus.len()));
    }
    // On a thread of its own, since a thread that was put on a CPU stays there.
    let costs = thread::scope(|scope| scope.spawn(|| pin(cpus[0]).map(|()| own())).join());
    let costs = costs.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let mut failed = None;
    let distances = Distances::new(cpus.len(), |high, low| {
        between(cpus[high], cpus[low]).unwrap_or_else(|error| {
            failed = Some(error);
            1
        })
    });
    failed.map_or(Ok(Host { distances, costs }), Err)
}

fn pin(cpu: usize) -> Result<(), String> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).map_err(not_pinned)
}

fn median(mut runs: Vec<Picoseconds>) -> Picoseconds {
    runs.sort_unstable();
    runs[runs.len() / 2].max(1)
}

fn each(elapsed: Duration, operations: u64) -> Picoseconds {
    (elapsed.as_nanos() as u64 * 1000).div_ceil(operations)
}

/// What operations on a line of the CPU's own cost.
fn own() -> Costs {
    let cell = Alone(AtomicU64::new(0));
    let next = Alone([const { AtomicUsize::new(0) }; 2]);
    let run = |operation: &dyn Fn(u32)| {
        let runs = (0..RUNS).map(|_| {
            let began = Instant::now();
            operation(OPERATIONS);
            each(began.elapsed(), OPERATIONS.into())
        });
        median(runs.collect())
    };
    let (cell, next) = (black_box(&cell), black_box(&next));
    let hit = run(&|operations| {
        // Each load tells where the next one is.
        black_box((0..operations).fold(0, |at, _| next.0[at].load(Ordering::Relaxed)));
    });
    let update = run(&|operations| (0..operations).for_each(|_| _ = cell.0.fetch_add(1, Ordering::Relaxed)));
    let store = run(&|operations| (0..operations).for_each(|at| cell.0.store(at.into(), Ordering::Relaxed)));
    let fence = run(&|operations| {
        for at in 0..operations {
            // What a full fence costs is measured. Nothing is ordered by it.
            fence(Ordering::SeqCst);
            // Fences behind each other would become one.
            black_box(at);
        }
    });
    Costs { hit, update, store, fence, ..Costs::default() }
}

/// How long a line takes from one CPU to the other: both change it in turn by compare-exchange.
fn between(one: usize, other: usize) -> Result<Picoseconds, String> {
    let turn = Alone(AtomicU64::new(0));
    let (turn, barrier, is_over) = (black_box(&turn), Barrier::new(2), AtomicBool::new(false));
    let pass = |mine: u64| {
        for _ in 0..ROUNDS {
            while turn.0.compare_exchange(mine, 1 - mine, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                spin_loop();
            }
        }
    };
    thread::scope(|scope| {
        let partner = scope.spawn(|| {
            let pinned = pin(other);
            is_over.store(pinned.is_err(), Ordering::Relaxed);
            barrier.wait();
            if pinned.is_ok() {
                (0..RUNS).for_each(|_| pass(1));
            }
            pinned
        });
        let measuring = scope.spawn(|| {
            let pinned = pin(one);
            barrier.wait();
            let mut runs = vec![0; RUNS];
            if !is_over.load(Ordering::Relaxed) {
                for run in &mut runs {
                    let began = Instant::now();
                    pass(0);
                    *run = each(began.elapsed(), 2 * ROUNDS);
                }
            }
            pinned.map(|()| median(runs))
        });
        let [partner, measured] = [partner.join().map(|done| done.map(|()| 0)), measuring.join()];
        let or_panic = |joined: thread::Result<_>| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        or_panic(partner)?;
        or_panic(measured)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the line does not move between the two threads, so that it seems to be no farther than an own line is; or
    /// if what is measured is not what each cost stands for.
    #[test]
    fn a_line_of_another_cpu_is_farther_than_an_own_one() {
        let Host { distances, costs } = match measure() {
            Ok(host) => host,
            Err(error) if error.ends_with("a machine needs two") => return println!("SKIP {error}"),
            Err(error) => panic!("{error}"),
        };
        let Costs { hit, update, store, fence, .. } = costs;
        assert!(
            distances.between(0, 1) > update && update > store && fence > store && hit > 0,
            "{distances:?} {costs:?}"
        );
    }
}
