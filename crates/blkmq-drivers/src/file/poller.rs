//! The second ring of a polled hardware queue: its reads and writes complete when a thread looks, not by an interrupt.
//!
//! The [ring](super::ring) of the hardware queue puts transfers on this second ring and takes them off. The locks for
//! that are the first ring's.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use io_uring::IoUring;

use super::target::Target;

/// A ring whose completions are found by asking the device.
pub(super) struct Poller {
    pub(super) uring: IoUring,
    /// The number of transfers on the ring, for the thread that decides when to look.
    in_flight: AtomicU32,
    /// Whether the disk does not poll. Then nothing more is put on this ring.
    is_refused: AtomicBool,
}

impl Poller {
    /// Creates a poller for `depth` transfers at once.
    pub(super) fn new(target: &Target, depth: u16) -> io::Result<Self> {
        let uring = IoUring::builder().setup_clamp().setup_iopoll().build(u32::from(depth))?;
        uring.submitter().register_files(&target.fds())?;
        Ok(Self { uring, in_flight: AtomicU32::new(0), is_refused: AtomicBool::new(!target.may_poll()) })
    }

    /// Returns true if the disk has said that it does not poll.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Returns true if there is something to look for.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// Called when a transfer is put on the ring.
    pub(super) fn note_start(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Called when a transfer was answered. Returns whether the answer says that the disk does not poll. Then the
    /// transfer has to go to the other ring.
    pub(super) fn note_answer(&self, result: i32) -> bool {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let is_refused = result == -libc::EOPNOTSUPP;
        if is_refused {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        is_refused
    }

    /// Asks the device what it has done. After that the answers are on the ring.
    ///
    /// COST: a system call.
    pub(super) fn look(&self) {
        // On a ring that polls, each submission also asks the device. An entry that another thread is just putting on
        // the ring may be submitted too. An error means a signal: a thread that waits looks again.
        let _ = self.uring.submit();
    }
}
