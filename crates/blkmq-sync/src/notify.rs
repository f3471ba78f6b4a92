//! Being told of completions from outside the queue.

/// Something outside the queue that wants to know of completions, for example an eventfd or an executor.
///
/// Called by the completing thread, under no lock of the queue. The functions must not block and must not call the
/// queue. A panic in them is reported, and goes no further.
pub trait Notify: Send + Sync {
    /// Something completed for the submitter that this was given to, or needs that submitter to poll.
    fn notify(&self);

    /// The operations in these slots of the submitter completed, and nothing else happened. For those that wait for
    /// single operations; by default the same as [`notify`](Self::notify).
    fn completed(&self, slots: &[u16]) {
        let _ = slots;
        self.notify();
    }
}
