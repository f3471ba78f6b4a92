//! Background threads, which drive a queue on behalf of its submitters.

use std::time::Duration;

use crate::dispatcher::Dispatcher;
use crate::driver::Cause;
use crate::queue::{CONTROL, Layout, Queue, QueueError, RequestQueue};
use crate::request::clock::Clock;
use blkmq_sync::atomic::{AtomicBool, Ordering};
use blkmq_sync::{Arc, place_anew, thread};

/// How long a background thread sleeps on a virtual clock, which another thread moves.
const VIRTUAL_NAP: Duration = Duration::from_millis(1);

/// Background threads of a queue. Dropping this stops them. Submitters then poll for themselves again.
#[derive(Debug)]
#[must_use = "dropping the handle stops the threads"]
pub struct Background {
    q: Arc<Queue>,
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl RequestQueue {
    /// Starts `nr_threads` threads that poll the driver, complete, dispatch and issue. So submitters need not poll for
    /// other threads to make progress, and operations complete while the submitters do something else. The hardware
    /// queues are divided among the threads.
    ///
    /// # Errors
    /// The queue has as many threads as it can, or the system has. Or the hardware queues are
    /// [owned](crate::driver::Driver::is_owned) by submitters. Then no thread runs that this call has started.
    pub fn start_threads(&self, nr_threads: u16) -> Result<Background, QueueError> {
        if self.0.is_owned && nr_threads > 0 {
            return Err(QueueError::NoBackground);
        }
        let mut background =
            Background { q: Arc::clone(&self.0), stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        place_anew("background.stop", &*background.stop);
        for share in 0..nr_threads {
            let membership = Membership::new(&self.0)?;
            let stop = Arc::clone(&background.stop);
            let work = move || {
                let mut dispatcher = Dispatcher::new(Arc::clone(&membership.q), membership.thread);
                while !stop.load(Ordering::Relaxed) {
                    drive_share(&membership.q, &mut dispatcher, share, nr_threads, &stop);
                }
            };
            let started = thread::try_spawn("blkmq", work);
            background.threads.push(started.map_err(|error| QueueError::NoThread(Cause::new(error)))?);
        }
        Ok(background)
    }
}

/// A background thread's registration with the queue. It ends even if the driver panics: submitters must not rely on
/// the thread any longer, and freezes must not wait for it. The requests that the thread held are lost. It also ends if
/// the thread cannot be started.
struct Membership {
    q: Arc<Queue>,
    thread: u16,
}

impl Membership {
    fn new(q: &Arc<Queue>) -> Result<Self, QueueError> {
        let (thread, _) = q.threads.join(q, None)?;
        Ok(Self { q: Arc::clone(q), thread })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let thread = self.q.threads.get(self.thread);
        if thread.activity.is_active() {
            thread.activity.leave();
        }
        self.q.threads.leave(&self.q, self.thread, None);
        if std::thread::panicking() {
            // Submitters sleep without a plan for the device's events while there is a background thread.
            self.q.notify_others(CONTROL);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.q.wake_sleepers(CONTROL);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it; the queue runs on without it.
            let _ = thread.join();
        }
        // Submitters that relied on the threads plan for themselves now.
        self.q.wake_sleepers(CONTROL);
    }
}

/// Drives the queue once and sleeps if there was nothing to do.
fn drive_share(q: &Queue, dispatcher: &mut Dispatcher, share: u16, nr_shares: u16, stop: &AtomicBool) {
    debug_assert!(share < nr_shares, "share {share} is one of {nr_shares}");
    debug_assert!(dispatcher.is_done(), "a thread has passed on what it had in its hands before it comes again");
    let hctxs = |layout: Layout| (share..layout.len()).step_by(usize::from(nr_shares));
    let thread = dispatcher.thread(q);
    let before = thread.counters.nr_completed();
    let now = q.clock().now();
    dispatcher.drive(q, hctxs, now);
    if thread.counters.nr_completed() != before {
        return;
    }
    q.sleep(
        thread,
        // As for a submitter: while the queue is quiesced no thread polls.
        hctxs(q.hctxs.layout()).filter(|_| !dispatcher.saw_quiesced),
        || stop.load(Ordering::Relaxed) || dispatcher.may_go_on(q),
        || match q.clock() {
            Clock::Virtual(_) => Some(VIRTUAL_NAP),
            // Nothing is done now, although it may be due. The thread that ends the quiescence wakes the sleepers.
            Clock::Real(_) if q.live.word.load().is_quiesced() => None,
            Clock::Real(_) => {
                Some(Duration::from_nanos(q.next_event(hctxs(q.hctxs.layout()), None, now, now).since(now)))
            }
        },
    );
}
