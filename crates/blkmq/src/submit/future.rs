//! Operations as futures, for any executor.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::request::bio::Bio;
use crate::request::{Completion, Failed, RejectReason, Rejected, RqId, SlotIndex};
use crate::submit::Submitter;
use crate::submit::wakers::{self, Gathering};
use blkmq_sched::Time;
use blkmq_sync::atomic::{AtomicBool, Ordering};
use blkmq_sync::notify::Notify;
use blkmq_sync::{Arc, Mutex, place_anew};

/// A submitter whose operations are futures. Clones share it, also between threads.
///
/// Polling a future drives the queue. There is one exception: since this future was polled last, another future of this
/// submitter has driven the queue, nothing has come since, and nothing is to be passed on.
///
/// While every task sleeps, something else must drive the queue: background threads
/// ([`RequestQueue::start_threads`](crate::RequestQueue::start_threads)), other submitters' threads, or a timer of the
/// executor set to [`next_wakeup`](Self::next_wakeup). If the device says by a descriptor what it has completed, as
/// files do, only threads can drive the queue, because the times of its completions are not known.
///
/// A future calls the wakers of other futures at the end of its own poll. So waking must only schedule a task, as every
/// common executor does, and not poll the task at once.
#[derive(Debug, Clone)]
pub struct AsyncSubmitter {
    inner: Arc<Mutex<Inner>>,
}

/// Fails to compile if tasks on several threads cannot share a submitter, or if a task with an operation cannot move.
#[cfg(test)]
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    fn moves<T: Send>() {}
    is_shared::<AsyncSubmitter>();
    moves::<Operation>();
};

/// An operation on its way. Resolves to its [`Completion`], or to [`Failed`] if it was not done.
///
/// Dropping it does not end the operation: the buffers stay with it, and are freed when it completes.
#[must_use = "an operation in the plug goes on when its future is polled"]
pub struct Operation {
    inner: Arc<Mutex<Inner>>,
    id: RqId,
    is_over: bool,
    /// How often the queue had been driven when this future was polled last.
    seen: u64,
}

#[derive(Debug)]
struct Inner {
    submitter: Submitter,
    /// How often futures of this submitter have driven the queue.
    nr_drives: u64,
    /// The earliest time that was given as that of the next poll, until a task drives at that time or later.
    due: Option<Time>,
    /// Operations whose future lives, and what it will resolve to once that is known. Operations are found by id and
    /// not by slot, because a slot is free again when its operation is reaped, which may be long before the future is
    /// polled.
    watched: HashMap<RqId, Option<Completion>>,
    tasks: Arc<Tasks>,
}

/// The tasks that wait, each at the slot of its operation.
///
/// A completion wakes the task of the operation that completed. That task finds the completion: it registered before it
/// looked, so a completer that found no waker here delivered before that look. Any other news wakes all tasks: one of
/// them must drive the queue, and it is not known which of them will poll its future soon.
#[derive(Debug)]
struct Tasks {
    wakers: Mutex<Box<[Option<Waker>]>>,
    /// Something came from outside since one of the tasks drove the queue last.
    is_new: AtomicBool,
}

impl Tasks {
    fn new(nr_slots: usize) -> Self {
        Self { wakers: Mutex::new((0..nr_slots).map(|_| None).collect()), is_new: AtomicBool::new(false) }
    }

    /// Names what the tasks share, for rigs.
    fn name_places(&self) {
        place_anew("future.wakers", &self.wakers);
        place_anew("future.is_news", &self.is_new);
    }

    /// Registers the task of an operation that is outstanding. Returns the waker that was known before. The caller
    /// drops that waker outside the submitter's lock: see [`wakers`].
    fn register(&self, slot: u16, waker: &Waker) -> Option<Waker> {
        let known = &mut self.wakers.lock()[usize::from(slot)];
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        known.replace(waker.clone())
    }

    fn take(&self, slot: u16) -> Option<Waker> {
        self.wakers.lock()[usize::from(slot)].take()
    }

    /// Takes the first waker from this slot on, with its slot.
    fn take_next(&self, from: usize) -> Option<(usize, Waker)> {
        let mut wakers = self.wakers.lock();
        let mut behind = wakers.iter_mut().enumerate().skip(from);
        behind.find_map(|(slot, waker)| Some((slot, waker.take()?)))
    }

    fn note_event(&self) {
        // Relaxed: a task that takes this away and then drives enters the queue behind a fence, and a thread that has
        // news fences before it tells of the news. So either the task sees the news there, or this store comes later
        // and the woken task drives again.
        self.is_new.store(true, Ordering::Relaxed);
    }
}

impl Notify for Tasks {
    fn notify(&self) {
        self.note_event();
        let (mut from, mut taken) = (0, None::<Waker>);
        while let Some((slot, waker)) = self.take_next(from) {
            from = slot + 1;
            // A task often waits for several operations in a row. The task is woken when the last of them was taken: a
            // task that was woken earlier may have registered in between, and would not be woken for what is taken
            // afterwards.
            if let Some(other) = taken.replace(waker)
                && !taken.as_ref().is_some_and(|waker| waker.will_wake(&other))
            {
                wakers::wake(other);
            }
        }
        taken.into_iter().for_each(wakers::wake);
    }

