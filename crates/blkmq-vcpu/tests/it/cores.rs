//! CPUs with clocks of their own: what one does takes the others no time, what they share costs what the model of cache
//! lines says, and a run is the same each time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there and then, in its helpers too")]

use std::sync::Mutex as Plain;
use std::time::Duration;

use blkmq_vcpu::cache::{Access, Costs, Distances, Picoseconds};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering, fence};
use blkmq_vcpu::sync::{Arc, Mutex};
use blkmq_vcpu::{
    Accessed, Cores, CpuId, Ended, Kernel, Options, Random, Schedule, cpu, fetch, pause, place_at, run, stage, thread,
    time, together, uninterrupted, work,
};

const DISTANCE: Picoseconds = 70_000;

fn costs() -> Costs {
    Costs::default()
}

/// A schedule that is not asked.
fn nobody_asks() -> Box<dyn Schedule> {
    Box::new(Uniform::new(Random::new(1), 1))
}

fn cores(nr_cpus: usize) -> Option<Cores> {
    let distances = Distances::new(nr_cpus, |_, _| DISTANCE);
    Some(Cores { kernel: Kernel::FREE, ..Cores::new(distances) })
}

/// An operation: CPU, what it did, whether to a line with a name, when it ended, and how many lines moved.
type Operation = (CpuId, Access, bool, Picoseconds, u32);

/// The operations of a run on so many CPUs, in order.
fn operations(nr_cpus: usize, main: impl FnOnce() + Send + 'static) -> Vec<Operation> {
    let told = Arc::new(Plain::new(Vec::new()));
    let on_access = {
        let told = told.clone();
        Box::new(move |Accessed { cpu, line, access, cost, .. }: Accessed| {
            let cost = cost.unwrap();
            told.lock().unwrap().push((cpu, access, line.is_some(), cost.done, cost.moved));
        })
    };
    let options = Options { on_access: Some(on_access), cores: cores(nr_cpus), ..Options::default() };
    assert_eq!(run(nobody_asks(), options, main), Ended::Finished);
    std::mem::take(&mut *told.lock().unwrap())
}

/// A shared value on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lonely(AtomicU64);

impl Lonely {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn value(&self) -> &AtomicU64 {
        place_at("lonely", self);
        &self.0
    }
}

/// Red if the steps of all CPUs are added up, as on the one clock of a run without cores: two threads would take twice
/// as long as one.
#[test]
fn what_a_cpu_does_alone_takes_the_others_no_time() {
    const NR: u64 = 1000;
    let told = operations(2, || {
        let values = Arc::new([Lonely::default(), Lonely::default()]);
        let each = |values: Arc<[Lonely; 2]>, at: usize| {
            move || (0..NR).for_each(|_| _ = values[at].value().fetch_add(1, Ordering::Relaxed))
        };
        let other = thread::spawn(each(values.clone(), 1));
        each(values, 0)();
        other.join().unwrap();
    });
    let expected = costs().memory + (NR - 1) * costs().update;
    for cpu in 0..2 {
        assert_eq!(told.iter().rfind(|told| told.0 == cpu).unwrap().3, expected);
    }
}

/// Red if a line is not charged by where it was last, or if operations take effect in another order than they begin.
#[test]
fn a_line_that_two_cpus_pass_to_each_other_takes_two_distances_a_round() {
    const ROUNDS: u64 = 100;
    let told = operations(2, || {
        let value = Arc::new(Lonely::default());
        let each = |value: Arc<Lonely>, mine: u64| {
            move || {
                for _ in 0..ROUNDS {
                    let pass = || {
                        let passed = (mine, 1 - mine);
                        let (relaxed, value) = (Ordering::Relaxed, value.value());
                        value.compare_exchange(passed.0, passed.1, relaxed, relaxed)
                    };
                    while pass().is_err() {}
                }
            }
        };
        let other = thread::spawn(each(value.clone(), 1));
        each(value, 0)();
        other.join().unwrap();
    });
    let moved: u64 = told.iter().map(|told| u64::from(told.4)).sum();
    assert_eq!(moved, 2 * ROUNDS - 1);
    assert_eq!(told.last().unwrap().3, costs().memory + moved * DISTANCE);
}

