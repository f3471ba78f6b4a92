//! The contract between the block layer and a device: [`Driver`]. How one is written says [`guide::drivers`].
//!
//! [`guide::drivers`]: crate::guide::drivers

mod batch;
mod cause;
pub mod cloud;
mod due;
pub mod harness;
pub mod hdd;
mod model;
pub mod null;
mod parameter;
mod pending;
pub mod ram;
mod random;
pub mod spec;
pub mod ssd;
mod started;
mod store;
#[cfg(test)]
mod tests;
mod topology;

use std::fmt;
#[cfg(feature = "eventfd")]
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "eventfd")]
use crate::event::EventFd;
use blkmq_sched::Time;

use crate::request::RqId;
pub use crate::request::buffer::{Arena, Registration, Segment};
use crate::request::limits::Limits;
pub use crate::request::{BorrowedRequest, Request};
pub(crate) use batch::Offer;
pub use batch::{Batch, Done, StaleRequest};
pub use cause::Cause;
pub use due::DueTimes;
pub use model::Model;
pub(crate) use started::{Started, StartedTable};
pub use topology::{Topology, TopologyError};

/// What a driver says about a request that it has had for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The driver has given the request up: it will not touch the request's buffers or complete it any more. For a
    /// request that was [borrowed](Batch::borrow) this answer means nothing, and the driver is asked again.
    Done,
    /// The driver needs more time.
    ResetTimer,
}

/// The state of a device, beyond the answers to single requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Health {
    /// The device is as it should be.
    #[default]
    Good,
    /// The device cannot be reached at present, and the driver goes on trying. The text says since when and why, in one
    /// sentence.
    Away(String),
    /// The device works, but will not be found when it is opened anew: its file was deleted or renamed. The text says
    /// what happened, in one sentence.
    Orphaned(String),
    /// The device has lost what it had acknowledged, or can do no more, until it is opened anew. The text says what
    /// happened, in one sentence.
    Failed(String),
}

impl Health {
    /// The words for all states in statistics.
    pub const WORDS: [&str; 4] = ["good", "away", "orphaned", "failed"];

    /// The word for the state in statistics: one of [`WORDS`](Self::WORDS).
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Away(_) => "away",
            Self::Orphaned(_) => "orphaned",
            Self::Failed(_) => "failed",
        }
    }

    /// What is wrong, if anything is.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Good => None,
            Self::Away(text) | Self::Orphaned(text) | Self::Failed(text) => Some(text),
        }
    }
}

/// When a device will next have something for [`Driver::poll`], as far as its driver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextEvent {
    /// At this time.
    At(Time),
    /// At no time that is known: nothing is in flight, or no poll will complete what is. A driver that will have
    /// something all the same, without a request that was started, says so by [`Done::plan_anew`].
    Never,
    /// The driver cannot tell. If it has a [descriptor](Driver::ready_fd), the descriptor tells. Otherwise it is
    /// polled: a thread that waits polls every [`POLL_PERIOD`] while requests are in flight.
    Unknown,
}

/// How often a driver is polled that does not tell when it completes requests. Such a request takes at most so much
/// longer. A thread that wakes a thousand times in a second takes about a hundredth of a processor.
pub const POLL_PERIOD: Duration = Duration::from_millis(1);

impl NextEvent {
    /// The time, if one is known.
    #[must_use]
    pub const fn time(self) -> Option<Time> {
        match self {
            Self::At(time) => Some(time),
            Self::Never | Self::Unknown => None,
        }
    }
}

/// For a driver that knows all times: the time of what is next, or never.
impl From<Option<Time>> for NextEvent {
    fn from(time: Option<Time>) -> Self {
        time.map_or(Self::Never, Self::At)
    }
}

/// A stretch of a device, and what is known of it without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub bytes: u64,
    /// The stretch takes up no room, so that a write to it may find the device full.
    pub is_hole: bool,
    /// The stretch reads as zeroes.
    pub is_zero: bool,
}

