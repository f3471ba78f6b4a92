//! Measures what a wake-up and a poll cost. Not built where threads or time are not the machine's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Nanoseconds. The most that counts for a wake-up. On a machine where the measuring threads wait for a processor, the
/// measured time tells how long other programs compute, and not what a wake-up costs.
const MOST: u64 = 100_000;

/// How often the turn goes to the other thread and back, and how long that may take all together.
const TURNS: usize = 32;
const LONGEST: Duration = Duration::from_millis(10);

/// How many processors this program may use.
pub(super) fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64
}

/// The least of some yields: the others may have let another thread run.
pub(super) fn poll() -> u64 {
    let times = (0..64).map(|_| {
        let start = Instant::now();
        std::thread::yield_now();
        start.elapsed().as_nanos()
    });
    times.min().map_or(1, |least| u64::try_from(least.max(1)).unwrap_or(u64::MAX))
}

/// Two processors that this thread may use, one set each. `None` if there is one only, or if the system does not tell.
fn two_processors() -> Option<[CpuSet; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).map(|processor| {
        let mut set = CpuSet::new();
        set.set(processor);
        set
    });
    Some([each.next()?, each.next()?])
}

/// Binds the thread that calls it. If the system refuses, the thread stays where it may be.
fn bind(processor: Option<&CpuSet>) {
    if let Some(processor) = processor {
        let _ = sched_setaffinity(None, processor);
    }
}

/// The median of what it takes to hand the turn to another thread, which sleeps on a descriptor as the threads of this
/// library do. `None` if the system lacks a descriptor or a thread.
///
/// Both threads are started here, and each is bound to a processor of its own. If the system were free to place them,
/// it would often run both on one processor, where a wake-up is a mere switch: some 2 us, where a wake-up of another
/// processor took 17 us (two virtual processors of an EPYC 9004). Threads that find such a time would never poll.
pub(super) fn wake() -> Option<u64> {
    std::thread::scope(|scope| {
        let meter = std::thread::Builder::new().name("blkmq-costs".to_owned()).spawn_scoped(scope, turns);
        meter.ok()?.join().ok()?
    })
}

/// What [`wake`] does, in a thread that it may bind.
fn turns() -> Option<u64> {
    let processors = two_processors();
    let [near, far] = [0, 1].map(|index| processors.as_ref().map(|processors| &processors[index]));
    bind(near);
    let [there, back] = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC));
    let (there, back) = (there.ok()?, back.ok()?);
    let is_over = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| {
        let partner = std::thread::Builder::new().name("blkmq-costs".to_owned()).spawn_scoped(scope, || {
            bind(far);
            while !is_over.load(Ordering::Relaxed) {
                take(&there);
                give(&back);
            }
        });
        partner.ok()?;
        let mut times = Vec::with_capacity(TURNS);
        let begin = Instant::now();
        // One at least, however long the partner takes to begin.
        while times.is_empty() || times.len() < TURNS && begin.elapsed() < LONGEST {
            let start = Instant::now();
            give(&there);
            take(&back);
            times.push(start.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
        give(&there);
        Some(times)
    })?;
    times.sort_unstable();
    // There and back are two wake-ups.
    let middle = *times.get(times.len() / 2)? / 2;
    Some(u64::try_from(middle.as_nanos()).unwrap_or(u64::MAX).clamp(1, MOST))
}

/// Wakes the thread that waits in [`take`].
fn give(turn: &OwnedFd) {
    // The only error is a counter about to overflow, and it goes from 0 to 1.
    let _ = rustix::io::write(turn, &1_u64.to_ne_bytes());
}

/// Sleeps until the turn comes.
fn take(turn: &OwnedFd) {
    while rustix::io::read(turn, &mut [0; 8]) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the threads that measure wait for each other forever, or measure nothing.
    #[test]
    fn a_wake_up_and_a_poll_take_time() {
        let (wake, poll) = (wake().expect("there are threads and descriptors"), poll());
        assert!(wake > 0 && poll > 0 && processors() > 0, "{wake} ns, {poll} ns");
    }
}
