//! What carries out the requests of a hardware queue: an io_uring, or threads if the system gives no io_uring.
//!
//! [`Engine`] is the one place that knows of both.

use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use blkmq::Time;
use blkmq::driver::spec::SpecError;
use blkmq::driver::{Batch, Done};
use blkmq::event::EventFd;

use crate::OpenError;

use super::crew::Crew;
use super::journal::Journal;
use super::poller::Poller;
use super::refusal::refused;
use super::registered::Memory;
use super::ring::{Offers, Ring};
use super::target::Target;

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

/// What carries out the requests of one hardware queue.
#[expect(clippy::large_enum_variant, reason = "there are few, all of one kind")]
#[derive(Debug)]
pub(super) enum Engine {
    Ring(Ring),
    Crew(Crew),
}

impl Engine {
    pub(super) fn ring(
        target: &Target,
        depth: u16,
        owned: bool,
        journal: Option<(u16, Arc<dyn Journal>)>,
    ) -> io::Result<Self> {
        Ring::new(target, depth, owned).map(|ring| Self::Ring(ring.with_journal(journal)))
    }

    pub(super) fn crew(target: &Target, depth: u16, journal: Option<(u16, Arc<dyn Journal>)>) -> io::Result<Self> {
        Crew::new(target, depth, journal).map(Self::Crew)
    }

    /// Starts the requests of a batch, in order.
    pub(super) fn start(&self, target: &Target, batch: &mut Batch<'_>, now: Time) {
        match self {
            Self::Ring(ring) => ring.start(target, batch, now),
            Self::Crew(crew) => crew.start(target, batch, now),
        }
    }

    /// Takes finished requests, unless another thread is doing so.
    pub(super) fn reap(&self, target: &Target, done: &mut Done<'_>) {
        match self {
            Self::Ring(ring) => ring.reap(target, done),
            Self::Crew(crew) => crew.reap(target, done),
        }
    }

    /// A descriptor that is readable while requests are finished. The call first waits for the thread that takes them.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.fd(),
            Self::Crew(crew) => crew.fd(),
        }
    }

    /// Sleeps on the ring of an owned hardware queue, as [`Driver::sleep`](blkmq::driver::Driver::sleep) says.
    pub(super) fn sleep(&self, bell: &EventFd, timeout: Option<Duration>) -> bool {
        match self {
            Self::Ring(ring) => ring.sleep(bell, timeout),
            Self::Crew(_) => false,
        }
    }

    /// What of the kernel's offers the ring uses. `None` for threads.
    pub(super) fn offers(&self) -> Option<Offers> {
        match self {
            Self::Ring(ring) => Some(ring.offers()),
            Self::Crew(_) => None,
        }
    }

    /// Why the engine can do nothing now, if that is so.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            Self::Ring(_) => None,
            Self::Crew(crew) => crew.refusal(),
        }
    }

    /// Whether the engine must be looked at again at once, because no descriptor tells when.
    pub(super) fn is_restless(&self) -> bool {
        matches!(self, Self::Ring(ring) if ring.is_behind() || ring.poller().is_some_and(Poller::is_busy))
    }

    /// The poller of reads and writes, if they are polled.
    pub(super) fn poller(&self) -> Option<&Poller> {
        match self {
            Self::Ring(ring) => ring.poller(),
            Self::Crew(_) => None,
        }
    }

    /// Registers memory in a slot, or clears the slot. Threads do not use it.
    pub(super) fn register(&self, slot: u16, memory: Option<Memory>) {
        if let Self::Ring(ring) = self {
            ring.register(slot, memory);
        }
    }

    /// Takes all pages of the kernel out of the ring's table.
    pub(super) fn let_go(&self) {
        if let Self::Ring(ring) = self {
            ring.let_go();
        }
    }

    /// Bytes of memory that it has registered.
    pub(super) fn registered(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.registered(),
            Self::Crew(_) => 0,
        }
    }

    /// Makes the poller that a polled hardware queue needs. Returns whether it is new, and so knows none of the memory.
    pub(super) fn make_poller(&self, target: &Target) -> Result<bool, OpenError> {
        match self {
            Self::Ring(ring) => ring.make_poller(target).map_err(refused),
            Self::Crew(_) => Err(OpenError::new("polled hardware queues need io_uring; threads wait for the disk")),
        }
    }

    /// Makes the hardware queue a polled one, or not, from now on. No request is in flight.
    pub(super) fn set_polls(&self, polls: bool) {
        if let Self::Ring(ring) = self {
            ring.set_polls(polls);
        }
    }
}
