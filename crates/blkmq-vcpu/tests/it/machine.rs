//! The machine does what its documentation says: it is deterministic, its locks exclude, its clock jumps, it finds
//! races and deadlocks, and it survives panics.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there and then, in its helpers too")]

use std::sync::Mutex as Plain;
use std::time::Duration;

use blkmq_vcpu::schedule::{Priorities, Targeted, Uniform};
use blkmq_vcpu::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use blkmq_vcpu::sync::{Arc, Condvar, Mutex};
use blkmq_vcpu::{Ended, Options, Random, Schedule, Switch, cpu, run, steps, stop, thread, time, touch, uninterrupted};

fn uniform(seed: u64, mean: u64) -> Box<dyn Schedule> {
    Box::new(Uniform::new(Random::new(seed), mean))
}

/// The schedules that explore.
fn schedules(seed: u64) -> [Box<dyn Schedule>; 3] {
    [
        uniform(seed, 3),
        Box::new(Priorities::new(Random::new(seed), 10)),
        Box::new(Targeted::new(Random::new(seed), "test.count", 30)),
    ]
}

/// Runs `body` on a thread of its own, so that a panic of its machine does not reach other tests.
fn alone<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// Makes two increments that are each a load and a store. Returns whether one was lost.
fn loses_an_increment(schedule: Box<dyn Schedule>) -> bool {
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    let ended = run(schedule, Options::default(), move || {
        let increment = |count: Arc<AtomicU64>| {
            move || {
                touch("test.count");
                let before = count.load(Ordering::Relaxed);
                touch("test.count");
                count.store(before + 1, Ordering::Relaxed);
            }
        };
        let other = thread::spawn(increment(count.clone()));
        increment(count)();
        other.join().unwrap();
    });
    assert_eq!(ended, Ended::Finished);
    seen.load(Ordering::Relaxed) == 1
}

#[test]
fn every_schedule_finds_a_lost_update_in_some_runs_and_not_in_all() {
    for kind in 0..3 {
        let lost = (0..200).filter(|seed| loses_an_increment(schedules(*seed).into_iter().nth(kind).unwrap())).count();
        assert!((1..200).contains(&lost), "schedule {kind}: {lost} of 200 runs");
    }
}

