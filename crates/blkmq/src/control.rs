//! The control path: freezing, quiescing, and changing a queue while I/O runs.
//!
//! State on which several threads rely at once changes only while the queue is frozen and drained: the scheduler,
//! `nr_requests` with the depth of the tags, the locking, the bypass, the number of hardware queues, and the ranges of
//! sectors that are counted apart. The queue is also quiesced while such a change is made, because threads drive a
//! frozen queue. Freezing is a handle to poll, because the thread that freezes may have submitters of its own, which it
//! must go on polling for the queue to drain.
//!
//! `knobs` reads and sets the knobs of a queue, and `dump` shows it.

mod dump;
mod knobs;

pub use knobs::QUEUE_KNOBS;

use std::fmt;

use crate::driver::Topology;
use crate::queue::{CONTROL, Queue, QueueError, RequestQueue, SchedulerChoice, SectorRange, check_ranges};
use blkmq_sync::grace::Observed;
use blkmq_sync::word::Flag;
use blkmq_sync::{fence_at, thread, unless_mutated};

/// A queue that lets nothing new in. When this is dropped, the queue goes on. Freezes nest.
#[derive(Debug)]
#[must_use = "dropping the handle ends the freeze"]
pub struct Freeze {
    q: RequestQueue,
    /// The threads that are waited for, each with its mark as it was seen inside: first those that were inside when the
    /// freeze began, and once the queue has drained those that are inside then.
    inside: Vec<(u16, Observed)>,
    /// All that entered has completed. But the completer of the last request may still be putting its tags back.
    is_drained: bool,
}

impl Freeze {
    /// Whether everything that was let in has completed. Threads that own submitters with operations outstanding must
    /// go on polling them for this to become true.
    pub fn poll(&mut self) -> bool {
        loop {
            self.inside.retain(|(thread, seen)| !self.q.0.threads.get(*thread).activity.has_left(*seen));
            if !self.inside.is_empty() || self.is_drained {
                return self.inside.is_empty();
            }
            if !self.q.0.threads.is_drained() {
                return false;
            }
            // Threads that drive the queue come in although it is frozen. A thread that comes in from here on finds
            // nothing to do and touches no tag; the others are waited for. The fence is step b of the interleaving in
            // `grace`, the second time, and pairs with that of `Activity::enter`.
            fence_at("control.drained_fence");
            if unless_mutated("control.drained") {
                self.inside = observe(&self.q.0);
            }
            self.is_drained = true;
        }
    }

    /// Waits until [`poll`](Self::poll) is true. Only for threads without submitters on this queue.
    pub fn wait(&mut self) {
        while !self.poll() {
            thread::yield_now();
        }
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if self.q.0.control.open(&self.q.0.live.word, Flag::Frozen) {
            // Threads whose plugs were held back look again.
            self.q.0.wake_sleepers(CONTROL);
        }
    }
}

/// A queue that gives nothing to its driver; requests stay queued. When this is dropped, the queue goes on. Quiescences
/// nest.
#[derive(Debug)]
#[must_use = "dropping the handle ends the quiescence"]
pub struct Quiesce(RequestQueue);

impl Drop for Quiesce {
    fn drop(&mut self) {
        let q = &self.0.0;
        if q.control.open(&q.live.word, Flag::Quiesced) {
            // Threads that sleep look again, and find WAITING set if anything was left.
            q.wake_sleepers(CONTROL);
        }
    }
}

/// What a [`Change`] does once the queue is drained.
type Apply = Box<dyn FnOnce(&Queue) -> Result<(), QueueError> + Send>;

/// A change that needs a drained queue. The change happens in [`poll`](Self::poll) or [`wait`](Self::wait).
#[must_use = "the change happens when this is polled"]
pub struct Change {
    q: RequestQueue,
    /// Keeps the queue drained while the change is made. `None` for a change that was made at once.
    freeze: Option<Freeze>,
    /// Not yet made.
    apply: Option<Apply>,
    /// What came of it, once it has been tried.
    result: Result<(), QueueError>,
}

impl Change {
    /// Makes the change if the queue has drained; returns `None` if it has not. Further calls return the same. The
    /// queue stays frozen until the caller drops the handle, so that the caller can look at the changed queue before it
    /// goes on.
    ///
    /// # Errors
    /// The change was refused, and the queue is as before.
    pub fn poll(&mut self) -> Option<Result<(), QueueError>> {
        if self.freeze.as_mut().is_some_and(|freeze| !freeze.poll()) {
            return None;
        }
        if let Some(apply) = self.apply.take() {
            self.result = self.q.apply(apply);
        }
        Some(self.result.clone())
    }

