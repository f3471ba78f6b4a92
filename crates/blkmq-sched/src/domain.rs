//! The kinds of requests between which a policy divides the device, and the tokens with which it does so.

use crate::Op;

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

/// The pools of tokens of one device, lent to a scheduler for one choice. A request that is chosen has a token of its
/// kind from then until it completes. The embedder keeps the two together: it notes which token it gave last, and puts
/// that one into the request that the choice returns.
pub trait Tokens {
    /// Takes a token out of the pool of this kind; false if as many are out as the pool is deep.
    fn take(&mut self, of: SchedDomain) -> bool;
}

/// Pools that are never empty.
#[derive(Debug)]
pub(crate) struct Endless;

impl Tokens for Endless {
    fn take(&mut self, _of: SchedDomain) -> bool {
        true
    }
}
