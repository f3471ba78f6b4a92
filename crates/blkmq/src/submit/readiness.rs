//! Completions as readiness of file descriptors: what a submitter offers to a program with an event loop.

use std::io;
use std::os::fd::BorrowedFd;

use crate::submit::Submitter;
use blkmq_sync::Arc;
use blkmq_sync::event::EventFd;

impl Submitter {
    /// Makes an eventfd that fires on completion. The eventfd replaces what [`set_notify`](Self::set_notify) set.
    ///
    /// # Errors
    /// Those of eventfd(2), for example that no descriptors are left.
    pub fn eventfd(&mut self) -> io::Result<Arc<EventFd>> {
        let fd = Arc::new(EventFd::new()?);
        self.set_notify(Some(fd.clone()));
        Ok(fd)
    }

    /// The device's descriptors that say when this submitter should poll. The descriptors are readable while the device
    /// has completed something on a hardware queue that this submitter's requests go to. There are none if the device's
    /// completions come at times that [`next_wakeup`](Self::next_wakeup) tells. The descriptors change with the number
    /// of hardware queues.
    ///
    /// Ask for the descriptors before each sleep. This call waits for another thread that is taking completions off the
    /// device. Until that thread is done, the descriptors may be readable although there is nothing for this thread to
    /// do.
    #[must_use]
    pub fn device_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.q.0.ready_fds(self.polled_hctxs())
    }
}
