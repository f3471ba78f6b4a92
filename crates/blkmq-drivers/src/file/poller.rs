//! The second ring of a polled hardware queue: its reads and writes complete when a thread looks, not by an interrupt.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use io_uring::IoUring;

use super::target::Target;

/// A ring whose completions are found by asking the device.
pub(super) struct Poller {
    pub(super) uring: IoUring,
    /// Transfers on it, for the thread that plans when to look.
    in_flight: AtomicU32,
    /// The disk does not poll: nothing more goes here.
    is_refused: AtomicBool,
}

impl Poller {
    /// A poller for `depth` transfers at once.
    pub(super) fn new(target: &Target, depth: u16) -> io::Result<Self> {
        let uring = IoUring::builder().setup_clamp().setup_iopoll().build(u32::from(depth))?;
        uring.submitter().register_files(&target.fds())?;
        Ok(Self { uring, in_flight: AtomicU32::new(0), is_refused: AtomicBool::new(false) })
    }

    /// Whether the disk has said that it does not poll.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Whether there is something to look for.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// A transfer is put on the ring.
    pub(super) fn note_start(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A transfer was answered. Returns whether that says that the disk does not poll; it is then for another ring.
    pub(super) fn note_answer(&self, result: i32) -> bool {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let is_refused = result == -libc::EOPNOTSUPP;
        if is_refused {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        is_refused
    }

    /// Asks the device what it has done; the answers lie on the ring then.
    ///
    /// COST: a system call.
    pub(super) fn look(&self) {
        // On a ring that polls each submission asks the device too; what another thread is just putting there may go
        // along. An error is a signal: a thread that waits looks again.
        let _ = self.uring.submit();
    }
}