    fn completed(&self, slots: &[u16]) {
        self.note_event();
        slots.iter().filter_map(|slot| self.take(*slot)).for_each(wakers::wake);
    }
}

fn slot_of(id: RqId) -> u16 {
    SlotIndex::of(id).slot()
}

impl AsyncSubmitter {
    /// Makes the operations of a submitter futures.
    #[must_use]
    pub fn new(mut submitter: Submitter) -> Self {
        let tasks = Arc::new(Tasks::new(submitter.nr_slots()));
        tasks.name_places();
        submitter.set_notify(Some(tasks.clone()));
        let watched = HashMap::with_capacity(submitter.nr_slots());
        let inner = Arc::new(Mutex::new(Inner { submitter, nr_drives: 0, due: None, watched, tasks }));
        place_anew("future.submitter", &*inner);
        Self { inner }
    }

    /// Takes an operation. The operation is passed on when its future, or another one of this submitter, is polled. If
    /// there is no slot, this call drives the queue once and tries again: operations whose futures were dropped may
    /// take all slots, and then there is no future to poll.
    ///
    /// # Errors
    /// Those of [`Submitter::submit`]. With [`RejectReason::Full`], and no other future to wait for, try again at
    /// [`next_wakeup`](Self::next_wakeup).
    pub fn submit(&self, bio: Bio) -> Result<Operation, Rejected> {
        let _gathering = Gathering::begin();
        let mut inner = self.inner.lock();
        let submitted = inner.submitter.submit(bio).or_else(|rejected| {
            if rejected.reason != RejectReason::Full {
                return Err(rejected);
            }
            inner.reap(None);
            inner.submitter.submit(rejected.bio)
        });
        if let Ok(id) = submitted {
            inner.watched.insert(id, None);
        }
        let seen = inner.nr_drives;
        drop(inner);
        Ok(Operation { inner: Arc::clone(&self.inner), id: submitted?, is_over: false, seen })
    }

    /// The time at which to poll a future next even if nothing wakes it; see [`Submitter::next_wakeup`].
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        let mut inner = self.inner.lock();
        let wakeup = inner.submitter.next_wakeup();
        inner.due = [inner.due, wakeup].into_iter().flatten().min();
        wakeup
    }
}

impl Inner {
    /// Whether a time has come that was given as that of the next poll.
    fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= self.submitter.queue().clock().now())
    }

    /// Whether this operation, whose future lives, has not been reaped, so that its slot is its own.
    fn is_outstanding(&self, id: RqId) -> bool {
        self.watched.get(&id).expect("an operation is watched until its future is over").is_none()
    }

    /// Drives the queue and reaps what is over. The tasks that wait for it are woken when the caller has unlocked, but
    /// for the task of the operation `own`.
    fn reap(&mut self, own: Option<RqId>) {
        self.nr_drives += 1;
        if self.is_due() {
            self.due = None;
        }
        self.submitter.poll();
        while let Some(completion) = self.submitter.reap() {
            let id = completion.id;
            let Some(done) = self.watched.get_mut(&id) else { continue };
            *done = Some(completion);
            // Taken now, because the slot may soon belong to another operation.
            if Some(id) != own {
                self.tasks.take(slot_of(id)).into_iter().for_each(wakers::wake);
            }
        }
    }
}

impl Future for Operation {
    type Output = Result<Completion, Failed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.is_over, "a future is not polled after it has resolved");
        let submitter = Arc::clone(&self.inner);
        let gathering = Gathering::begin();
        let mut inner = submitter.lock();
        let slot = slot_of(self.id);
        // Registered first, so that anything that completes from here on wakes this task. If the operation is over
        // already, its slot may belong to another one.
        let is_outstanding = inner.is_outstanding(self.id);
        let known = if is_outstanding { inner.tasks.register(slot, context.waker()) } else { None };
        // Of the tasks that are woken together, one drives the queue. The others would find nothing new, unless
        // something waits in the plug or a time has come. A task that was polled twice while no task drove in between
        // has a reason of its own.
        let is_new = inner.tasks.is_new.swap(false, Ordering::Relaxed)
            || self.seen == inner.nr_drives
            || inner.submitter.has_plugged()
            || inner.is_due();
        if is_new {
            inner.reap(Some(self.id));
        }
        self.seen = inner.nr_drives;
        let is_over = !inner.is_outstanding(self.id);
        let done = if is_over { inner.watched.remove(&self.id).flatten() } else { None };
        let own = if is_over && is_outstanding { inner.tasks.take(slot) } else { None };
        drop(inner);
        drop((known, own));
        drop(gathering);
        match done {
            Some(completion) => {
                self.is_over = true;
                Poll::Ready(completion.into_result())
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.is_over {
            let mut inner = self.inner.lock();
            let waker = if inner.is_outstanding(self.id) { inner.tasks.take(slot_of(self.id)) } else { None };
            let done = inner.watched.remove(&self.id);
            drop(inner);
            // A completion with its buffers, and a task, are dropped outside the lock.
            drop((waker, done));
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("id", &self.id).field("is_over", &self.is_over).finish()
    }
}
