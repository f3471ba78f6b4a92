//! Completions as readiness of a file descriptor, for programs with an event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::Submitter;
use crate::sync::Arc;
use crate::wake::Notify;

/// A descriptor that becomes readable when its submitter should poll: something completed, or another thread started
/// one of its requests. Between two events, poll at [`Submitter::next_wakeup`] too, unless the queue has background
/// threads.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes the descriptor unreadable until the next event. Call it before polling, not after.
    pub fn drain(&self) {
        let mut count = [0; 8];
        // The descriptor does not block; an error means that there was nothing to drain.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notify for EventFd {
    fn notify(&self) {
        // The only error is a counter about to overflow, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Submitter {
    /// Makes an eventfd that fires on completion, in place of what [`set_notify`](Self::set_notify) set.
    ///
    /// # Errors
    /// Those of eventfd(2), such as no descriptors left.
    pub fn eventfd(&mut self) -> io::Result<Arc<EventFd>> {
        let fd = Arc::new(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        self.set_notify(Some(fd.clone()));
        Ok(fd)
    }
}
