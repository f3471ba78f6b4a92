//! What wakes a thread that waits for sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use blkmq::Notify;
use rustix::event::{EventfdFlags, eventfd};

/// An eventfd: readable from the first ring until it is drained. One serves completions and everything else.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable. What was made visible before is seen by who drains it afterwards.
    pub(crate) fn ring(&self) {
        // The only error is a counter about to overflow, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next ring. Called before looking at what it tells of, not after.
    pub(crate) fn drain(&self) {
        let mut count = [0; 8];
        // An error means that there was nothing to drain.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notify for Bell {
    fn notify(&self) {
        self.ring();
    }
}