#[test]
fn work_takes_the_time_that_it_says_and_an_uninterrupted_section_takes_none() {
    let told = operations(2, || {
        let other = thread::spawn(|| {
            work(3_000_000);
            assert_eq!(time::now(), 3000);
        });
        uninterrupted(|| work(9_000_000));
        assert_eq!(time::now(), 0);
        work(1_000_500);
        assert_eq!(time::now(), 1000);
        other.join().unwrap();
        // A thread that waits for another one goes on when that one has ended.
        assert_eq!(time::now(), 3000);
    });
    assert_eq!(told, []);
    let without = run(nobody_asks(), Options::default(), || {
        let before = time::now();
        work(9_000_000);
        assert_eq!(time::now(), before);
    });
    assert_eq!(without, Ended::Finished);
}

/// Red if a pause takes no time, or takes some in an uninterrupted section.
#[test]
fn a_pause_takes_a_hundredth_of_the_looks_before_a_sleep() {
    let cores = Some(Cores::new(Distances::new(1, |_, _| DISTANCE)));
    let ended = run(nobody_asks(), Options { cores, ..Options::default() }, || {
        (0..50).for_each(|_| pause());
        uninterrupted(pause);
        assert_eq!(time::now(), Kernel::default().spin / 2 / 1000);
    });
    assert_eq!(ended, Ended::Finished);
}

/// Red if what a stage takes is not asked, or asked for no things or in an uninterrupted section.
#[test]
fn a_stage_takes_what_the_options_say() {
    let on_stage = Box::new(|cpu, stage, number| {
        assert!(cpu == 0 && number > 0, "CPU {cpu} did nothing");
        1_000_000 * stage as u64 + 1000 * number as u64
    });
    let ended = run(nobody_asks(), Options { cores: cores(1), on_stage: Some(on_stage), ..Options::default() }, || {
        stage(3, 5);
        assert_eq!(time::now(), 3005);
        uninterrupted(|| stage(3, 5));
        stage(3, 0);
        assert_eq!(time::now(), 3005);
    });
    assert_eq!(ended, Ended::Finished);
}

/// Red if loads of which none depends on another wait for each other.
#[test]
fn loads_together_take_as_long_as_the_longest() {
    let values = Arc::new([const { Lonely::new() }; 4]);
    let theirs = values.clone();
    let told = operations(2, move || {
        let write = move || theirs.iter().for_each(|value| value.value().store(1, Ordering::Relaxed));
        thread::spawn(write).join().unwrap();
        // What was posted has come to its end.
        work(1_000_000);
        let before = time::now();
        let sum: u64 = together(|| values.iter().map(|value| value.value().load(Ordering::Relaxed)).sum());
        assert_eq!((sum, time::now() - before), (4, DISTANCE / 1000));
        values.iter().for_each(|value| _ = value.value().load(Ordering::Relaxed));
        assert!(time::now() - before < 2 * DISTANCE / 1000);
    });
    let is_load =
        |(cpu, access, named, _, moved): &&Operation| (*cpu, *access, *named, *moved) == (0, Access::Load, true, 1);
    assert_eq!(told.iter().filter(is_load).count(), 4);
}

/// Red if a load of an uninterrupted section that is under way with others takes time.
#[test]
fn a_load_that_takes_no_time_takes_none_together_with_others() {
    let value = Arc::new(Lonely::new());
    let theirs = value.clone();
    let told = operations(2, move || {
        thread::spawn(move || theirs.value().store(1, Ordering::Relaxed)).join().unwrap();
        work(1_000_000);
        let before = time::now();
        assert_eq!(together(|| uninterrupted(|| value.value().load(Ordering::Relaxed))), 1);
        assert_eq!(time::now(), before);
    });
    assert_eq!(told.len(), 1);
}

/// Many CPUs change a number by compare-exchange, and each change takes few attempts. Red if a busy line serves in the
/// order of arrival, in which an attempt fails for each other CPU.
#[test]
fn a_busy_line_serves_by_chance() {
    const EACH: u64 = 200;
    let told = operations(16, || {
        let value = Arc::new(Lonely::new());
        let add = |value: Arc<Lonely>| {
            move || {
                for _ in 0..EACH {
                    let (relaxed, value) = (Ordering::Relaxed, value.value());
                    let mut seen = value.load(relaxed);
                    while let Err(now) = value.compare_exchange(seen, seen + 1, relaxed, relaxed) {
                        seen = now;
                    }
                }
            }
        };
        let others: Vec<_> = (1..16).map(|_| thread::spawn(add(value.clone()))).collect();
        add(value.clone())();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(value.value().load(Ordering::Relaxed), 16 * EACH);
    });
    let attempts = told.iter().filter(|told| told.1 == Access::Update).count() as f64 / (16 * EACH) as f64;
    assert!((3.0..7.0).contains(&attempts), "{attempts} attempts for a change, where sqrt(pi 16 / 2) is 5.0");
}

