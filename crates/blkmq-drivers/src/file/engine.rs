//! What carries out the requests of a hardware queue: an io_uring, or threads if the system gives no io_uring.
//!
//! Both implement [`Engine`]; [`Rings`](super::rings::Rings) chooses between them.

use std::fmt::{self, Debug};
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::time::Duration;

use blkmq::Time;
use blkmq::driver::spec::SpecError;
use blkmq::driver::{Batch, Done};
use blkmq::event::EventFd;

use super::poller::Poller;
use super::registered::Memory;
use super::target::Target;
use crate::OpenError;

/// The choice of what carries out the requests of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Choice {
    /// An io_uring for each hardware queue, or threads if the system allows no io_uring.
    #[default]
    Any,
    /// An io_uring for each hardware queue.
    IoUring,
    /// Threads.
    Threads,
}

impl FromStr for Choice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "any" => Ok(Self::Any),
            "io_uring" => Ok(Self::IoUring),
            "threads" => Ok(Self::Threads),
            _ => Err(SpecError::new(format!("{text:?} is no engine; there are: any, io_uring, threads"))),
        }
    }
}

/// What of the kernel's offers a ring uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offers {
    /// Whether the kernel posts completions when the submitter next enters the kernel.
    pub(super) is_cooperative: bool,
    /// Whether the kernel has tables for memory.
    pub(super) has_table: bool,
    /// Whether these tables take pages of the kernel, of each request at a time.
    pub(super) has_pages: bool,
    /// Whether one system call hands over requests and sleeps until a time.
    pub(super) has_timed_sleep: bool,
}

impl fmt::Display for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_cooperative { "cooperative task work" } else { "task work by interrupts" })?;
        f.write_str(if self.has_table { ", registered buffers" } else { ", no registered buffers" })?;
        f.write_str(if self.has_timed_sleep { ", sleep in one call" } else { ", sleep by polling a descriptor" })
    }
}

/// Carries out the requests of one hardware queue. What threads do not have is what a ring adds to the defaults.
pub(super) trait Engine: Debug + Send + Sync {
    /// Starts the requests of a batch, in order, except those that reach past the end of a file that has become
    /// shorter.
    fn start(&self, target: &Target, batch: &mut Batch<'_>, now: Time);

    /// Takes finished requests, unless another thread is doing so.
    fn reap(&self, target: &Target, done: &mut Done<'_>);

    /// Returns a descriptor that is readable while requests are finished, except those that must be polled for. The
    /// call first waits for the thread that takes finished requests, as
    /// [`Driver::ready_fd`](blkmq::driver::Driver::ready_fd) asks for.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Sleeps until requests are finished, or `bell` is readable, or `timeout` has passed, as
    /// [`Driver::sleep`](blkmq::driver::Driver::sleep) says. The same system call hands over what the kernel has not
    /// taken yet. Returns false, without having slept, if the engine cannot be slept on.
    fn sleep(&self, _bell: &EventFd, _timeout: Option<Duration>) -> bool {
        false
    }

    /// Returns what the engine uses of the kernel's offers to rings.
    fn offers(&self) -> Option<Offers> {
        None
    }

    /// Returns why the engine can do nothing now, if that is so. The next batch tries again.
    fn refusal(&self) -> Option<String> {
        None
    }

    /// Returns true if the engine must be polled again at once, because no descriptor tells when.
    fn is_restless(&self) -> bool {
        false
    }

    /// Returns the poller of reads and writes, if they are polled.
    fn poller(&self) -> Option<&Poller> {
        None
    }

    /// Registers memory in a slot, or clears the slot.
    fn register(&self, _slot: u16, _memory: Option<Memory>) {}

    /// Takes all pages of the kernel out of the engine's table. The kernel keeps those that it is just moving data of.
    /// Requests that go on with other pages fail.
    fn let_go(&self) {}

    /// Returns the bytes of memory that are registered.
    fn registered(&self) -> usize {
        0
    }

    /// Makes the poller that a polled hardware queue needs. Returns whether it is new, and so knows none of the memory.
    fn make_poller(&self, _target: &Target) -> Result<bool, OpenError> {
        Err(OpenError::new("polled hardware queues need io_uring; threads wait for the disk"))
    }

    /// Makes the hardware queue a polled one, or not, from now on. No request is in flight.
    fn set_polls(&self, _polls: bool) {}
}
