//! Locks on CPUs with clocks of their own: each kind lets one in at a time and loses none that waits, and costs what
//! such a lock costs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there and then, in its helpers too")]

use std::sync::Mutex as Plain;
use std::time::Duration;

use blkmq_vcpu::cache::{Costs, Distances, Picoseconds};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering::Relaxed};
use blkmq_vcpu::sync::{Arc, Condvar, Mutex};
use blkmq_vcpu::{
    Cores, CpuId, Ended, Kernel, LockKind, Options, Random, cpu, go_on_for, place_at, run, steps, thread, time, work,
};

const DISTANCE: Picoseconds = 70_000;
const ALL: [LockKind; 3] = [LockKind::Futex, LockKind::Queued, LockKind::Ticket];

fn kernel() -> Kernel {
    Kernel { spin: 500_000, call: 100_000, sleep: 1_000_000, wake: 2_000_000, wake_latency: 5_000_000, ..Kernel::FREE }
}

fn run_with(nr_cpus: u64, locks: LockKind, kernel: Kernel, main: impl FnOnce() + Send + 'static) -> Ended {
    let distances = Distances::new(nr_cpus as usize, |_, _| DISTANCE);
    let cores = Some(Cores { locks, kernel, ..Cores::new(distances) });
    let main = || {
        // More than any test here needs, so that a lock that is waited for in vain ends the run.
        go_on_for(2_000_000);
        main();
    };
    run(Box::new(Uniform::new(Random::new(1), 1)), Options { cores, ..Options::default() }, main)
}

