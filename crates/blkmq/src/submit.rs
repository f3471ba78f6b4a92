//! Submitting: how one thread works with a queue.
//!
//! Here a bio becomes requests in a plug (`plug`, `split`, `merge`), and a submitter waits for what it submitted
//! (`waiting`, `readiness`), reaps it (`reap`), awaits it (`future`) or does one operation at a time (`blocking`).
//! Nothing in the library calls in here.

pub mod blocking;
pub mod future;
mod plug;
#[cfg(feature = "eventfd")]
mod readiness;
mod reap;
mod split;
mod waiting;
mod wakers;

pub use waiting::Waited;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use blkmq_sched::{ClientId, GroupId, IoPriority, MergeLimits, Time};

use crate::dispatcher::Dispatcher;
use crate::queue::{Queue, QueueError, RequestQueue, Served, ThreadState};
use crate::request::bio::Bio;
use crate::request::client::Client;
use crate::request::limits::Limits;
use crate::request::{Location, RejectReason, Rejected, RejectedBatch, RqId, RqList, Status};
use crate::submit::reap::Outstanding;
use crate::submit::split::UnsplitLimits;
use blkmq_sync::grace::Activity;
use blkmq_sync::notify::Notify;
use blkmq_sync::word::Snapshot;
use blkmq_sync::{Arc, Stage, stage, unless_mutated};

/// The means by which one thread works with a queue, for one client.
///
/// [`submit`](Self::submit) gathers operations in a plug. [`poll`](Self::poll) and [`wait`](Self::wait) pass the plug
/// on and drive the queue. [`reap`](Self::reap) hands out the operations that are over. A thread with operations
/// outstanding must poll or wait, because other threads may depend on it.
///
/// It may move to another thread, but two threads cannot share it:
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<blkmq::Submitter>();
/// ```
pub struct Submitter {
    q: RequestQueue,
    dispatcher: Dispatcher,
    client: ClientId,
    priority: IoPriority,
    /// The device's limits, with the capacity that this thread knows of.
    limits: Limits,
    /// What follows from the limits for most operations. These values are worked out once for the capacity that this
    /// thread knows of.
    whole: UnsplitLimits,
    /// What follows from the limits for merging.
    merge_limits: MergeLimits,
    plug: RqList,
    /// The client's group when the plug was begun.
    group: GroupId,
    /// The time when the oldest request came into the plug.
    plug_time: Time,
    /// The plug holds requests that could not be passed on.
    is_held_back: bool,
    /// This submitter leaves, and looks after every hardware queue meanwhile.
    polls_all: bool,
    /// Free slots; the slot used last is in front.
    free: RqList,
    /// What was handed out so far.
    served: Served,
    /// What is still to come of operations that were split, by the slot that holds the operation.
    outstanding: Box<[Outstanding]>,
    /// A submitter is one thread's at a time. So a submitter's fields may become cells without a change of the
    /// interface.
    _not_sync: PhantomData<Cell<()>>,
}

/// Fails to compile if a submitter cannot move to another thread.
#[cfg(test)]
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<Submitter>();
};

/// Fails to compile if two threads can share a submitter: which `Shared` is meant is then ambiguous.
#[cfg(test)]
const _: fn() = || {
    trait Shared<Which> {
        fn is_meant() {}
    }
    impl<T> Shared<()> for T {}
    impl<T: Sync> Shared<u8> for T {}
    <Submitter as Shared<_>>::is_meant();
};

impl fmt::Debug for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter")
            .field("thread", &self.dispatcher.number())
            .field("plugged", &self.plug.len())
            .field("outstanding", &self.nr_outstanding())
            .finish_non_exhaustive()
    }
}

