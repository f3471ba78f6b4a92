//! What a worker does beside its rounds if its job has partial operations.

use std::time::Duration;

use blkmq::{Buffers, Time};

use super::{Worker, describe};

impl Worker {
    /// Takes an operation of a job with partial ones. Returns how many there were, 0 or 1.
    #[inline(never)]
    pub(super) fn reap_partial(&mut self, last: &mut Time) -> u32 {
        let Self { partials: Some(partials), submitter, .. } = self else { return 0 };
        let Some(done) = partials.reap(submitter) else { return 0 };
        self.recorder.note_as(done.op, done.bytes, done.status, || (done.latency_ns, done.device_ns));
        *last = done.completed;
        if done.failed_in_read {
            let what = describe(done.op, done.at, done.bytes);
            self.fail(format!("{what}: {}, in the read of the blocks around it", done.status));
        }
        self.look_at(done.op, done.at, done.bytes, done.status, &done.buffers);
        if let Buffers::One(buffer) = done.buffers {
            self.spare.push(buffer);
        }
        1
    }

    /// Whether an operation waits for the lock on its blocks.
    pub(in crate::bench) fn waits_for_lock(&self) -> bool {
        self.partials.as_ref().is_some_and(|partials| partials.waits_for_lock())
    }

    /// Sleeps until an operation gets the lock on its blocks, for `at_most` at the longest.
    pub(in crate::bench) fn wait_for_lock(&self, at_most: Duration) {
        if let Some(partials) = &self.partials {
            partials.wait_for_lock(at_most);
        }
    }
}
