//! Operations as futures, for any executor.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::request::RqId;
use crate::request::bio::Bio;
use crate::request::completion::{Completion, RejectReason, Rejected};
use crate::submit::Submitter;
use blkmq_sched::Time;
use blkmq_sync::atomic::{AtomicBool, Ordering};
use blkmq_sync::notify::Notify;
use blkmq_sync::{Arc, Mutex};

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
/// Wakers may be called while another future of the same submitter is being polled. So waking must only schedule a
/// task, as every common executor does, and not poll the task at once.
#[derive(Debug, Clone)]
pub struct AsyncSubmitter {
    inner: Arc<Mutex<Inner>>,
}

/// An operation on its way. Resolves to its [`Completion`].
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
    watched: HashMap<RqId, Watched>,
    wakers: Arc<Wakers>,
}

/// An operation whose future lives.
#[derive(Debug, Default)]
struct Watched {
    /// What the future resolves to, once that is known.
    done: Option<Completion>,
    /// The task that polled the future last, until it is woken because the operation is over.
    waker: Option<Waker>,
}

/// The tasks that wait. All of them are woken by news from outside, because a thread that has news does not know which
/// task will poll its future, and one that does must drive the queue. A task that drives the queue knows which
/// operations are over, and wakes only the tasks of these.
#[derive(Debug, Default)]
struct Wakers {
    tasks: Mutex<Vec<Waker>>,
    /// Something came from outside since one of the tasks drove the queue last.
    is_news: AtomicBool,
}

impl Wakers {
    fn register(&self, waker: &Waker) {
        let mut wakers = self.tasks.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.tasks.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Notify for Wakers {
    fn notify(&self) {
        // Relaxed: a task that takes this away and then drives enters the queue behind a fence, and a thread that has
        // news fences before it tells of the news. So either the task sees the news there, or this store comes later
        // and the woken task drives again.
        self.is_news.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl AsyncSubmitter {
    /// Makes the operations of a submitter futures.
    #[must_use]
    pub fn new(mut submitter: Submitter) -> Self {
        let wakers = Arc::new(Wakers::default());
        submitter.set_notify(Some(wakers.clone()));
        let watched = HashMap::with_capacity(submitter.nr_slots());
        Self { inner: Arc::new(Mutex::new(Inner { submitter, nr_drives: 0, due: None, watched, wakers })) }
    }

    /// Takes an operation. The operation is passed on when its future, or another one of this submitter, is polled. If
    /// there is no slot, this call drives the queue once and tries again: operations whose futures were dropped may
    /// take all slots, and then there is no future to poll.
    ///
    /// # Errors
    /// Those of [`Submitter::submit`]. With [`RejectReason::Full`], and no other future to wait for, try again at
    /// [`next_wakeup`](Self::next_wakeup).
    pub fn submit(&self, bio: Bio) -> Result<Operation, Rejected> {
        let mut inner = self.inner.lock();
        let mut woken = Vec::new();
        let submitted = inner.submitter.submit(bio).or_else(|rejected| {
            if rejected.reason != RejectReason::Full {
                return Err(rejected);
            }
            woken = inner.reap(None);
            inner.submitter.submit(rejected.bio)
        });
        if let Ok(id) = submitted {
            inner.watched.insert(id, Watched::default());
        }
        let seen = inner.nr_drives;
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
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

    /// Drives the queue and reaps what is over. Returns the wakers of the tasks that wait for it, but for the task of
    /// the operation `own`. The caller wakes them outside the lock, because a waker may be the last thing that keeps a
    /// task, and with it a future that locks.
    #[must_use = "these tasks have something to look at"]
    fn reap(&mut self, own: Option<RqId>) -> Vec<Waker> {
        let mut woken = Vec::new();
        self.nr_drives += 1;
        if self.is_due() {
            self.due = None;
        }
        self.submitter.poll();
        while let Some(completion) = self.submitter.reap() {
            let Some(watched) = self.watched.get_mut(&completion.id) else { continue };
            if Some(completion.id) != own {
                woken.extend(watched.waker.take());
            }
            watched.done = Some(completion);
        }
        woken
    }
}

impl Future for Operation {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        assert!(!self.is_over, "a future is not polled after it has resolved");
        let shared = Arc::clone(&self.inner);
        let mut inner = shared.lock();
        // Registered first, so that anything that completes from here on wakes this task.
        inner.wakers.register(context.waker());
        // Of the tasks that are woken together, one drives the queue. The others would find nothing new, unless
        // something waits in the plug or a time has come. A task that was polled twice while no task drove in between
        // has a reason of its own.
        let is_news = inner.wakers.is_news.swap(false, Ordering::Relaxed)
            || self.seen == inner.nr_drives
            || inner.submitter.has_plugged()
            || inner.is_due();
        let woken = if is_news { inner.reap(Some(self.id)) } else { Vec::new() };
        self.seen = inner.nr_drives;
        let watched = inner.watched.get_mut(&self.id).expect("an operation is watched until its future is over");
        let done = watched.done.take();
        // The waker that was known before is dropped outside the lock too.
        let known = if done.is_some() {
            inner.watched.remove(&self.id).and_then(|watched| watched.waker)
        } else if watched.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            None
        } else {
            watched.waker.replace(context.waker().clone())
        };
        drop(inner);
        drop(known);
        woken.into_iter().for_each(Waker::wake);
        match done {
            Some(completion) => {
                self.is_over = true;
                Poll::Ready(completion)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.is_over {
            let done = self.inner.lock().watched.remove(&self.id);
            // A completion with its buffers is dropped here, outside the lock.
            drop(done);
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("id", &self.id).field("is_over", &self.is_over).finish()
    }
}