impl RequestQueue {
    /// A new submitter for one thread, serving `client`.
    ///
    /// # Errors
    /// The queue has as many threads as it can. Or the hardware queues are [owned](crate::driver::Driver::is_owned),
    /// and each belongs to a submitter already. Or the client's name, weight or group cannot be.
    pub fn submitter(&self, client: &Client) -> Result<Submitter, QueueError> {
        let q = &self.0;
        let (thread, client_id) = q.threads.join(q, Some(client))?;
        let (free, limits) = (q.slots.take_pool(thread), q.limits());
        Ok(Submitter {
            dispatcher: Dispatcher::new(Arc::clone(q), thread),
            client: client_id,
            priority: client.priority,
            limits,
            whole: UnsplitLimits::new(&limits),
            merge_limits: limits.merge_limits(),
            plug: RqList::default(),
            group: GroupId::ROOT,
            plug_time: Time(0),
            is_held_back: false,
            polls_all: false,
            outstanding: vec![Outstanding::default(); free.len()].into_boxed_slice(),
            free,
            served: Served::default(),
            _not_sync: PhantomData,
            q: self.clone(),
        })
    }
}

impl Submitter {
    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &RequestQueue {
        &self.q
    }

    /// The number of slots: the most operations that can be outstanding. A split operation counts as its parts.
    #[must_use]
    pub fn nr_slots(&self) -> usize {
        self.outstanding.len()
    }

    /// The number of operations taken and not yet reaped. A split operation counts as its parts.
    #[must_use]
    pub fn nr_outstanding(&self) -> usize {
        self.nr_slots() - self.free.len()
    }

    /// Takes an operation, and never blocks. The operation waits in the plug, where it may merge with the operation
    /// before it. The plug is passed on when it is full, or by [`flush_plug`](Self::flush_plug), [`poll`](Self::poll)
    /// or [`wait`](Self::wait).
    ///
    /// # Errors
    /// The operation comes back if there is no free slot, or if it can never succeed. Nothing has happened then.
    // COST: an operation that needs neither splitting nor a flush moves from the caller's registers into its slot. That
    // works only if the function is inlined, no call on this path takes the operation's address, and unwinding does not
    // drop it: a value with a destructor lives in memory. So a panic on this path leaks the operation.
    #[inline(always)]
    pub fn submit(&mut self, bio: Bio) -> Result<RqId, Rejected> {
        let bio = ManuallyDrop::new(bio);
        self.begin_plug_if_empty();
        let Some((asked, piece)) = self.accept_whole(&bio) else {
            return self.submit_any(ManuallyDrop::into_inner(bio));
        };
        let id = self.plug_whole(&asked, piece, || ManuallyDrop::into_inner(bio));
        if self.is_plug_due() {
            self.flush_plug();
        }
        Ok(id)
    }

    /// Takes an operation that needs splitting, a flush or all checks. The plug has begun.
    #[inline(never)]
    fn submit_any(&mut self, bio: Bio) -> Result<RqId, Rejected> {
        let id = match self.accept_any(&bio) {
            Ok(nr_parts) => self.plug_parts(bio, nr_parts),
            Err(reason) => return Err(Rejected { bio, reason }),
        };
        if self.is_plug_due() {
            self.flush_plug();
        }
        Ok(id)
    }

    /// Takes operations from the front of `bios` until no slot is free or none is left, and passes the plug on. Returns
    /// how many it took. The others stay in `bios`: reap completions and submit them again.
    ///
    /// # Errors
    /// An operation can never succeed. The error has it, and the number of operations in front of it, which were taken.
    /// Those behind it stay in `bios`.
    ///
    /// COST: the clock is read once when the batch begins, unless a plug was begun before, and again after each full
    /// plug.
    pub fn submit_batch(&mut self, bios: &mut VecDeque<Bio>) -> Result<usize, RejectedBatch> {
        let mut taken = 0;
        let mut rejected = None;
        // Whether the plug was begun in this batch, so that the plug's time is the time of this batch.
        let mut is_fresh = self.plug.is_empty();
        while let Some(bio) = bios.front() {
            self.begin_plug_if_empty();
            if let Some((asked, piece)) = self.accept_whole(bio) {
                self.plug_whole(&asked, piece, || bios.pop_front().expect("it was there just now"));
            } else {
                match self.accept_any(bio) {
                    Ok(nr_parts) => _ = bios.pop_front().map(|bio| self.plug_parts(bio, nr_parts)),
                    Err(RejectReason::Full) => break,
                    Err(RejectReason::Bad(status)) => {
                        rejected = bios.pop_front().map(|bio| RejectedBatch { taken, bio, status });
                        break;
                    }
                }
            }
            taken += 1;
            if self.is_plug_due() {
                self.flush_plug_or_batch(is_fresh);
                is_fresh = self.plug.is_empty();
            }
        }
        self.flush_plug_or_batch(is_fresh);
        rejected.map_or(Ok(taken), Err)
    }

