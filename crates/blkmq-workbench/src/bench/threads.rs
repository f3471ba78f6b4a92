//! Jobs on real time: one thread for each.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, OnceLock};
use std::time::Duration;
use std::{panic, thread};

use blkmq::{Clock, Time};
use nix::sys::prctl::set_timerslack;

use super::cpu::thread_cpu_ns;
use super::outcome::JobOutcome;
use super::worker::{RoundResult, Worker};

/// Nanoseconds: a sleep until the job's next operation ends so long before it, because waking up takes time. So does a
/// sleep until the device's next event, if there is a processor for each thread of the run: such threads take no
/// processor from each other. A thread does not sleep for less than this. A thread with an operation that waits for a
/// range lock sleeps with the device for no more.
const NEAR_NS: u64 = 60_000;

/// The longest sleep, in nanoseconds, so that a thread that sleeps sees the stop flag in time.
const LONGEST_NS: u64 = 50_000_000;

/// The first waits of a thread, up to this number, are all measured. After that, one wait in this many is measured and
/// stands for all of them. A reading of a thread's CPU time takes a system call, which may happen while the thread has
/// the scheduler's lock.
const FEW: u32 = 256;
const SAMPLE: u32 = 16;

/// How many waits the next wait stands for, after `waits` waits. 0 if it is not measured.
const fn weight(waits: u32) -> u32 {
    if waits < FEW {
        1
    } else if waits.is_multiple_of(SAMPLE) {
        SAMPLE
    } else {
        0
    }
}

thread_local! {
    /// Whether the thread is in a run of rounds in which nothing could be done.
    static IS_IDLE: Cell<bool> = const { Cell::new(false) };
    /// The number of readings of the meter by this thread. Two readings make a wait.
    static READINGS: Cell<u32> = const { Cell::new(0) };
}

/// The meter by which the queue measures its waits for locks: the thread's CPU time, for a sample of the waits,
/// multiplied by the number of waits that each stands for. The meter returns nothing new while the thread is idle,
/// because all of its CPU time is counted then.
pub(super) fn lock_meter() -> u64 {
    let reading = READINGS.get();
    READINGS.set(reading.wrapping_add(1));
    match weight(reading / 2) {
        weight if weight > 0 && !IS_IDLE.get() => thread_cpu_ns().wrapping_mul(weight.into()),
        _ => 0,
    }
}

/// Runs each worker in a thread of its own. All threads begin together. Returns the outcomes, and whether each worker
/// was stopped.
pub(super) fn run(workers: Vec<Worker>, stop: &AtomicBool) -> Vec<(JobOutcome, bool)> {
    let (barrier, begin) = (Barrier::new(workers.len()), OnceLock::new());
    let nr_cores = thread::available_parallelism().map_or(1, usize::from);
    let has_processor = workers.len() <= nr_cores;
    thread::scope(|scope| {
        let (barrier, begin) = (&barrier, &begin);
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(move || run_one(worker, barrier, begin, stop, has_processor)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))).collect()
    })
}

fn run_one(
    mut worker: Worker,
    barrier: &Barrier,
    begin: &OnceLock<Time>,
    stop: &AtomicBool,
    has_processor: bool,
) -> (JobOutcome, bool) {
    // By default the kernel adds 50 us to every sleep. If the kernel refuses this setting, sleeps are longer.
    let _ = set_timerslack(1);
    barrier.wait();
    let begin = *begin.get_or_init(|| worker.time());
    worker.begin(begin, true);
    let mut idle = Idle::new(has_processor);
    loop {
        match worker.turn(stop) {
            RoundResult::Busy => idle.end(&mut worker),
            RoundResult::Waits(until) => idle.wait(&mut worker, until),
            RoundResult::Over => break,
        }
    }
    worker.into_outcome()
}

/// A run of rounds in which nothing could be done.
struct Idle {
    /// Runs that have begun.
    runs: u32,
    /// How many runs this one stands for.
    weight: u32,
    /// CPU time of the thread when the run began, if it is measured.
    since: u64,
    /// No other thread of the run needs the processor of this thread.
    has_processor: bool,
}

impl Idle {
    fn new(has_processor: bool) -> Self {
        Self { runs: 0, weight: 0, since: 0, has_processor }
    }

    /// Ends the run of idle rounds, if there was one. COST: a system call for a run that is measured.
    #[inline]
    fn end(&mut self, worker: &mut Worker) {
        if IS_IDLE.replace(false) && self.weight > 0 {
            worker.waited(thread_cpu_ns().saturating_sub(self.since) * u64::from(self.weight));
        }
    }

    /// Waits until something completes, or until `until`.
    fn wait(&mut self, worker: &mut Worker, until: Option<Time>) {
        let now = worker.now;
        if worker.submitter.nr_outstanding() == 0 {
            self.end(worker);
            let ns = until.map_or(LONGEST_NS, |until| until.since(now)).min(LONGEST_NS);
            if worker.waits_for_lock() {
                return worker.wait_for_lock(Duration::from_nanos(ns));
            }
            return sleep_or_yield(ns);
        }
        if !IS_IDLE.replace(true) {
            self.weight = weight(self.runs);
            self.runs = self.runs.wrapping_add(1);
            if self.weight > 0 {
                self.since = thread_cpu_ns();
            }
        }
        if is_helped_on(worker) {
            return;
        }
        // A completion ends the sleep.
        let mut until = until;
        if self.has_processor {
            let event = worker.submitter.next_wakeup();
            if event.is_some_and(|event| event.since(now) < NEAR_NS) {
                return std::hint::spin_loop();
            }
            until = [until, event.map(|event| event.before(NEAR_NS))].into_iter().flatten().min();
        }
        // A lock that is granted does not wake a thread that sleeps with the device.
        let longest = now.after(if worker.waits_for_lock() { NEAR_NS } else { LONGEST_NS });
        let until = until.map_or(longest, |until| until.min(longest));
        let min = if worker.wants_all() { usize::MAX } else { 1 };
        worker.submitter.wait(min, Some(until));
    }
}

/// Moves the block layer's clock to the device's next event, if that clock stands still. Then there is nothing to wait
/// for.
fn is_helped_on(worker: &Worker) -> bool {
    let Clock::Virtual(clock) = worker.submitter.queue().clock() else { return false };
    match worker.submitter.next_wakeup() {
        Some(event) => clock.advance_to(event),
        None => thread::yield_now(),
    }
    true
}

fn sleep_or_yield(ns: u64) {
    if ns > NEAR_NS {
        thread::sleep(Duration::from_nanos(ns - NEAR_NS));
    } else {
        thread::yield_now();
    }
}
