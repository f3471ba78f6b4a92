//! More threads than CPUs: threads of one CPU take turns, and pay for it. Two CPUs of one core slow each other down.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there and then, in its helpers too")]

use std::sync::Mutex as Plain;
use std::time::Duration;

use blkmq_vcpu::cache::{Distances, Picoseconds};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::sync::Arc;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering::Relaxed};
use blkmq_vcpu::{
    Accessed, Cores, CpuId, Ended, Kernel, LockKind, Options, Random, Smt, go_on_for, run, steps, thread, time, work,
};

use crate::locks::Alone;

const MS: Picoseconds = 1_000_000_000;
const SWITCH: Picoseconds = 2_000_000;
const SLICE: Picoseconds = 3 * MS;

/// CPUs on which only switches cost something, and that threads get as `fill` says.
fn cores(nr_cpus: usize, fill: &[usize]) -> Cores {
    let kernel = Kernel { switch: SWITCH, slice: SLICE, ..Kernel::FREE };
    Cores { kernel, fill: fill.to_vec(), ..Cores::new(Distances::new(nr_cpus, |_, _| 70_000)) }
}

fn run_on(cores: Cores, main: impl FnOnce() + Send + 'static) -> Ended {
    let main = || {
        // More than any test here needs.
        go_on_for(3_000_000);
        main();
    };
    run(Box::new(Uniform::new(Random::new(1), 1)), Options { cores: Some(cores), ..Options::default() }, main)
}

fn now() -> Picoseconds {
    time::now() * 1000
}

/// When each of several threads is done that all begin at 0.
fn ends<const N: usize>(cores: Cores, bodies: [Box<dyn FnOnce() + Send>; N]) -> [Picoseconds; N] {
    let ends = Arc::new(Plain::new([0; N]));
    let says = ends.clone();
    let ended = run_on(cores, move || {
        let threads = bodies.map(|body| {
            thread::spawn(move || {
                body();
                now()
            })
        });
        *says.lock().unwrap() = threads.map(|thread| thread.join().unwrap());
    });
    assert_eq!(ended, Ended::Finished);
    let ends = ends.lock().unwrap();
    *ends
}

/// So much private work, in pieces.
fn works(time: Picoseconds, piece: Picoseconds) -> Box<dyn FnOnce() + Send> {
    Box::new(move || (0..time / piece).for_each(|_| work(piece)))
}

/// Red if a thread keeps its CPU while another one waits for it, also in the middle of long work, or if a switch costs
/// nothing.
#[test]
fn threads_of_a_cpu_take_turns_and_pay_for_it() {
    for piece in [1_000_000, 10 * MS] {
        let [first, second] = ends(cores(2, &[0, 1, 1]), [works(10 * MS, piece), works(10 * MS, piece)]);
        // Slices of 3, 3, 3 and 1 ms each, in turn.
        assert_eq!([first, second], [19 * MS + 6 * SWITCH, 20 * MS + 7 * SWITCH]);
    }
    // One that has nobody to share with is not interrupted.
    assert_eq!(ends(cores(2, &[0, 1, 0]), [works(10 * MS, MS)]), [10 * MS]);
}

#[test]
fn work_is_shared_fairly() {
    let ends = ends(cores(3, &[0, 1, 1, 1, 2, 2]), [20, 20, 20, 30, 30].map(|ms| works(ms * MS, 100_000)));
    let spread = |ends: &[Picoseconds]| ends.iter().max().unwrap() - ends.iter().min().unwrap();
    assert!(spread(&ends[..3]) <= 2 * (SLICE + SWITCH) && spread(&ends[3..]) <= SLICE + SWITCH, "{ends:?}");
    assert!(ends.iter().all(|end| (54 * MS..62 * MS).contains(end)), "{ends:?}");
}

/// Red if a thread that sleeps keeps its CPU, if one that has been woken takes it at once, or if it does not get it
/// when the slice of the other one is over.
#[test]
fn a_thread_that_sleeps_does_not_hold_its_cpu() {
    let sleeps = |ms| -> Box<dyn FnOnce() + Send> { Box::new(move || thread::sleep(Duration::from_millis(ms))) };
    let [sleeper, worker] = ends(cores(2, &[0, 1, 1]), [sleeps(10), works(5 * MS, 5 * MS)]);
    // The worker comes to a CPU that is free already.
    assert_eq!([sleeper, worker], [10 * MS, 5 * MS]);
    let [worker, sleeper] = ends(cores(2, &[0, 1, 1]), [works(20 * MS, 20 * MS), sleeps(1)]);
    // The worker has the CPU first. So the sleeper falls asleep after a slice, and wakes in the second one.
    assert_eq!(sleeper, 2 * SLICE + 3 * SWITCH);
    assert_eq!(worker, 20 * MS + 4 * SWITCH);
}