    /// Passes on what is in the plug. Requests that come while the queue is frozen stay in the plug, and are tried
    /// again at each poll. Those with [`Flags::nowait`](crate::Flags::nowait) end with [`Status::Again`] instead.
    pub fn flush_plug(&mut self) {
        if !self.plug.is_empty() {
            // The clock is read, because the time of the oldest request in the plug would be wrong: that request may
            // have waited long, and its wait is not the device's time.
            let now = self.q.0.clock().now();
            self.flush_plug_at(now);
        }
    }

    fn flush_plug_or_batch(&mut self, is_batch: bool) {
        if is_batch { self.flush_batch() } else { self.flush_plug() }
    }

    /// Like [`flush_plug`](Self::flush_plug), for a caller that has filled the plug without a pause. The time at which
    /// the plug was begun is taken for the time now, and the clock is not read again.
    pub fn flush_batch(&mut self) {
        if self.is_held_back {
            self.flush_plug();
        } else if !self.plug.is_empty() {
            self.flush_plug_at(self.plug_time);
        }
    }

    /// Passes on the plug and drives the queue: completes what the driver has finished, and dispatches what waits.
    /// Returns true if there is something to [`reap`](Self::reap).
    pub fn poll(&mut self) -> bool {
        let now = self.q.0.clock().now();
        let Self { q: RequestQueue(q), dispatcher, plug, .. } = self;
        let thread = dispatcher.number();
        let activity = &dispatcher.thread(q).activity;
        let seen = enter(q, activity);
        if !plug.is_empty() {
            dispatcher.take_plug(q, plug, now, seen);
        }
        dispatcher.drive_inside(q, |layout| layout.mapped(thread), now, seen);
        activity.leave();
        // Puts what other threads completed behind what this thread completed. Otherwise a caller that never reaps
        // everything would never see what other threads completed.
        self.collect();
        let is_over = self.settle();
        self.is_held_back = !self.plug.is_empty();
        stage(Stage::Look, usize::from(!is_over));
        is_over
    }

    /// Whether requests wait in the plug that the queue would take now.
    fn has_plugged(&self) -> bool {
        !self.plug.is_empty() && !self.q.0.live.word.load().is_frozen()
    }

    /// Sets what is notified, beside this thread, when something completes here or needs this thread to poll. It is
    /// notified at once if something has completed already, or needs this thread.
    pub fn set_notify(&mut self, notify: Option<Arc<dyn Notify>>) {
        let wake = &self.dispatcher.thread(&self.q.0).wake;
        // A thread that is notified counts as asleep, because it may be waiting elsewhere for the news.
        if let Some(change) = wake.set_notify(notify) {
            self.q.0.live.sleepers.change(change);
        }
        wake.poll_pending_event(|| self.dispatcher.has_completed() || self.has_reason_to_look());
    }

    /// Leaves the queue when everything outstanding has completed. Returns the operations that were still in the plug
    /// because the queue is frozen.
    #[must_use = "these operations were not done"]
    pub fn leave(mut self) -> Vec<Bio> {
        self.flush_plug();
        self.finish()
    }