impl Extent {
    /// Data, or bytes of which nothing is known.
    #[must_use]
    pub const fn data(bytes: u64) -> Self {
        Self { bytes, is_hole: false, is_zero: false }
    }

    /// A hole, which reads as zeroes.
    #[must_use]
    pub const fn hole(bytes: u64) -> Self {
        Self { bytes, is_hole: true, is_zero: true }
    }
}

/// A device.
///
/// Requests come by [`queue_rqs`](Self::queue_rqs) in the order in which the scheduler chose them. For each request a
/// driver does one of these:
/// - It finishes the request at once ([`Batch::finish`]).
/// - It starts the request ([`Batch::start`]) and completes it later from [`poll`](Self::poll).
/// - It borrows the request, if its device reads and writes memory by itself ([`Batch::borrow`]).
/// - It sends the request back ([`Batch::requeue`]).
/// - It refuses the request and all behind it ([`Batch::refuse`]).
///
/// A request that the driver drops instead is never over, so [dropping it panics](Request).
///
/// A driver serves one queue at a time, so the tags of a hardware queue and the ids of requests name one request each.
/// A driver in front of another one must keep to that.
///
/// The methods that have a default are for devices that keep requests, change, or take calls from several threads at
/// once.
#[expect(unused_variables, reason = "methods with a default name what they are given")]
pub trait Driver: Send + Sync + fmt::Debug {
    /// The name in device specs.
    fn name(&self) -> &'static str;

    /// What the device accepts. Fixed while the queue exists, except for the capacity, which is looked up at each call.
    /// A server asks whenever a client chooses an export, and that client waits for the answer.
    fn limits(&self) -> Limits;

    /// The device's present state. Operators ask for it now and then, from any thread.
    fn health(&self) -> Health {
        Health::Good
    }

    /// The device's hardware queues at the start.
    fn topology(&self) -> Topology;