/// Red if a CPU whose time has come waits for those that are behind it, or goes on before those that are earlier.
#[test]
fn a_sleeper_goes_on_at_its_time_among_the_others() {
    let order = Arc::new(Plain::new(Vec::new()));
    let says = order.clone();
    let told = operations(2, move || {
        let theirs = says.clone();
        let other = thread::spawn(move || {
            for _ in 0..3 {
                thread::sleep(Duration::from_nanos(250));
                theirs.lock().unwrap().push((cpu(), time::now()));
            }
        });
        for _ in 0..8 {
            work(100_000);
            says.lock().unwrap().push((cpu(), time::now()));
        }
        other.join().unwrap();
        // Now every CPU sleeps.
        thread::sleep(Duration::from_nanos(500));
        assert_eq!(time::now(), 1300);
    });
    assert_eq!(told, []);
    let expected =
        [(0, 100), (0, 200), (1, 250), (0, 300), (0, 400), (0, 500), (1, 500), (0, 600), (0, 700), (1, 750), (0, 800)];
    assert_eq!(*order.lock().unwrap(), expected);
}

/// Red if a fence does not wait for the stores that its CPU has posted.
#[test]
fn a_fence_waits_for_stores() {
    let told = operations(1, || {
        let value = Lonely::default();
        value.value().store(1, Ordering::Relaxed);
        assert!(time::now() < 1);
        fence(Ordering::Release);
        assert!(time::now() < 1);
        fence(Ordering::SeqCst);
        assert_eq!(time::now(), costs().memory / 1000);
    });
    assert_eq!(told, [(0, Access::Store, true, costs().store, 0)]);
}

/// Red if an operation on a lock costs nothing.
#[test]
fn each_operation_on_a_lock_is_told() {
    let told = operations(2, || {
        let lock = Arc::new(Mutex::new(()));
        place_at("lock", &*lock);
        let guard = lock.lock().unwrap();
        let theirs = lock.clone();
        let other = thread::spawn(move || drop(theirs.lock().unwrap()));
        // The other CPU has begun to look, and the line is on its way there.
        work(DISTANCE / 2);
        drop(guard);
        other.join().unwrap();
    });
    let theirs: Vec<_> = told.iter().filter(|told| told.0 == 1).map(|told| told.1).collect();
    assert_eq!(theirs, [Access::Update, Access::Load, Access::Update, Access::Update]);
}

/// Data on no line costs what a line of the CPU's own does.
#[test]
fn data_on_no_line_is_told_and_does_not_move() {
    let told = operations(2, || {
        let value = Arc::new(AtomicU64::new(0));
        let theirs = value.clone();
        thread::spawn(move || theirs.load(Ordering::Relaxed)).join().unwrap();
        value.fetch_add(1, Ordering::Relaxed);
    });
    let load = (1, Access::Load, false, costs().hit, 0);
    assert_eq!(told, [load, (0, Access::Update, false, costs().hit + costs().update, 0)]);
}

/// Red if a CPU that is chosen while another one fetches the line is not told: its access then comes too late, which
/// the cache refuses.
#[test]
fn cpus_that_wait_for_a_line_are_served_while_others_fetch_it() {
    const NR: u64 = 100;
    let told = operations(6, || {
        let line = Arc::new(Lonely::default());
        let each = |line: Arc<Lonely>| {
            move || {
                for round in 0..NR {
                    fetch(&*line);
                    work(round % 10 * 40_000);
                    line.value().fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let others: Vec<_> = (0..5).map(|_| thread::spawn(each(line.clone()))).collect();
        each(line.clone())();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(line.value().load(Ordering::Relaxed), 6 * NR);
    });
    assert!(told.iter().filter(|(_, access, ..)| *access == Access::Store).count() as u64 >= 6 * NR);
}