    /// Ends the operations of the plug undone, and waits for what is outstanding. Returns the operations that were not
    /// done.
    fn finish(&mut self) -> Vec<Bio> {
        let mut plugged = std::mem::take(&mut self.plug);
        if !unless_mutated("leave.plug") {
            plugged = RqList::default();
        }
        while let Some(mut rq) = plugged.pop_front(&self.q.0.slots) {
            rq.body_mut().status = Status::Gone;
            let completed = self.dispatcher.completed();
            rq.into_parts(|part| completed.push_back(part, Location::Completed));
        }
        let mut undone = Vec::new();
        // What this submitter waits for may depend on a submitter of the same thread, which cannot poll meanwhile: its
        // request may have an operation of this one as a part, or the last depth token.
        self.polls_all = !self.q.0.is_owned;
        loop {
            while let Some(completion) = self.reap() {
                if completion.status == Status::Gone {
                    undone.push(completion.bio);
                }
            }
            if self.nr_outstanding() == 0 {
                debug_assert!(
                    self.plug.is_empty() && self.dispatcher.is_done() && !self.dispatcher.has_completed(),
                    "a submitter that goes has nothing in its hands"
                );
                return undone;
            }
            if self.polls_all {
                let now = self.q.0.clock().now();
                self.dispatcher.drive(&self.q.0, |layout| 0..layout.len(), now);
            }
            if !self.poll() {
                self.sleep(None, false);
            }
        }
    }

    fn flush_plug_at(&mut self, now: Time) {
        debug_assert!(!self.plug.is_empty(), "there is a plug to pass on");
        let outstanding = self.nr_outstanding();
        let Self { q: RequestQueue(q), dispatcher, plug, .. } = self;
        let ThreadState { activity, service, .. } = dispatcher.thread(q);
        service.note_outstanding(outstanding);
        let seen = enter(q, activity);
        dispatcher.take_plug(q, plug, now, seen);
        activity.leave();
        self.is_held_back = !self.plug.is_empty();
    }

    /// The hardware queues that this submitter's requests go to; all while it leaves.
    fn hctxs(&self) -> impl Iterator<Item = u16> + Clone + use<> {
        let (layout, polls_all) = (self.q.0.hctxs.layout(), self.polls_all);
        let all = 0..if polls_all { layout.len() } else { 0 };
        all.chain(layout.mapped(self.dispatcher.number()).filter(move |_| !polls_all))
    }

    /// The hardware queues that this submitter polls. There are none while the queue is quiesced, because a device's
    /// descriptors would wake the thread again and again.
    fn polled_hctxs(&self) -> impl Iterator<Item = u16> + Clone + use<> {
        let polls = !self.dispatcher.saw_quiesced();
        self.hctxs().filter(move |_| polls)
    }
}

impl Drop for Submitter {
    /// Waits for what is outstanding, so that no request outlives its submitter. Operations that are still in the plug
    /// because the queue is frozen are dropped undone; see [`Submitter::leave`].
    ///
    /// Meanwhile this thread polls every hardware queue, so it may have other submitters with operations outstanding.
    /// Where hardware queues are [owned](crate::driver::Driver::is_owned), only the owner can poll: a thread with
    /// several submitters waits for the operations of all before it drops one.
    ///
    /// If the driver panicked in this thread, requests in its hands are lost, and waiting for them would not end. Then
    /// the submitter keeps its place, because its slots are in use, and the queue stays forever, because the device
    /// may use their memory. The queue stays too if the driver panics while the submitter waits here.
    fn drop(&mut self) {
        let q = ManuallyDrop::new(Arc::clone(&self.q.0));
        let activity = &self.dispatcher.thread(&q).activity;
        if activity.is_active() {
            activity.leave();
            // This thread may have been the one that was woken to take on what another one left.
            q.notify_others(self.dispatcher.number());
            return self.set_notify(None);
        }
        let _ = self.finish();
        self.set_notify(None);
        self.q.0.threads.leave(&self.q.0, self.dispatcher.number(), Some(self.client));
        drop(ManuallyDrop::into_inner(q));
    }
}

/// Enters the queue and reads its word there. A thread that closes the queue meanwhile either waits for this thread, or
/// this thread sees its change: see [`grace`](blkmq_sync::grace).
#[inline(always)]
fn enter(q: &Queue, activity: &Activity) -> Snapshot {
    if unless_mutated("submit.word_inside") {
        activity.enter();
        q.live.word.load()
    } else {
        let seen = q.live.word.load();
        activity.enter();
        seen
    }
}