    /// Prepares for another number of hardware queues. Nothing is in flight then, and no thread calls
    /// [`queue_rqs`](Self::queue_rqs), [`poll`](Self::poll) or [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// Why the device cannot have that many. A driver's own reason is made by [`TopologyError::refused`].
    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        Err(TopologyError::Fixed(self.name()))
    }

    /// True if several threads may call [`queue_rqs`](Self::queue_rqs) for one hardware queue at once. The block layer
    /// then takes no lock around the call.
    fn is_concurrent(&self) -> bool {
        false
    }

    /// True if each hardware queue belongs to one submitter. Only that submitter's requests go to the queue, and only
    /// that submitter calls [`queue_rqs`](Self::queue_rqs) and [`poll`](Self::poll) for it, one after the other.
    /// Requests that other threads choose for the queue wait for the owner's next poll. There are then no more
    /// submitters than hardware queues of the type that has the fewest, and no [background
    /// threads](crate::RequestQueue::start_threads). Any thread may still call the other methods.
    fn is_owned(&self) -> bool {
        false
    }

    /// Whether what is written can be read again. A device that only takes time says false.
    fn keeps_data(&self) -> bool {
        true
    }

    /// Which data the device has: the same text for the same data, whichever process opens it and from where, and
    /// another text for other data. `None` if the data ends with this value. A program that goes on in the place of
    /// another one compares it, since clients that stay would write over other data.
    fn identity(&self) -> Option<String> {
        (!self.keeps_data()).then(|| self.name().to_owned())
    }

    /// The first stretch of the `bytes` bytes from byte `start` on, at least 1, that is alike, as far as is known. The
    /// stretch is no longer than `bytes`, and shorter if a longer one takes longer to find. Clients that copy a device
    /// ask for it, from any thread, and that thread waits for the answer. The answer covers all that completed before
    /// the call. The answer may or may not cover what is in flight meanwhile.
    fn extent(&self, start: u64, bytes: u64) -> Extent {
        Extent::data(bytes)
    }

    /// Whether requests take time by the queue's clock. If the device says no, that clock may be a coarse one.
    fn takes_time(&self) -> bool {
        true
    }

    /// Takes requests for hardware queue `hctx` from `batch`, in order, until it is empty or one is refused:
    /// `while let Some(rq) = batch.next_request()`. What the driver leaves in the batch is refused too.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time);

    /// Completes what has finished by `now` on hardware queue `hctx`. Any thread calls this, and several may at once,
    /// unless hardware queues are [owned](Self::is_owned).
    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {}

    /// When [`poll`](Self::poll) will next find something on `hctx`. A thread that waits sleeps until then, or until
    /// its own next completion where the driver tells these times ([`due_times`](Self::due_times)). A driver that does
    /// not say is polled, unless it has a [descriptor](Self::ready_fd): see [`NextEvent::Unknown`]. `hctx` may be a
    /// hardware queue that is gone since a [`set_topology`](Self::set_topology).
    fn next_event(&self, hctx: u16) -> NextEvent {
        NextEvent::Unknown
    }

    /// Tells when [`poll`](Self::poll) will complete each request that was started on `hctx`, as far as the driver
    /// knows these times: `due.add(id, time)`, once for each request. Without this method the driver tells of none.
    ///
    /// A submitter sleeps until the first of its own requests is over, as it would until the interrupt of a device, if
    /// a time was told of everything that it waits for. If it wants all of them, it may sleep until the last. Otherwise
    /// it sleeps until [`next_event`](Self::next_event), whichever submitter's event that is. So a driver may leave out
    /// a request that it has not begun with. If a request will be over earlier than was told, `poll` says so by
    /// [`Done::plan_anew`]. `hctx` may be a hardware queue that is gone.
    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {}

    /// A descriptor that is readable while [`poll`](Self::poll) would find something on `hctx`; `None` for a device
    /// whose completions all come at times that [`next_event`](Self::next_event) tells, or that is polled. The
    /// descriptor stays open as long as the driver lives. A driver has one for each hardware queue or for none, and
    /// that never changes. If some completions must be polled for, `next_event` says so.
    ///
    /// Each thread that is about to sleep until the device has something asks for the descriptor, and sleeps on it. In
    /// some drivers `poll` returns at once when another thread is in it. Such a driver must wait here for that other
    /// thread. Until the other thread is done the descriptor may be readable. A thread that sleeps on it would be awake
    /// at once, again and again, on the processor that the other thread may need to go on.
    #[cfg(feature = "eventfd")]
    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sleeps until [`poll`](Self::poll) would find something on `hctx`, or `bell` is readable, or `timeout` has
    /// passed. `None` is no limit. May return early. Returns false, without having slept, if the driver cannot sleep
    /// for this hardware queue: then the thread sleeps on [`ready_fd`](Self::ready_fd) and `bell`.
    ///
    /// Called only for hardware queues that are [owned](Self::is_owned), by the submitter, between its polls. So a
    /// driver can do in one system call what otherwise takes several: hand over what it has put off, sleep, and take
    /// what has come.
    #[cfg(feature = "eventfd")]
    fn sleep(&self, hctx: u16, bell: &EventFd, timeout: Option<Duration>) -> bool {
        false
    }

    /// Memory that operations will use again and again. A driver that can use this makes the memory ready, and returns
    /// a value that undoes that when it is dropped. The value is dropped before the memory is freed, when no request in
    /// flight uses the memory.
    fn register(&self, arena: &Arena) -> Option<Registration> {
        None
    }

    /// A request that was started has not completed in time. Not called for a request that is completing.
    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        TimeoutAction::ResetTimer
    }

    /// Takes leave of a device that other machines share, and that would otherwise take this one for one that has
    /// failed; lets go of [pages](crate::pages) of the kernel. A program calls this when it ends and something still
    /// has the driver; a driver that is dropped does this too. Requests that come later fail, and so may those that are
    /// in flight because the device keeps them. Takes as long as the device takes.
    fn close(&self) {}

    /// Writes the driver's state in readable form.
    ///
    /// # Errors
    /// Only those of `out`.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}
