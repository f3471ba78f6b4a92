//! Tasks that are over: what the front-end learns of them, until it has answered and forgets them.

use blkmq::{Buffer, Buffers};

use super::Session;
use super::task::TaskId;
use crate::ask::Ask;
use crate::failure::{Cause, Failure};

impl<F: Copy + Default> Session<F> {
    /// Called when nothing more is to be done for a task.
    #[inline]
    pub(super) fn finish(&mut self, id: TaskId) {
        let Self { tasks, pool, finished, now, counters, .. } = self;
        let task = tasks.get_mut(id);
        if let Some(taken) = task.taken {
            counters.count_time(task.ask, taken, *now);
        }
        if task.failure.is_some() {
            task.data.drain(..).for_each(|buffer| pool.give(buffer));
        } else if matches!(task.ask, Ask::Read | Ask::Write { .. }) {
            counters.count_bytes(task.length);
        }
        finished.push_back(id);
    }

    /// Returns a task that is over, and its failure if it has failed. Tasks come in the order in which they were over,
    /// each once. The front-end counts each failure that it tells its client ([`count_error`](Self::count_error)).
    pub fn next_finished(&mut self) -> Option<(TaskId, Option<Failure>)> {
        let id = self.finished.pop_front()?;
        Some((id, self.tasks.get_mut(id).failure.take().map(|failure| *failure)))
    }

    /// Counts a request that is answered with an error. The front-end's protocol may have fewer kinds of errors than
    /// there are causes.
    pub fn count_error(&mut self, cause: Cause) {
        self.counters.count_error(cause);
    }

    /// Memory of this many bytes for the answer of a finished task that asked to tell, at most as many as it asked for.
    /// They are left from their last use. The answer is then in the task's [`pieces`](Self::pieces).
    ///
    /// # Errors
    /// The system has no memory.
    pub fn answer(&mut self, id: TaskId, len: usize) -> Result<&mut Buffer, Failure> {
        let Self { tasks, pool, .. } = self;
        let task = tasks.get_mut(id);
        debug_assert!(matches!(task.ask, Ask::Tell { bytes } if len <= bytes as usize), "{len} bytes: {:?}", task.ask);
        task.data.push(pool.take(len).ok_or_else(Failure::no_memory)?);
        task.data.last_mut().ok_or_else(Failure::no_memory)
    }

    /// Forgets a finished task, whose client has got its answer. Its number may be used again from now on.
    /// [`shrink`](Self::shrink) follows when all such tasks are forgotten.
    pub fn forget(&mut self, id: TaskId) {
        let Self { tasks, pool, bytes, counters, .. } = self;
        let task = tasks.get_mut(id);
        pool.account.give(std::mem::take(&mut task.promised));
        if !task.data.is_empty() {
            task.data.drain(..).for_each(|buffer| pool.give(buffer));
        }
        task.external = Buffers::None;
        *bytes -= std::mem::take(&mut task.charge);
        tasks.give(id);
        counters.count_answer();
    }

    /// Returns memory that is not needed now for other connections.
    ///
    /// COST: a few comparisons; where there is much, a lock, and buffers are freed.
    pub fn shrink(&mut self) {
        self.pool.shrink();
    }
}
