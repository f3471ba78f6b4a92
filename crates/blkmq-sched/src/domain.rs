//! The kinds of requests that have token pools of their own, and the context in which a request is dispatched.

use crate::{Op, Ticket};

/// A kind of requests that has a pool of tokens of its own: what Linux calls a domain of Kyber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SchedDomain {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards.
    Discard,
    /// All others.
    Other,
}

impl SchedDomain {
    /// All kinds, in the order in which a policy goes round; a kind's place is its [`index`](Self::index).
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Other];

    /// The kinds whose latency is measured. The index of each is its place here too.
    pub const MEASURED: [Self; 3] = [Self::Read, Self::Write, Self::Discard];

    /// The kind of an operation.
    #[must_use]
    pub const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush | Op::WriteZeroes => Self::Other,
        }
    }

    /// 0 for reads, 1 for writes, 2 for discards, 3 for all others.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The kind so many places further round.
    pub(crate) const fn plus(self, places: usize) -> Self {
        Self::ALL[(self.index() + places) % Self::ALL.len()]
    }

    /// The kind's name in Linux's debugfs, as in `read_tokens`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Other => "other",
        }
    }
}

/// What an embedder lends to a scheduler for one [dispatch](crate::Scheduler::dispatch), and keeps with the request
/// that is dispatched. `()` has a token for every request and forgets the ticket; an `Option<Ticket>` has a token for
/// every request and keeps the ticket.
pub trait DispatchContext {
    /// Takes a token out of the device's pool of this kind; false if as many are out as the pool is deep. The request
    /// has its token until it completes. By default there is a token for every request.
    fn take_token(&mut self, _of: SchedDomain) -> bool {
        true
    }

    /// Gives the request that is dispatched a ticket, which comes back in the [`Report`](crate::Report) of its
    /// completion. By default it is forgotten.
    fn set_ticket(&mut self, _ticket: Ticket) {}
}

impl DispatchContext for () {}

impl DispatchContext for Option<Ticket> {
    fn set_ticket(&mut self, ticket: Ticket) {
        *self = Some(ticket);
    }
}
