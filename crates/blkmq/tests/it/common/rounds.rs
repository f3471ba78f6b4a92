//! Rounds that find lost wake-ups. Each round has one event that lets all threads go on, and the next round begins when
//! all have. Under a steady load the next event would repair what an earlier one missed; here there is no next event.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Drive, join};
use blkmq::{RequestQueue, Submitter};

use super::random::Random;
use super::watchdog::Watchdog;

/// In each round `close` makes a guard, and every thread submits by `submit` and sleeps until all is done. Meanwhile,
/// at some moment, the guard is dropped.
pub(crate) fn rounds<G>(
    q: &RequestQueue,
    nr_threads: u64,
    nr_rounds: u64,
    random: &mut Random,
    close: impl Fn(&RequestQueue) -> G,
    submit: impl Fn(u64, &mut Submitter) + Sync,
) {
    let watchdog = Watchdog::new(q);
    let (round, done) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..nr_threads {
            let (round, done, submit) = (&round, &done, &submit);
            scope.spawn(move || {
                let mut submitter = join(q);
                for number in 1..=nr_rounds {
                    until(|| round.load(Ordering::Acquire) >= number);
                    submit(thread, &mut submitter);
                    submitter.finish();
                    done.fetch_add(1, Ordering::Release);
                }
            });
        }
        let progress = watchdog.progress();
        for number in 1..=nr_rounds {
            let guard = close(q);
            round.store(number, Ordering::Release);
            // Often about as long as a thread takes to fall asleep.
            let most = 1 << random.below(12);
            let spins = random.below(most);
            (0..spins).for_each(|_| std::hint::spin_loop());
            if random.one_in(8) {
                std::thread::yield_now();
            }
            drop(guard);
            until(|| done.load(Ordering::Acquire) == number * nr_threads);
            progress.note();
        }
    });
}

fn until(is_so: impl Fn() -> bool) {
    let mut looks = 0_u32;
    while !is_so() {
        looks += 1;
        if looks.is_multiple_of(64) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}