/// Runs `body` on each of so many CPUs with what they share, beside the CPU that waits for them.
fn each<T: Send + Sync + 'static>(nr: u64, shared: &Arc<T>, body: fn(u64, &T)) {
    let threads = (0..nr).map(|number| {
        let shared = shared.clone();
        thread::spawn(move || body(number, &shared))
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A lock on lines of its own. Without these, it would cost nothing to pass it on.
#[repr(align(64))]
pub(crate) struct Alone<T>(Mutex<T>);

impl<T> Alone<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn get(&self) -> &Mutex<T> {
        place_at("lock", self);
        &self.0
    }
}

/// Red if a try takes a lock for which others queue, if two CPUs may be the first in a queue, or if a CPU is forgotten:
/// because a sleeper that was woken does not mark the lock again, or because a write is not told to those that look.
#[test]
fn each_lock_lets_one_in_at_a_time_and_none_waits_for_ever() {
    for (locks, seed) in ALL.into_iter().flat_map(|locks| (0..80).map(move |seed| (locks, seed))) {
        // In half of the runs threads are interrupted wherever they are.
        let kernel = Kernel { slice: 10_000_000, ..kernel() };
        let ended = run_with([3, 8][seed as usize / 2 % 2], locks, kernel, move || {
            // In half of the runs the CPUs are at the lock nearly all the time.
            let pace = [150_000, 1_500_000][seed as usize % 2];
            let shared = Arc::new((Alone::new(0), AtomicU64::new(0), AtomicU64::new(0), (seed, pace)));
            each(7, &shared, |number, (lock, inside, taken, (seed, pace))| {
                let mut random = Random::new(seed * 100 + number);
                for _ in 0..40 {
                    work(random.below(2 * pace));
                    let guard = match random.below(4) {
                        0 => lock.get().try_lock().ok(),
                        _ => Some(lock.get().lock().unwrap()),
                    };
                    let Some(mut count) = guard else { continue };
                    assert_eq!(inside.swap(1, Relaxed), 0);
                    taken.fetch_add(1, Relaxed);
                    work(random.below(3) * pace / 3);
                    if random.below(10) == 0 {
                        thread::sleep(Duration::from_micros(20));
                    }
                    inside.store(0, Relaxed);
                    *count += 1;
                }
            });
            assert_eq!(*shared.0.get().lock().unwrap(), shared.2.load(Relaxed));
        });
        assert_eq!(ended, Ended::Finished, "{locks:?} {seed}");
    }
}

/// The order in which so many CPUs get a lock for which they come one by one, at this distance, and when each has it.
/// They hold it for so long, and at first it is held for `wait`.
fn order(nr: u64, locks: LockKind, [apart, hold, wait]: [Picoseconds; 3]) -> Vec<(CpuId, Picoseconds)> {
    let order = Arc::new(Plain::new(Vec::new()));
    let says = order.clone();
    let ended = run_with(nr + 1, locks, kernel(), move || {
        let shared = Arc::new((Alone::new(()), says));
        let guard = shared.0.get().lock().unwrap();
        let threads = (0..nr).map(|number| {
            let shared = shared.clone();
            thread::spawn(move || {
                work(number * apart);
                let guard = shared.0.get().lock().unwrap();
                shared.1.lock().unwrap().push((cpu(), time::now() * 1000));
                work(hold);
                drop(guard);
            })
        });
        let threads: Vec<_> = threads.collect();
        work(wait);
        drop(guard);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(ended, Ended::Finished);
    std::mem::take(&mut *order.lock().unwrap())
}

/// Red if a CPU that comes while another one is on its way to the lock takes it first.
#[test]
fn queued_and_ticket_locks_serve_in_the_order_of_arrival() {
    let check = |locks, times| {
        let order: Vec<_> = order(40, locks, times).into_iter().map(|(cpu, _)| cpu).collect();
        assert!(order.iter().copied().eq(1..=40), "{locks:?} {times:?}: {order:?}");
    };
    [LockKind::Queued, LockKind::Ticket].into_iter().for_each(|locks| check(locks, [1_000_000, 300_000, 50_000_000]));
    // They come while others let go. A CPU has its place in a queue only after a few operations, and its number after
    // one, for which it may have to wait until all others have looked.
    (1..20).for_each(|nth| check(LockKind::Ticket, [1_000_000, nth * 100_000, 20_000_000]));
}

/// How long it takes on average to pass a lock on, while half to all of so many CPUs wait for it.
fn hand_off(nr: u64, locks: LockKind) -> Picoseconds {
    let order = order(nr, locks, [1_000_000, 0, 100_000_000]);
    // The first one waits in another way than the others.
    let (first, last) = (2, order.len() / 2);
    (order[last].1 - order[first].1) / (last - first) as u64
}

/// Red if waiters of a queued lock look at a line that others write, or if those of a ticket lock do not all read the
/// line again whenever it is written.
#[test]
fn to_pass_on_a_lock_costs_the_same_in_a_queue_and_more_with_each_that_looks() {
    let [few, some, many] = [8, 24, 72].map(|nr| hand_off(nr, LockKind::Queued));
    assert!(few.abs_diff(many) * 50 < few && few.abs_diff(some) * 50 < few, "{few} {some} {many}");
    // What the holder writes goes to the first in the queue, which takes the line for itself.
    assert!((3 * DISTANCE..6 * DISTANCE).contains(&few), "{few}");
    let [few, some, many] = [8, 24, 72].map(|nr| hand_off(nr, LockKind::Ticket));
    let share = Costs::default().share;
    // On average over the first half three quarters of them wait, each of which reads the line, half of these before
    // the one whose turn it is.
    let grows = |nr: u64| nr * 3 / 4 * share / 2;
    assert!(few < some && (many - some).abs_diff(grows(48)) < grows(48) / 4, "{few} {some} {many}");
}

/// Red if a CPU that looks at a lock of its own kind sleeps although the lock is let go soon, if a sleeper or the CPU
/// that wakes it does not pay for it, or if a sleeper is woken that has not slept.
#[test]
fn a_lock_that_sleeps_is_looked_at_first_and_then_slept_for_at_a_price() {
    let Kernel { spin, sleep, wake, wake_latency, .. } = kernel();
    let ended = run_with(1, LockKind::Futex, Kernel { wake_latency: 0, ..kernel() }, move || {
        thread::sleep(Duration::ZERO);
        assert_eq!(time::now() * 1000, sleep);
    });
    assert_eq!(ended, Ended::Finished);
    for (hold, is_slept_for) in [(spin / 2, false), (spin * 2, true), (spin + sleep * 2, true)] {
        let ended = run_with(2, LockKind::Futex, kernel(), move || {
            let lock = Arc::new(Alone::new(()));
            let guard = lock.get().lock().unwrap();
            let theirs = lock.clone();
            let other = thread::spawn(move || {
                drop(theirs.get().lock().unwrap());
                time::now() * 1000
            });
            work(hold);
            let let_go = time::now() * 1000;
            drop(guard);
            let done = time::now() * 1000;
            let took = other.join().unwrap() - let_go;
            if is_slept_for {
                assert!((wake..wake + 4 * DISTANCE).contains(&(done - let_go)), "{done} {let_go}");
                assert!((wake_latency..wake_latency + 8 * DISTANCE).contains(&took), "{took}");
            } else {
                assert!(done - let_go < 4 * DISTANCE && took < 8 * DISTANCE, "{done} {let_go} {took}");
            }
        });
        assert_eq!(ended, Ended::Finished);
    }
}

/// Red if the lock of `std` is passed on to the sleeper that is woken: a CPU that comes meanwhile takes it.
#[test]
fn a_lock_that_sleeps_is_taken_by_the_cpu_that_is_there() {
    let ended = run_with(3, LockKind::Futex, kernel(), || {
        let shared = Arc::new((Alone::new(()), Plain::new(Vec::new())));
        let guard = shared.0.get().lock().unwrap();
        let [first, second] = [0, 11_000_000].map(|after| {
            let shared = shared.clone();
            thread::spawn(move || {
                work(after);
                let _guard = shared.0.get().lock().unwrap();
                shared.1.lock().unwrap().push(cpu());
            })
        });
        work(10_000_000);
        drop(guard);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(*shared.1.lock().unwrap(), [2, 1]);
    });
    assert_eq!(ended, Ended::Finished);
}

/// Red if a CPU that looks at a value misses a write, whether to the value or to what lies beside it, and whether or
/// not anything of it has a name when the CPU begins to look; or if it looks again and again meanwhile.
#[test]
fn a_cpu_that_spins_looks_again_when_the_line_is_written() {
    for (name_after, expected) in [(0, 4), (5_000_000, 4), (50_000_000, 3)] {
        let ended = run_with(3, LockKind::Futex, kernel(), move || {
            let pair = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let looks = Arc::new(AtomicU64::new(0));
            let (theirs, counts) = (pair.clone(), looks.clone());
            let spins = thread::spawn(move || {
                let seen = theirs[0].spin_while(Relaxed, |value| {
                    blkmq_vcpu::uninterrupted(|| counts.fetch_add(1, Relaxed));
                    value < 2
                });
                (seen, time::now())
            });
            let theirs = pair.clone();
            let names = thread::spawn(move || {
                work(name_after);
                place_at("pair", &*theirs);
                work(1);
            });
            let before = steps();
            [0, 1, 0].into_iter().for_each(|at| {
                work(20_000_000);
                pair[at].fetch_add(1, Relaxed);
            });
            let (seen, at) = spins.join().unwrap();
            names.join().unwrap();
            assert_eq!(seen, 2);
            assert!((60_000..61_000).contains(&at), "{at}");
            // At first, and after each write to the line; one beside a value without a name is to another line.
            assert_eq!(looks.load(Relaxed), expected);
            assert!(steps() - before < 30);
        });
        assert_eq!(ended, Ended::Finished);
    }
}

/// Red if `spin_while` needs clocks: it works with a schedule, and outside of a run.
#[test]
fn spinning_needs_no_clocks() {
    let ended = run(Box::new(Uniform::new(Random::new(3), 2)), Options::default(), || {
        let value = Arc::new(AtomicU64::new(0));
        let theirs = value.clone();
        let spins = thread::spawn(move || theirs.spin_while(Relaxed, |value| value == 0));
        value.store(7, Relaxed);
        assert_eq!(spins.join().unwrap(), 7);
    });
    assert_eq!(ended, Ended::Finished);
    let value = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| value.store(7, Relaxed));
        assert_eq!(value.spin_while(Relaxed, |value| value == 0), 7);
    });
}

