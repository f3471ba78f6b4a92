//! The one word of a queue: what every submission, completion and control operation reads first.
//!
//! Low half: flags. High half: the count of stagings, which only grows and wraps off the top. A compare-exchange from a
//! value read earlier therefore fails if anything was staged since; it would be fooled only by exactly 2^32 stagings
//! in between.
//!
//! The gate, in the flags too, is the class of requests that may pass the scheduler by while nothing waits. Who passes
//! counts what it takes along, fences, and reads the word once more; who shuts the gate changes the word, fences, and
//! then reads the counts. Of the two fences one comes first: either the passer finds the gate shut and turns back, or
//! its requests are in the counts.

use std::fmt;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Line, fence_at, kept, order};

/// The class that may pass, one higher, in these bits; 0 if none may.
const CLASS_SHIFT: u32 = 3;
const CLASS: u64 = 0b11 << CLASS_SHIFT;
/// Of that class only reads may pass.
const READS_ONLY: u64 = 1 << 5;

const WAITING: u64 = 1 << 0;
const FROZEN: u64 = 1 << 1;
const QUIESCED: u64 = 1 << 2;
const STAGING: u64 = 1 << 32;

/// What may pass the scheduler by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Requests of the class that has this number among all classes.
    pub class: u8,
    /// Of these only reads.
    pub reads_only: bool,
}

/// The word as it was when it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(u64);

impl Snapshot {
    /// Something waits: staged, in a scheduler, in a software queue, or on a dispatch list.
    #[inline]
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        self.0 & WAITING != 0
    }

    /// No new request may enter.
    #[inline]
    #[must_use]
    pub const fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Nothing may be dispatched to the driver.
    #[inline]
    #[must_use]
    pub const fn is_quiesced(self) -> bool {
        self.0 & QUIESCED != 0
    }

    /// What may pass; nothing while something waits.
    #[inline]
    #[must_use]
    pub const fn gate(self) -> Option<Gate> {
        let class = (self.0 & CLASS) >> CLASS_SHIFT;
        if self.0 & (WAITING | QUIESCED) != 0 || class == 0 {
            return None;
        }
        Some(Gate { class: class as u8 - 1, reads_only: self.0 & READS_ONLY != 0 })
    }

    /// How often something was staged, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn stagings(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [(self.is_waiting(), "WAITING"), (self.is_frozen(), "FROZEN"), (self.is_quiesced(), "QUIESCED")];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, "{name} ")?;
        }
        match (self.0 & CLASS) >> CLASS_SHIFT {
            0 => (),
            class => write!(f, "gate={}{} ", class - 1, if self.0 & READS_ONLY == 0 { "" } else { ",reads" })?,
        }
        write!(f, "stagings={}", self.stagings())
    }
}

/// The word itself, on a line of its own. It changes only by the named transitions below.
#[derive(Debug)]
pub struct Word(Line<AtomicU64>);

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

impl Word {
    /// A word with no flag set.
    #[must_use]
    pub fn new() -> Self {
        Self(Line::new("queue.word", AtomicU64::new(0)))
    }

