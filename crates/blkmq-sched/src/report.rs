//! What a scheduler is told of requests that have left it, or have never been in it.

use core::num::NonZeroU32;

use crate::{ClientId, Info, IoPriority, Op, Time};

/// A scheduler's own mark on a request that it dispatched. The embedder keeps it with the request, and gives it back in
/// the [`Report`] of the completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub NonZeroU32);

/// What has happened to the requests of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// They bypass the scheduler, as its gate allows. This is told before any choice that comes behind the closing of
    /// the gate, and each is told of again when it completes.
    Passed,
    /// They completed. With a ticket it is one request, which the scheduler dispatched. Without one these requests
    /// had bypassed the scheduler.
    Completed(Option<Ticket>),
}

/// One or more requests of one client and kind to which the same has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Report {
    /// What has happened.
    pub event: Event,
    /// The client that asked.
    pub client: ClientId,
    /// What was asked.
    pub op: Op,
    /// A thread waits for them.
    pub sync: bool,
    /// Their priority.
    pub priority: IoPriority,
    /// How many requests these are.
    pub requests: u16,
    /// The sectors of all of them.
    pub sectors: u32,
    /// When it happened.
    pub at: Time,
    /// For how long the device had a request that completed, in nanoseconds, held at the largest value. If they are
    /// several, the longest of these times.
    pub in_device: u32,
}

impl Report {
    /// What is told of one request, without the time for which the device had it.
    #[must_use]
    pub const fn of(event: Event, request: &Info, at: Time) -> Self {
        Self {
            event,
            client: request.client,
            op: request.op,
            sync: request.sync,
            priority: request.priority,
            requests: 1,
            sectors: request.nr_sectors,
            at,
            in_device: 0,
        }
    }
}