/// Red if a CPU that looks in vain counts as one that can go on.
#[test]
fn cpus_that_look_in_vain_are_named() {
    let ended = run_with(1, LockKind::Ticket, kernel(), || {
        AtomicU64::new(0).spin_while(Relaxed, |value| value == 0);
    });
    assert_eq!(ended, Ended::Deadlock { waiting: vec!["main".to_owned()] });
}

/// Red if a condition variable costs its waiter or the CPU that notifies nothing, or if one without a waiter wakes.
#[test]
fn to_wait_for_a_notification_and_to_notify_cost_what_the_system_takes() {
    let Kernel { call, wake, wake_latency, .. } = kernel();
    let ended = run_with(2, LockKind::Futex, kernel(), move || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = pair.clone();
        let other = thread::spawn(move || {
            let mut is_told = theirs.0.lock().unwrap();
            while !*is_told {
                is_told = theirs.1.wait(is_told).unwrap();
            }
            time::now() * 1000
        });
        work(20_000_000);
        *pair.0.lock().unwrap() = true;
        let before = time::now() * 1000;
        pair.1.notify_one();
        let after = time::now() * 1000;
        pair.1.notify_all();
        assert_eq!([after - before, time::now() * 1000 - after], [wake, call]);
        let woken = other.join().unwrap() - before;
        assert!((wake_latency..wake_latency + 20_000).contains(&woken), "{woken}");
    });
    assert_eq!(ended, Ended::Finished);
}

/// Red if what is known of a lock lies in the lock: what it protects would have other lines than in a product.
#[test]
fn a_lock_is_as_large_as_that_of_std() {
    assert_eq!(size_of::<Mutex<[u64; 7]>>(), size_of::<Plain<[u64; 7]>>());
    assert_eq!(size_of::<Condvar>(), size_of::<std::sync::Condvar>());
}
