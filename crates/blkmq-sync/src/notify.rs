//! Being told of completions from outside the queue.

/// Something outside the queue that wants to know of completions, for example an eventfd or an executor.
///
/// Called by the completing thread, under no lock of the queue. The function must not block and must not call the
/// queue.
pub trait Notify: Send + Sync {
    /// Something completed for the submitter that this was given to.
    fn notify(&self);
}