/// What a run of several CPUs did, in order.
fn story(seed: u64) -> Vec<(u64, u64, u16)> {
    let told = Arc::new(Plain::new(Vec::new()));
    let switches = told.clone();
    let options = Options {
        on_switch: Box::new(move |Switch { step, to, .. }| switches.lock().unwrap().push((step, 0, to))),
        ..Options::default()
    };
    let says = told.clone();
    let ended = run(uniform(seed, 5), options, move || {
        let shared = Arc::new(Mutex::new(0_u64));
        let threads = [1_u64, 2, 3].map(|number| {
            let (shared, says) = (shared.clone(), says.clone());
            thread::spawn(move || {
                for _ in 0..20 {
                    *shared.lock().unwrap() += number;
                    says.lock().unwrap().push((steps(), time::now(), cpu()));
                    thread::sleep(Duration::from_nanos(100 * number));
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*shared.lock().unwrap(), 120);
    });
    assert_eq!(ended, Ended::Finished);
    std::mem::take(&mut *told.lock().unwrap())
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    assert_eq!(story(5), story(5));
    assert_ne!(story(5), story(6));
}

#[test]
fn a_lock_lets_one_in_at_a_time() {
    for schedule in schedules(1) {
        let ended = run(schedule, Options::default(), || {
            let (lock, inside) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
            let threads = [(); 4].map(|()| {
                let (lock, inside) = (lock.clone(), inside.clone());
                thread::spawn(move || {
                    for _ in 0..50 {
                        let _guard = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        inside.store(false, Ordering::Relaxed);
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(ended, Ended::Finished);
    }
}

#[test]
fn a_section_is_not_interrupted() {
    let ended = run(uniform(2, 1), Options::default(), || {
        let count = Arc::new(AtomicU64::new(0));
        let threads = [(); 3].map(|()| {
            let count = count.clone();
            thread::spawn(move || {
                for _ in 0..100 {
                    uninterrupted(|| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 300);
    });
    assert_eq!(ended, Ended::Finished);
}

#[test]
fn time_jumps_to_the_next_timer_when_everybody_sleeps() {
    let idle = Arc::new(Plain::new(Vec::new()));
    let seen = idle.clone();
    let options =
        Options { on_idle: Box::new(move |idle| seen.lock().unwrap().push(idle.until)), ..Options::default() };
    let ended = run(uniform(3, 10), options, || {
        let began = time::Instant::now();
        let sleeper = thread::spawn(|| thread::sleep(Duration::from_secs(3600)));
        thread::sleep(Duration::from_secs(60));
        assert!((60..61).contains(&began.elapsed().as_secs()));
        sleeper.join().unwrap();
        assert!((3600..3601).contains(&began.elapsed().as_secs()));
    });
    assert_eq!(ended, Ended::Finished);
    let idle = idle.lock().unwrap();
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(Option::is_some));
}

#[test]
fn a_wait_ends_by_a_notification_or_by_its_time() {
    let ended = run(uniform(4, 2), Options::default(), || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = pair.clone();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(2));
            *theirs.0.lock().unwrap() = true;
            theirs.1.notify_one();
        });
        let (lock, changed) = &*pair;
        let wait = |ms| {
            let guard = lock.lock().unwrap();
            changed.wait_timeout_while(guard, Duration::from_millis(ms), |done| !*done).unwrap().1.timed_out()
        };
        assert!(wait(1));
        assert!(!wait(5));
        assert!(time::now() < 3_000_000);
        other.join().unwrap();
        let guard = changed.wait_timeout_while(lock.lock().unwrap(), Duration::ZERO, |done| *done).unwrap().0;
        assert!(*guard);
    });
    assert_eq!(ended, Ended::Finished);
}

/// Red if a notification goes to a waiter that its time has woken in the same moment and that has not gone on yet: no
/// other waiter would get it.
#[test]
fn who_has_timed_out_takes_no_notification() {
    for seed in 0..50 {
        let ended = run(uniform(seed, 1), Options { step_ns: 0, ..Options::default() }, || {
            let pair = Arc::new((Mutex::new(false), Condvar::new()));
            let [hasty, patient, teller] = [0; 3].map(|_| pair.clone());
            let hasty = thread::spawn(move || {
                let guard = hasty.0.lock().unwrap();
                drop(hasty.1.wait_timeout_while(guard, Duration::from_millis(1), |_| true).unwrap());
            });
            let patient = thread::spawn(move || {
                let mut is_told = patient.0.lock().unwrap();
                while !*is_told {
                    is_told = patient.1.wait(is_told).unwrap();
                }
            });
            // Steps take no time here. So both threads wait after this sleep, and at this very moment the time of one
            // of them is over.
            thread::sleep(Duration::from_millis(1));
            *teller.0.lock().unwrap() = true;
            teller.1.notify_one();
            [hasty, patient].into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(ended, Ended::Finished, "seed {seed}");
    }
}

#[test]
fn who_waits_for_each_other_is_named() {
    let ended = run(uniform(5, 1), Options::default(), || {
        let locks = Arc::new((Mutex::new(()), Mutex::new(())));
        let theirs = locks.clone();
        let other = thread::spawn_named("other".to_owned(), move || {
            let _second = theirs.1.lock().unwrap();
            thread::sleep(Duration::from_millis(1));
            let _first = theirs.0.lock().unwrap();
        });
        let _first = locks.0.lock().unwrap();
        thread::sleep(Duration::from_millis(1));
        let _second = locks.1.lock().unwrap();
        other.join().unwrap();
    });
    assert_eq!(ended, Ended::Deadlock { waiting: vec!["main".to_owned(), "other".to_owned()] });
}

#[test]
fn a_panic_ends_the_run_with_its_words() {
    /// Waits for another CPU when it is dropped, as a submitter does. If the machine dropped it after a panic, the wait
    /// would never end.
    struct Waits(Arc<Mutex<()>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let _guard = self.0.lock().unwrap();
        }
    }
    let ended = alone(|| {
        run(uniform(6, 1), Options::default(), || {
            let lock = Arc::new(Mutex::new(()));
            let theirs = lock.clone();
            let other = thread::spawn(move || {
                let _guard = theirs.lock().unwrap();
                thread::sleep(Duration::from_millis(1));
            });
            thread::sleep(Duration::from_micros(10));
            let _waits = Waits(lock);
            assert!(other.is_finished(), "not yet");
        })
    });
    let Ended::Panicked { cpu: 0, message } = ended else { panic!("{ended:?}") };
    assert!(message.starts_with("not yet, ") && message.contains("machine.rs"), "{message}");
}

#[test]
fn a_panic_that_takes_no_step_ends_the_run_too() {
    let ended = alone(|| run(uniform(7, 1), Options::default(), || panic!("at {}", 1)));
    assert!(matches!(&ended, Ended::Panicked { message, .. } if message.starts_with("at 1, ")), "{ended:?}");
}

#[test]
fn a_run_can_be_stopped_from_a_cpu_a_section_and_while_idle() {
    let never = || -> Box<dyn FnOnce() + Send> {
        Box::new(|| {
            loop {
                thread::yield_now()
            }
        })
    };
    let stopped = |main: Box<dyn FnOnce() + Send>, options| run(uniform(8, 3), options, main);
    assert_eq!(stopped(Box::new(stop), Options::default()), Ended::Stopped);
    let in_section = move || {
        thread::spawn(never());
        uninterrupted(stop);
        loop {
            thread::yield_now();
        }
    };
    assert_eq!(stopped(Box::new(in_section), Options::default()), Ended::Stopped);
    let options = Options { on_idle: Box::new(|_| stop()), ..Options::default() };
    assert_eq!(stopped(Box::new(|| thread::sleep(Duration::from_secs(1))), options), Ended::Stopped);
}

/// Red if atomics or locks do not work across real threads outside of a run.
#[test]
fn outside_of_a_run_nothing_is_virtual() {
    let (lock, count) = (Mutex::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    *lock.lock().unwrap() += 1;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((*lock.lock().unwrap(), count.load(Ordering::Relaxed)), (2000, 2000));
    assert_eq!(steps(), 0);
}
