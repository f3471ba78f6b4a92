//! Completions as readiness of a file descriptor, for programs with an event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::notify::Notify;

/// A descriptor that becomes readable when its submitter should poll: something completed, or another thread started
/// one of its requests. Between two events, poll at `Submitter::next_wakeup`, and also
/// when one of `Submitter::device_fds` is readable. If the queue has background
/// threads, neither is needed.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    id: u64,
}

impl EventFd {
    /// A descriptor for `Submitter::set_notify`. The program may also make it readable
    /// for any other reason, by [`Notify::notify`].
    ///
    /// # Errors
    /// Those of eventfd(2), for example that no descriptors are left.
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, id: MADE.fetch_add(1, Ordering::Relaxed) })
    }

    /// A number that no other event of this process has, or had before. The number of the descriptor is given to
    /// another file when this one is closed.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits until this descriptor or one of `fds` is readable, or `timeout` has passed. Drains this descriptor if it
    /// was readable. May return early.
    pub fn wait_beside(&self, fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
        let mut polled = vec![PollFd::new(self, PollFlags::IN)];
        polled.extend(fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // A time that is too long for the system's type is as good as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // The error is a signal or a lack of memory. In both cases the caller tries again.
        let _ = poll(&mut polled, timeout.as_ref());
        if !polled[0].revents().is_empty() {
            self.drain();
        }
    }

    /// Makes the descriptor unreadable until the next event. Call it before polling, not after.
    pub fn drain(&self) {
        let mut count = [0; 8];
        // The descriptor does not block; an error means that there was nothing to drain.
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Notify for EventFd {
    fn notify(&self) {
        // The only error is a counter about to overflow, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}