    /// Reads the word.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Snapshot {
        // Acquire pairs with the Release half of every transition: who reads a staging in the count sees what was
        // staged, and who reads a flag gone sees what was done under it.
        Snapshot(self.0.load(order("word.load", Ordering::Acquire)))
    }

    /// Counts a staging and sets WAITING, in one operation; returns the word as it was before.
    ///
    /// Called after the thing that waits is where the dispatcher will look for it. A thread that sets WAITING because
    /// it lacks something owes a fence and another look: see [`Liveness::lack`](crate::liveness::Liveness::lack).
    #[inline]
    pub fn set_waiting(&self) -> Snapshot {
        // Release publishes what was staged to whoever reads the count. Acquire: a caller that finds the queue free
        // continues the work of the one who let it go.
        let order = order("word.set_waiting", Ordering::AcqRel);
        let before = self.0.fetch_update(order, Ordering::Relaxed, |word| Some(word.wrapping_add(STAGING) | WAITING));
        Snapshot(before.unwrap_or_else(|word| word))
    }

    /// Clears WAITING unless the word changed since `seen`, which the caller read before its last look at everything
    /// that may wait. Returns whether it did; if not, the caller looks again.
    #[inline]
    #[must_use]
    pub fn clear_waiting(&self, seen: Snapshot) -> bool {
        // Release: who reads WAITING gone and passes sees what the clearer dispatched. Every staging is a
        // read-modify-write of this word, so one that this exchange does not see comes after it and finds WAITING gone.
        let order = order("word.clear_waiting", Ordering::Release);
        self.0.compare_exchange(seen.0, seen.0 & !WAITING, order, Ordering::Relaxed).is_ok()
    }

    /// Opens the gate, which was shut. Called under the scheduler's lock, like every change of the gate.
    pub fn open_gate(&self, gate: Gate) {
        let bits = u64::from(gate.class + 1) << CLASS_SHIFT | if gate.reads_only { READS_ONLY } else { 0 };
        // Release: who passes sees what was done before the gate was opened.
        self.0.fetch_or(bits, order("word.open_gate", Ordering::Release));
    }

    /// Shuts the gate and fences: what has passed until then is in the counts that the caller reads next.
    pub fn shut_gate(&self) {
        self.0.fetch_and(!(CLASS | READS_ONLY), Ordering::Relaxed);
        // Between the change of the word and the look at the counts; pairs with the fence of `pass`.
        fence_at("word.shut_fence");
    }

    /// Passes the gate, which this thread has seen open: `count` counts what it takes along, and behind a fence it
    /// looks at the gate once more. If this returns false the gate was shut, perhaps before the count was read: then
    /// nothing may pass.
    ///
    /// COST: a fence and a load.
    #[inline]
    #[must_use]
    pub fn pass(&self, gate: Gate, count: impl FnOnce()) -> bool {
        count();
        // Between the count and the second look; pairs with the fence of `shut_gate`.
        fence_at("word.pass_fence");
        !kept("word.second_look") || self.load().gate() == Some(gate)
    }

    /// Sets FROZEN and fences; returns the word as it was before. The caller then waits for every
    /// [`Activity`](crate::grace::Activity) and for the tags.
    pub fn freeze(&self) -> Snapshot {
        self.close(FROZEN)
    }

    /// Clears FROZEN; returns the word as it was before.
    pub fn unfreeze(&self) -> Snapshot {
        self.open(FROZEN)
    }

    /// Sets QUIESCED and fences; returns the word as it was before. The caller then waits for every
    /// [`Activity`](crate::grace::Activity).
    pub fn quiesce(&self) -> Snapshot {
        self.close(QUIESCED)
    }

    /// Clears QUIESCED; returns the word as it was before.
    pub fn unquiesce(&self) -> Snapshot {
        self.open(QUIESCED)
    }

    fn close(&self, flag: u64) -> Snapshot {
        // Acquire pairs with the Release of `open`: who closes again sees what was done while it was closed before. The
        // fence orders the flag before the look at the activities, and pairs with the fence of `Activity::enter`.
        let before = Snapshot(self.0.fetch_or(flag, Ordering::Acquire));
        fence_at("word.close_fence");
        before
    }

    fn open(&self, flag: u64) -> Snapshot {
        // Release: who reads the flag gone sees what was changed under it.
        Snapshot(self.0.fetch_and(!flag, order("word.open", Ordering::Release)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn word_is_cleared_only_if_nothing_was_staged_since() {
        let word = Word::new();
        assert!(!word.set_waiting().is_waiting());
        let seen = word.load();
        assert!(seen.is_waiting() && seen.stagings() == 1);
        assert!(word.set_waiting().is_waiting());
        assert!(!word.clear_waiting(seen));
        assert!(word.clear_waiting(word.load()));
        assert_eq!(format!("{:?}", word.load()), "stagings=2");
    }

    #[test]
    fn word_flags_are_independent() {
        let word = Word::new();
        word.set_waiting();
        assert!(!word.freeze().is_frozen());
        word.quiesce();
        assert_eq!(format!("{:?}", word.load()), "WAITING FROZEN QUIESCED stagings=1");
        assert!(word.unfreeze().is_frozen());
        assert_eq!(format!("{:?}", word.unquiesce()), "WAITING QUIESCED stagings=1");
        assert_eq!(format!("{:?}", word.load()), "WAITING stagings=1");
    }

    #[test]
    fn word_gate_is_open_while_nothing_waits() {
        let word = Word::new();
        let gate = Gate { class: 2, reads_only: true };
        assert_eq!(word.load().gate(), None);
        word.open_gate(gate);
        assert_eq!(word.load().gate(), Some(gate));
        assert_eq!(format!("{:?}", word.load()), "gate=2,reads stagings=0");
        word.set_waiting();
        assert_eq!(word.load().gate(), None);
        assert!(word.clear_waiting(word.load()));
        word.quiesce();
        assert_eq!(word.load().gate(), None);
        word.unquiesce();
        assert_eq!(word.load().gate(), Some(gate));
        word.shut_gate();
        assert_eq!(word.load().gate(), None);
        word.open_gate(Gate { class: 0, reads_only: false });
        assert_eq!(word.load().gate(), Some(Gate { class: 0, reads_only: false }));
    }

    #[test]
    fn word_count_wraps_without_touching_the_flags() {
        let word = Word(Line::new("test.word", AtomicU64::new(u64::from(u32::MAX) << 32 | FROZEN)));
        word.set_waiting();
        assert_eq!(format!("{:?}", word.load()), "WAITING FROZEN stagings=0");
    }
}
