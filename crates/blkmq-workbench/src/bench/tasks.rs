//! Jobs on virtual time: tasks of one thread, whose clock moves when none of them can go on.

use std::sync::atomic::AtomicBool;

use blkmq::{Time, VirtualClock};

use super::BenchError;
use super::worker::{RoundResult, Worker};

/// If this many rounds happen at one moment, the device is taken for one that needs no time.
const TIMELESS_ROUNDS: u64 = 1_000_000;

/// Runs the workers, round by round. The same jobs on the same device do the same each time.
pub(super) fn run(workers: &mut [Worker], clock: &VirtualClock, stop: &AtomicBool) -> Result<(), BenchError> {
    let begin = clock.now();
    workers.iter_mut().for_each(|worker| worker.begin(begin, false));
    let (mut rounds, mut first) = (0, 0);
    loop {
        let (mut is_busy, mut is_over) = (false, true);
        let mut next: Option<Time> = None;
        // The first worker of a round gets what is scarce, so each round begins with another worker.
        let (front, back) = workers.split_at_mut(first);
        for worker in back.iter_mut().chain(front) {
            match worker.turn(stop) {
                RoundResult::Busy => (is_busy, is_over) = (true, false),
                RoundResult::Waits(until) => {
                    is_over = false;
                    next = [next, until].into_iter().flatten().min();
                }
                RoundResult::Over => {}
            }
        }
        if is_over {
            return Ok(());
        }
        first = (first + 1) % workers.len();
        rounds += 1;
        if is_busy {
            if rounds > TIMELESS_ROUNDS && workers.iter().any(Worker::waits_for_time) {
                return Err(BenchError::Timeless);
            }
            continue;
        }
        // The workers are asked only after each had its turn, because each may start requests of another worker.
        let events = workers.iter().filter_map(|worker| worker.submitter.next_wakeup());
        let now = clock.now();
        // The clock moves by at least 1 ns, because an event in the past that did nothing must not stop it.
        let until = events.chain(next).min().unwrap_or(now).max(now.after(1));
        clock.advance_to(until);
        rounds = 0;
    }
}
