//! Operations as futures, for any executor.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::bio::Bio;
use crate::request::SlotIndex;
use crate::submit::{Completion, Rejected, Submitter};
use crate::sync::{Arc, Mutex};
use crate::wake::Notify;
use crate::{RqId, Time};

/// A submitter whose operations are futures. Clones share it, also between threads.
///
/// Polling a future drives the queue. While every task sleeps somebody else must: background threads
/// ([`RequestQueue::start_threads`](crate::RequestQueue::start_threads)), other submitters' threads, or a timer of the
/// executor set to [`next_wakeup`](Self::next_wakeup).
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
}

/// What is known of the operation in a slot.
#[derive(Debug)]
enum Entry {
    /// No future waits for it.
    Unwatched,
    Waiting,
    Done(Completion),
}

#[derive(Debug)]
struct Inner {
    submitter: Submitter,
    entries: Vec<Entry>,
    wakers: Arc<Wakers>,
}

/// The tasks that wait, all of which look when anything completes.
#[derive(Debug, Default)]
struct Wakers(Mutex<Vec<Waker>>);

impl Notify for Wakers {
    fn notify(&self) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl AsyncSubmitter {
    /// Turns a submitter into one of futures.
    #[must_use]
    pub fn new(mut submitter: Submitter) -> Self {
        let wakers = Arc::new(Wakers::default());
        submitter.set_notify(Some(wakers.clone()));
        let entries = (0..submitter.nr_slots()).map(|_| Entry::Unwatched).collect();
        Self { inner: Arc::new(Mutex::new(Inner { submitter, entries, wakers })) }
    }

    /// Takes an operation; it is passed on when its future, or another of this submitter, is polled.
    ///
    /// # Errors
    /// Those of [`Submitter::submit`].
    pub fn submit(&self, bio: Bio) -> Result<Operation, Rejected> {
        let mut inner = self.inner.lock();
        let id = inner.submitter.submit(bio)?;
        inner.entries[slot(id)] = Entry::Waiting;
        Ok(Operation { inner: Arc::clone(&self.inner), id, is_over: false })
    }

    /// When to poll a future next though nothing wakes it; see [`Submitter::next_wakeup`].
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        self.inner.lock().submitter.next_wakeup()
    }
}

fn slot(id: RqId) -> usize {
    usize::from(SlotIndex::of(id).slot())
}

impl Inner {
    /// Reaps what is over. Returns whether other futures than the one of `id` have something to look at.
    fn reap(&mut self, id: RqId) -> bool {
        self.submitter.poll();
        let mut others = false;
        while let Some(completion) = self.submitter.reap() {
            let entry = &mut self.entries[slot(completion.id)];
            others |= completion.id != id;
            *entry = match entry {
                Entry::Unwatched => Entry::Unwatched,
                Entry::Waiting | Entry::Done(_) => Entry::Done(completion),
            };
        }
        others
    }
}

impl Future for Operation {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        assert!(!self.is_over, "a future is not polled after it has resolved");
        let shared = Arc::clone(&self.inner);
        let mut inner = shared.lock();
        // Registered first, so that what completes from here on wakes this task.
        inner.wakers.0.lock().push(context.waker().clone());
        let others = inner.reap(self.id);
        let wakers = Arc::clone(&inner.wakers);
        let entry = &mut inner.entries[slot(self.id)];
        let done = match std::mem::replace(entry, Entry::Unwatched) {
            Entry::Done(completion) => Some(completion),
            waiting => {
                *entry = waiting;
                None
            }
        };
        drop(inner);
        if others {
            wakers.notify();
        }
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
            let done = {
                let entry = &mut self.inner.lock().entries[slot(self.id)];
                std::mem::replace(entry, Entry::Unwatched)
            };
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