/// Red if a thread that spins keeps its CPU for good from the thread for which it spins, or if a write is lost that
/// comes while the spinning thread does not have its CPU.
#[test]
fn a_thread_that_spins_loses_its_cpu_after_its_slice() {
    let value = Arc::new(AtomicU64::new(0));
    let theirs = value.clone();
    let spins = Box::new(move || _ = theirs.spin_while(Relaxed, |value| value == 0));
    let writes = Box::new(move || {
        value.fetch_add(1, Relaxed);
        work(MS);
    });
    let [spins, writes] = ends(cores(2, &[0, 1, 1]), [spins, writes]);
    assert_eq!(writes / 1_000_000, (SLICE + SWITCH + MS) / 1_000_000);
    assert!((writes + SWITCH..writes + 2 * SWITCH).contains(&spins), "{spins} {writes}");
}

#[test]
fn threads_that_spin_in_turns_for_ever_wait_for_each_other() {
    let ended = run_on(cores(1, &[0]), || {
        let value = Arc::new(AtomicU64::new(0));
        let theirs = value.clone();
        thread::spawn_named("other".to_owned(), move || theirs.spin_while(Relaxed, |value| value == 0));
        value.spin_while(Relaxed, |value| value == 0);
    });
    assert_eq!(ended, Ended::Deadlock { waiting: vec!["main".to_owned(), "other".to_owned()] });
}

/// Red if a thread that yields goes on although another one waits, or if yielding alone costs a switch.
#[test]
fn a_thread_that_yields_lets_another_one_go_on_if_one_waits() {
    let yields = Kernel::FREE.yields;
    let yielder = || -> Box<dyn FnOnce() + Send> {
        Box::new(move || {
            for _ in 0..10 {
                work(MS / 10);
                thread::yield_now();
            }
        })
    };
    assert_eq!(ends(cores(2, &[0, 1]), [yielder()]), [MS + 10 * yields]);
    let [first, second] = ends(cores(2, &[0, 1, 1]), [yielder(), yielder()]);
    assert_eq!(first, 2 * MS + 20 * (yields + SWITCH));
    assert_eq!(second, first + SWITCH);
}

/// How long so many threads on four CPUs take for so many holds of a lock.
fn holds(nr_threads: u64, locks: LockKind) -> Picoseconds {
    const HOLDS: u64 = 30_000;
    let took = Arc::new(Plain::new(0));
    let says = took.clone();
    // The first thread only waits for the others. Slices are so short that some end while a thread waits for the lock.
    let kernel = Kernel { slice: 300_000_000, ..Kernel::default() };
    let cores = Cores { locks, kernel, ..cores(4, &[0, 0, 1, 2, 3]) };
    let ended = run_on(cores, move || {
        let lock = Arc::new(Alone::new(0));
        let threads = (0..nr_threads).map(|_| {
            let lock = lock.clone();
            thread::spawn(move || {
                for _ in 0..HOLDS / nr_threads {
                    let mut count = lock.get().lock().unwrap();
                    *count += 1;
                    work(200_000);
                    drop(count);
                    work(1_000_000);
                }
                now()
            })
        });
        let threads: Vec<_> = threads.collect();
        let last = threads.into_iter().map(|thread| thread.join().unwrap()).max();
        assert_eq!(*lock.get().lock().unwrap(), HOLDS);
        *says.lock().unwrap() = last.unwrap();
    });
    assert_eq!(ended, Ended::Finished);
    let took = took.lock().unwrap();
    *took
}

/// Red if the holder of a lock, or the thread whose turn it is, is never without a CPU: then one thread more than CPUs
/// costs a ticket lock next to nothing. Or if a lock that sleeps waits for one that has no CPU.
#[test]
fn with_one_thread_more_than_cpus_a_ticket_lock_collapses_and_one_that_sleeps_does_not() {
    for (locks, collapses) in [(LockKind::Ticket, true), (LockKind::Queued, true), (LockKind::Futex, false)] {
        let [four, five] = [4, 5].map(|nr_threads| holds(nr_threads, locks));
        assert_eq!(five > 5 * four, collapses, "{locks:?}: {four} {five}");
        assert_eq!(five < 2 * four, !collapses, "{locks:?}: {four} {five}");
    }
}

