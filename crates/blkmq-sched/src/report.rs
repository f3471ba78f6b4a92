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

/// What one thread of the embedder has had done for its client since the last report, and what it has outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Usage {
    /// The client that the thread serves.
    pub client: ClientId,
    /// Operations that are over: reads, writes, and those that [move no data](crate::Op::moves_data).
    pub operations: [u64; 3],
    /// The sectors of 512 bytes that the reads and the writes asked for.
    pub sectors: [u64; 2],
    /// Operations that are outstanding now.
    pub outstanding: u32,
}

/// Whether clients get what they are due, as a policy that shares finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fairness {
    /// It is not known, or does not matter.
    #[default]
    Unknown,
    /// Each gets what it is due, or could not use more.
    Kept,
    /// Each gets what it is due because the policy holds others back. What would bypass it could not be held back.
    Enforced,
    /// One gets less, though it asks for more. An embedder with a [limiter](crate::limiter::Limiter) holds requests
    /// back, so that they wait where the policy can order them.
    Violated,
}
