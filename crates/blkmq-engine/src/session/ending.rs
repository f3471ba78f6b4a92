//! What ends before all of it is done, and the end of a session.

use std::time::{Duration, Instant};

use blkmq::Status;

use super::Session;
use super::task::TaskId;
use crate::ask::{Ask, Request};
use crate::failure::{Cause, Failure};

impl<F: Copy + Default> Session<F> {
    /// Takes a request that the front-end refuses itself, so that it is answered in its turn. `brings_data`: data
    /// follows that has to be skipped; the task is over after [`end_payload`](Self::end_payload). `None` if the bounds
    /// allow no further request.
    #[cold]
    pub fn refuse(&mut self, own: F, failure: Failure, brings_data: bool) -> Option<TaskId> {
        let id = self.enter(&Request::new(Ask::Tell { bytes: 0 }, 0, 0, own), [0; 2])?;
        let task = self.tasks.get_mut(id);
        (task.failure, task.taken) = (Some(Box::new(failure)), None);
        self.begin(id, brings_data);
        Some(id)
    }

    /// Called when the client is gone, and no client would get an answer. Operations that are with the queue are waited
    /// for. Of the others, only operations that change the export are still begun.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
        for _ in 0..self.waiting.len() {
            let Some(bio) = self.waiting.pop_front() else { break };
            if self.tasks.get(bio.user_data as TaskId).ask.only_tells() {
                self.settle(bio, Status::Gone);
            } else {
                self.waiting.push_back(bio);
            }
        }
    }

    /// Begins no further operation of a task that is not over. If its operations up to now were not all of it, it ends
    /// with [`Cause::Shutdown`](crate::Cause::Shutdown) when they are over.
    pub fn cut_short(&mut self, id: TaskId) {
        let task = self.tasks.get_mut(id);
        if task.next < task.end {
            task.failure.get_or_insert_with(|| Box::new(Failure::gone()));
        }
    }

    /// Called when a request that was not taken, because there was no memory, will not be tried again. Until then this
    /// session stands in the line for memory, and clients behind it get none.
    pub fn wait_no_more(&mut self) {
        self.pool.account.wait_no_more();
    }

    /// Fails the changes of parts of blocks, and those that wait for such changes, whose turn does not come because the
    /// thread of another connection is stuck. Returns whether there was any.
    #[cold]
    pub(super) fn fail_stuck(&mut self, now: Instant) -> bool {
        let mut has_any = false;
        while let Some(bio) = self.rmw.give_up(now) {
            has_any = true;
            let task = self.tasks.get_mut(bio.user_data as TaskId);
            task.failure.get_or_insert_with(|| {
                Box::new(Failure::new(Cause::Io, "a thread of another client is stuck, and has its turn at the block"))
            });
            self.settle(bio, Status::Timeout);
        }
        has_any
    }

    /// Returns how long the thread may sleep before it [submits](Self::submit) again, if nothing wakes it. `None`: for
    /// any time.
    #[must_use]
    pub fn max_sleep(&self) -> Option<Duration> {
        self.rmw.max_sleep()
    }

    /// Notes whether the client takes nothing of the replies that wait for it. As long as that is so, other clients get
    /// memory first.
    ///
    /// COST: a store; a lock where a request of this session waits for memory.
    pub fn note_stalled(&mut self, is_stalled: bool) {
        self.pool.account.note_stalled(is_stalled);
    }

    /// Returns true if another client can begin nothing for want of memory, and this one has more than its own part.
    ///
    /// COST: a lock where it has more.
    pub fn is_in_the_way(&self) -> bool {
        self.pool.account.is_in_the_way()
    }

    /// Called when every task is forgotten, and no more requests come.
    pub fn leave(&mut self) {
        self.rmw.leave();
    }
}