    /// Waits for the queue to drain, and makes the change. Only for threads without submitters on this queue.
    ///
    /// # Errors
    /// The change was refused, and the queue is as before.
    pub fn wait(mut self) -> Result<(), QueueError> {
        while self.poll().is_none() {
            thread::yield_now();
        }
        self.result
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { freeze, result, .. } = self;
        f.debug_struct("Change").field("freeze", freeze).field("result", result).finish_non_exhaustive()
    }
}

/// The marks of all threads that are inside now.
fn observe(q: &Queue) -> Vec<(u16, Observed)> {
    let marks = q.threads.iter().map(|(index, thread)| (index, thread.activity.observe()));
    marks.filter(|(index, seen)| !q.threads.get(*index).activity.has_left(*seen)).collect()
}

impl RequestQueue {
    /// Stops new operations from entering, until the handle is dropped. New operations stay in their submitters' plugs,
    /// with two exceptions. Those with [`Flags::nowait`](crate::Flags::nowait) end with
    /// [`Status::Again`](crate::Status::Again). A bare flush of a device without a volatile cache is over at once,
    /// because it never enters a queue. A submitter whose slots are all taken gives new bios back. Threads that drive
    /// the queue still enter it.
    pub fn freeze(&self) -> Freeze {
        self.0.control.close(&self.0.live.word, Flag::Frozen);
        let inside = observe(&self.0);
        Freeze { q: self.clone(), inside, is_drained: false }
    }

    /// Stops the driver from being given requests, and waits until no thread is about to give it any. Must not be
    /// called by a thread that is inside the queue, for example from a driver.
    pub fn quiesce(&self) -> Quiesce {
        self.0.control.close(&self.0.live.word, Flag::Quiesced);
        for (thread, seen) in observe(&self.0) {
            while !self.0.threads.get(thread).activity.has_left(seen) {
                thread::yield_now();
            }
        }
        Quiesce(self.clone())
    }

    /// Begins to change the scheduler, to one by name or to one of the caller's own, as
    /// [`Builder::scheduler`](crate::Builder::scheduler) takes it.
    ///
    /// # Errors
    /// No scheduler has this name, or something waits in the caller's own. When the change is made, it refuses a
    /// scheduler that orders each hardware queue by itself while the locking is [`Staged`](crate::Locking::Staged).
    pub fn change_scheduler(&self, scheduler: impl Into<SchedulerChoice>) -> Result<Change, QueueError> {
        let scheduler = scheduler.into().find()?;
        Ok(self.change(|q| q.domains.install(q, scheduler)))
    }

    /// Begins to change the number of hardware queues, whose depth stays.
    ///
    /// # Errors
    /// The numbers make no sense. The device's answer is known only when the change is made.
    pub fn change_topology(&self, topology: Topology) -> Result<Change, QueueError> {
        let topology = Topology { depth: self.0.hctxs.depth(), ..topology };
        topology.check()?;
        Ok(self.change(move |q| q.set_topology(topology)))
    }

    /// Begins to replace the ranges of sectors that are counted apart, with at most [`MAX_RANGES`](crate::MAX_RANGES).
    /// A range that keeps its name keeps its counts, even if its sectors change.
    ///
    /// # Errors
    /// Two ranges overlap or have the same name, a range has no sectors, or a range has sectors behind the end of the
    /// device.
    pub fn change_ranges(&self, ranges: Vec<SectorRange>) -> Result<Change, QueueError> {
        check_ranges(&ranges, self.limits().capacity_sectors)?;
        Ok(self.change(|q| {
            q.install_ranges(ranges);
            Ok(())
        }))
    }

    fn change(&self, apply: impl FnOnce(&Queue) -> Result<(), QueueError> + Send + 'static) -> Change {
        Change { q: self.clone(), freeze: Some(self.freeze()), apply: Some(Box::new(apply)), result: Ok(()) }
    }

    /// Makes a change on a drained queue. Threads drive a queue even while it is frozen. The quiescence keeps them away
    /// from the device. The lock keeps other changes away; otherwise the device and the table of hardware queues could
    /// end up with different numbers.
    fn apply(&self, apply: Apply) -> Result<(), QueueError> {
        let _quiesce = self.quiesce();
        debug_assert!(
            {
                let seen = self.0.live.word.load();
                seen.is_frozen() && seen.is_quiesced()
            },
            "a change is made while the queue is frozen and quiesced"
        );
        let _alone = self.0.control.lock();
        apply(&self.0)
    }
}
