//! What a connection takes of the server's memory.

use std::sync::Arc;

use super::budget::{Budget, CHUNK};
use super::spare::Spare;
use crate::clients::ThreadCounters;

/// How much more of the common part than its requests need a connection keeps while it is busy, in bytes.
const SLACK: usize = 2 << 20;

/// The memory of one connection: what its requests are charged for, and the buffers that the connection keeps.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    counters: Arc<ThreadCounters>,
    /// Bytes in use.
    used: usize,
    /// Bytes of the common part that the connection has.
    extra: usize,
    is_waiting: bool,
    /// The client takes nothing, so the connection stands in no line.
    is_stalled: bool,
}

impl Account {
    pub(crate) fn new(budget: Arc<Budget>, counters: Arc<ThreadCounters>) -> Self {
        Self { budget, counters, used: 0, extra: 0, is_waiting: false, is_stalled: false }
    }

    /// Buffers that no connection has.
    #[inline]
    pub(super) fn spare(&self) -> &Spare {
        &self.budget.spare
    }

    /// Returns the number of bytes that the connection may keep without taking them from another connection.
    #[inline]
    pub(crate) fn own(&self) -> usize {
        self.budget.own()
    }

    /// Returns the number of bytes that the connection can have at most, while no other one has any of the common part.
    pub(crate) fn most(&self) -> usize {
        2 * self.budget.longest()
    }

    /// Returns true if this many more bytes fit into what the connection has already.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= self.budget.own() + self.extra
    }

    /// Takes this many bytes. Returns false if they are not available now. Then the connection's bell rings when
    /// another try may succeed. `in_line`: the connection begins nothing else before it has got them.
    ///
    /// COST: two additions; a lock where the connection needs more than it has.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize, in_line: bool) -> bool {
        if !self.has_room(bytes) {
            let least = self.used + bytes - self.budget.own() - self.extra;
            let (number, bell) = (self.counters.number, &self.counters.bell);
            let wanted = least..=least.next_multiple_of(CHUNK);
            let taken = self.budget.take(number, bell, self.extra, wanted, in_line && !self.is_stalled);
            self.is_waiting = taken == 0;
            self.extra += taken;
            if taken == 0 {
                return false;
            }
        } else {
            self.wait_no_more();
        }
        self.used += bytes;
        self.counters.note_memory(self.used);
        true
    }

    /// Called when the connection needs no more than it has.
    #[inline]
    pub(crate) fn wait_no_more(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.budget.forget(self.counters.number);
        }
    }

    /// Notes whether the client takes nothing of what waits for it. As long as that is so, other connections get memory
    /// first.
    ///
    /// COST: a store; a lock where the connection waits for memory.
    #[inline]
    pub(crate) fn note_stalled(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
        if is_stalled && self.is_waiting {
            self.budget.step_back(self.counters.number);
        }
    }

    /// Returns true if another connection stands in line for memory of the common part, and this one has some.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.extra > 0 && self.budget.is_wanted()
    }

    /// Gives this many bytes back. The connection may take them again at once.
    #[inline]
    pub(crate) fn give(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.used, "no more is given back than is in use");
        self.used -= bytes;
        self.counters.note_memory(self.used);
    }

    /// Takes this many bytes, which [have room](Self::has_room).
    #[inline]
    pub(crate) fn take_back(&mut self, bytes: usize) {
        debug_assert!(self.has_room(bytes), "nothing is taken that was not there");
        self.used += bytes;
        self.counters.note_memory(self.used);
    }

    /// Returns the number of bytes of the common part that the connection should return for others. `kept`: bytes in
    /// use that no request needs.
    ///
    /// COST: a few comparisons.
    #[inline]
    pub(crate) fn surplus(&self, kept: usize) -> usize {
        debug_assert!(kept <= self.used, "what is kept is in use");
        let own = self.budget.own();
        let needed = (self.used - kept).saturating_sub(own);
        let spare = self.extra.saturating_sub(needed);
        let most = if needed == 0 { 0 } else { SLACK.min(own) };
        if spare > most { spare - most / 2 } else { 0 }
    }

    /// Returns true if the bytes in use leave this many bytes of the common part unused.
    pub(crate) fn leaves(&self, bytes: usize) -> bool {
        self.used <= self.budget.own() + self.extra - bytes
    }

    /// Returns this many bytes of the common part for others. [`leaves`](Self::leaves) must hold for them.
    ///
    /// COST: a lock.
    pub(crate) fn hand_over(&mut self, bytes: usize) {
        debug_assert!(self.leaves(bytes), "nothing is handed over that is in use");
        self.extra -= bytes;
        self.budget.give(bytes);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.counters.note_memory(0);
        self.budget.forget(self.counters.number);
        self.budget.give(self.extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::entry;

    /// Red if a connection whose client takes nothing stands in line, or stays there: it would keep others waiting.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_connection_whose_client_takes_nothing_stands_in_no_line() {
        const MIB: usize = 1 << 20;
        let entry = entry();
        let bell = &entry.bell;
        // 8 MiB for each of four connections, and 96 MiB for all.
        let budget = Arc::new(Budget::new(129 * MIB, 4));
        let mut account = Account::new(Arc::clone(&budget), Arc::clone(entry.counters(0)));
        assert!(account.take(9 * MIB, true) && !account.is_in_the_way(), "nobody waits");
        assert_eq!(budget.take(99, bell, 0, 95 * MIB..=95 * MIB, true), 95 * MIB);
        assert_eq!(budget.take(98, bell, 0, MIB..=MIB, true), 0);
        assert!(account.is_in_the_way(), "it has some of the common part, and another one waits");
        budget.forget(98);
        account.give(9 * MIB);
        account.hand_over(MIB);
        assert!(!account.take(16 * MIB, true) && budget.is_wanted(), "it stands in line");
        account.note_stalled(true);
        assert!(!budget.is_wanted() && !account.take(16 * MIB, true) && !budget.is_wanted());
        account.note_stalled(false);
        assert!(!account.take(16 * MIB, true) && budget.is_wanted());
    }
}
