//! What a device has done for its guest.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::Ask;

/// The numbers of one ring, on lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    all: [AtomicU64; 4],
    errors: AtomicU64,
}

/// What a device has done for its guests since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Other requests that were answered: discards, zeroes, and questions for the name.
    pub others: u64,
    /// Requests that were answered by an error, which count above too.
    pub errors: u64,
    /// Front-ends that have connected.
    pub sessions: u64,
}

impl Counters {
    pub(crate) fn count(&self, ask: Ask, is_ok: bool) {
        let index = match ask {
            Ask::Read => 0,
            Ask::Write => 1,
            Ask::Flush => 2,
            _ => 3,
        };
        // Relaxed: only counts, which order nothing.
        self.all[index].fetch_add(1, Ordering::Relaxed);
        if !is_ok {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sum over rings, for so many sessions.
    pub(crate) fn sum(all: &[Self], sessions: u64) -> Stats {
        let sum = |one: fn(&Self) -> &AtomicU64| all.iter().map(|of| one(of).load(Ordering::Relaxed)).sum();
        Stats {
            reads: sum(|of| &of.all[0]),
            writes: sum(|of| &of.all[1]),
            flushes: sum(|of| &of.all[2]),
            others: sum(|of| &of.all[3]),
            errors: sum(|of| &of.errors),
            sessions,
        }
    }
}
