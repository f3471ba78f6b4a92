//! What a connection has of the server's memory.

use std::sync::Arc;

use crate::budget::{Budget, CHUNK};
use crate::clients::Entry;

/// How much more than its requests need a connection keeps of the common part while it is busy, in bytes.
const SLACK: usize = 2 << 20;

/// The memory of one connection: what its requests are charged for, and the buffers that it keeps.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    entry: Arc<Entry>,
    /// Bytes in use.
    used: usize,
    /// Bytes that it has of the common part.
    extra: usize,
    is_waiting: bool,
}

impl Account {
    pub(super) fn new(budget: Arc<Budget>, entry: Arc<Entry>) -> Self {
        Self { budget, entry, used: 0, extra: 0, is_waiting: false }
    }

    /// Bytes that may be kept without keeping them from anybody.
    pub(super) fn own(&self) -> usize {
        self.budget.own()
    }

    /// Whether so many bytes fit what the connection has already.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= self.budget.own() + self.extra
    }

    /// Takes so many bytes; false if they cannot be had now, and then the connection's bell rings when it is worth
    /// trying again. `in_line`: nothing else is begun before.
    ///
    /// COST: two additions; a lock where the connection needs more than it has.
    pub(super) fn take(&mut self, bytes: usize, in_line: bool) -> bool {
        if !self.has_room(bytes) {
            let least = self.used + bytes - self.budget.own() - self.extra;
            let (number, bell) = (self.entry.number, &self.entry.bell);
            let taken = self.budget.take(number, bell, self.extra, least..=least.next_multiple_of(CHUNK), in_line);
            self.is_waiting = taken == 0;
            self.extra += taken;
            if taken == 0 {
                return false;
            }
        } else if self.is_waiting {
            self.is_waiting = false;
            self.budget.forget(self.entry.number);
        }
        self.used += bytes;
        self.entry.note_memory(self.used);
        true
    }

    /// Gives so many bytes back, which may be taken again at once.
    pub(super) fn give(&mut self, bytes: usize) {
        self.used -= bytes;
        self.entry.note_memory(self.used);
    }

    /// Takes so many bytes that [have room](Self::has_room).
    pub(super) fn take_back(&mut self, bytes: usize) {
        debug_assert!(self.has_room(bytes), "nothing is taken that was not there");
        self.used += bytes;
        self.entry.note_memory(self.used);
    }

    /// Bytes of the common part that others are to have. Of what is in use `kept` is needed by no request.
    ///
    /// COST: a few comparisons.
    pub(super) fn surplus(&self, kept: usize) -> usize {
        let own = self.budget.own();
        let needed = (self.used - kept).saturating_sub(own);
        let spare = self.extra.saturating_sub(needed);
        let most = if needed == 0 { 0 } else { SLACK.min(own) };
        if spare > most { spare - most / 2 } else { 0 }
    }

    /// Whether what is in use leaves so many bytes of the common part.
    pub(super) fn leaves(&self, bytes: usize) -> bool {
        self.used <= self.budget.own() + self.extra - bytes
    }

    /// Lets others have so many bytes of the common part, which are [left](Self::leaves).
    ///
    /// COST: a lock.
    pub(super) fn hand_over(&mut self, bytes: usize) {
        debug_assert!(self.leaves(bytes), "nothing is handed over that is in use");
        self.extra -= bytes;
        self.budget.give(bytes);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.entry.note_memory(0);
        self.budget.forget(self.entry.number);
        self.budget.give(self.extra);
    }
}
