//! What ends before all of it is done, and the end of a desk.

use blkmq::Status;

use super::Desk;
use super::task::TaskId;
use crate::failure::Failure;

impl<F: Copy + Default> Desk<F> {
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

    /// Called when every task is forgotten, and no more requests come.
    pub fn leave(&mut self) {
        self.edges.leave();
    }
}