/// Red if two CPUs of a core are as fast as one alone, if the speed of work that is under way does not change when the
/// other CPU begins or ends, or if another core's CPUs matter.
#[test]
fn two_cpus_of_a_core_slow_each_other_down() {
    let apart = |apart, fill: &[usize]| Cores { smt: Some(Smt { apart, percent: 165 }), ..cores(6, fill) };
    let smt = |fill: &[usize]| apart(1, fill);
    let both = || [works(10 * MS, 10 * MS), works(10 * MS, 10 * MS)];
    assert_eq!(ends(smt(&[0, 2, 3]), both()), [16_500 * MS / 1000; 2]);
    assert_eq!(ends(smt(&[0, 2, 4]), both()), [10 * MS; 2]);
    assert_eq!(ends(apart(3, &[0, 2, 5]), both()), [16_500 * MS / 1000; 2]);
    assert_eq!(ends(apart(3, &[0, 2, 4]), both()), [10 * MS; 2]);
    assert_eq!(ends(cores(6, &[0, 2, 3]), both()), [10 * MS; 2]);
    // The same with accesses to lines of a thread's own.
    let looks = || -> Box<dyn FnOnce() + Send> {
        let value = AtomicU64::new(0);
        Box::new(move || (0..100_000).for_each(|_| _ = value.fetch_add(1, Relaxed)))
    };
    let [alone, beside] = [[0, 2, 4], [0, 2, 3]].map(|fill| ends(smt(&fill), [looks(), looks()])[0]);
    assert!(beside.abs_diff(alone * 165 / 100) < alone / 1000, "{beside} ps, alone {alone} ps");
    // Four ms alone, then 6 ms beside the other one, which has done 6 of 20 ms then.
    let late = || -> Box<dyn FnOnce() + Send> {
        Box::new(|| {
            thread::sleep(Duration::from_millis(4));
            work(20 * MS);
        })
    };
    let [early, late] = ends(smt(&[0, 2, 3]), [works(10 * MS, 10 * MS), late()]);
    assert_eq!([early, late], [13_900 * MS / 1000, 27_900 * MS / 1000]);
}

/// An operation: thread, whether on a line with a name, and when it ended.
type Operation = (CpuId, bool, Picoseconds);

/// What happened in a run of nine threads on two cores of two CPUs each: operations, and steps with their times.
fn story(seed: u64, locks: LockKind) -> (Vec<Operation>, Vec<(u64, u64)>) {
    let (told, stamps) = (Arc::new(Plain::new(Vec::new())), Arc::new(Plain::new(Vec::new())));
    let (says, stamp) = (told.clone(), stamps.clone());
    let on_access = Box::new(move |Accessed { cpu, line, cost, .. }: Accessed| {
        says.lock().unwrap().push((cpu, line.is_some(), cost.unwrap().done));
    });
    let kernel = Kernel {
        spin: 2_000_000,
        call: 300_000,
        sleep: 1_500_000,
        wake: 1_500_000,
        wake_latency: 5_000_000,
        yields: 800_000,
        switch: SWITCH,
        slice: 20_000_000,
    };
    let cores = Cores { locks, kernel, smt: Some(Smt { apart: 1, percent: 165 }), ..cores(4, &[0, 1, 2, 3]) };
    let options = Options { cores: Some(cores), on_access: Some(on_access), ..Options::default() };
    let ended = run(Box::new(Uniform::new(Random::new(1), 1)), options, move || {
        let shared = Arc::new((Alone::new(0), AtomicU64::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (shared, stamp) = (shared.clone(), stamp.clone());
                thread::spawn(move || {
                    let mut random = Random::new(seed + number);
                    for _ in 0..50 {
                        match random.below(6) {
                            0 => *shared.0.get().lock().unwrap() += 1,
                            1 => thread::sleep(Duration::from_nanos(random.below(50_000))),
                            2 => thread::yield_now(),
                            3 => {
                                let _guard = shared.0.get().lock().unwrap();
                                work(random.below(10_000_000));
                            }
                            4 => {
                                let count = shared.1.fetch_add(1, Relaxed);
                                shared.1.spin_while(Relaxed, |now| number > 5 && now <= count && now < 30);
                            }
                            _ => work(random.below(30_000_000)),
                        }
                        stamp.lock().unwrap().push((steps(), time::now()));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(ended, Ended::Finished);
    let told = std::mem::take(&mut *told.lock().unwrap());
    let stamps = std::mem::take(&mut *stamps.lock().unwrap());
    (told, stamps)
}

/// Red if anything that does not follow from the seed, or that differs between debug and release builds, is in a run.
#[test]
fn a_run_is_the_same_each_time() {
    let hashes = [LockKind::Futex, LockKind::Queued, LockKind::Ticket].map(|locks| {
        let story_of = story(5, locks);
        assert_eq!(story(5, locks), story_of);
        let text = format!("{story_of:?}");
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    });
    assert_eq!(hashes, [0xd308_ae0e_6900_63d3, 0x3737_d54a_cfc7_74af, 0x1a5c_39b5_2bd5_1eb8], "{hashes:#x?}");
}
