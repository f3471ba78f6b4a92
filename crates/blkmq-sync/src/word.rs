//! The one word of a queue: what every submission, completion and control operation reads first.
//!
//! The low half holds flags. One of them is WAITING, which a thread sets when a request waits where a dispatching
//! thread checks. The high half counts how often WAITING was set. The count only grows, and wraps off the top. So a
//! compare-exchange from a value read earlier fails if WAITING was set since. Only exactly 2^32 settings in between
//! would deceive it.
//!
//! # The gate
//! The flags also hold the gate: the class of requests that may bypass the scheduler while nothing waits, and perhaps
//! the one client whose requests these must be.
//!
//! ```text
//!     the thread that passes              the thread that shuts the gate
//!  1. counts what bypasses             a. shuts the gate in the word
//!  2. fence                            b. fence
//!  3. checks the gate once more        c. reads the counts
//! ```
//!
//! All threads agree which of the fences 2 and b comes first. If 2 comes first, then c finds the requests in the
//! counts. If b comes first, then 3 finds the gate shut, and the first thread backs out.

use std::fmt;
use std::num::NonZeroU64;

use crate::platform::atomic::{AtomicU64, Ordering};
use crate::platform::{Line, fence_at, order, unless_mutated};

/// The lowest of the three bits that hold the class that may pass: its number plus one, or 0 if no class may pass.
const CLASS_SHIFT: u32 = 3;
const CLASS: u64 = 0b111 << CLASS_SHIFT;
/// Only reads of that class may pass.
const READS_ONLY: u64 = 1 << 6;
/// Only requests of one client may pass, whose place stands in the bits above.
const ONE_CLIENT: u64 = 1 << 7;
const CLIENT_SHIFT: u32 = 8;
const CLIENT: u64 = 0xfff << CLIENT_SHIFT;
/// All bits of the gate.
const GATE: u64 = CLASS | READS_ONLY | ONE_CLIENT | CLIENT;

/// [`Snapshot`] says what it means.
const WAITING: u64 = 1 << 0;
/// One setting of WAITING, in the count of the high half.
const WAITING_SEQ: u64 = 1 << 32;

/// The flags of the control path. [`Snapshot`] says what each one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Nothing new enters.
    Frozen,
    /// The driver is given nothing.
    Quiesced,
}

impl Flag {
    const fn bit(self) -> u64 {
        1 << (1 + self as u64)
    }
}

/// The gate: the bits of the word that say which requests may bypass the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gate(NonZeroU64);

impl Gate {
    /// Stands for every class. No class has this number.
    pub const ANY: u8 = 3;

    /// Every request may pass.
    pub const ALL: Self = Self::new(Self::ANY, false, None);

    /// Requests of the class with the number `class` among all classes may pass, or those of every class if this is
    /// [`ANY`](Self::ANY). With `reads_only`, only reads. With a client, whose place is less than 4096, only its
    /// requests.
    #[must_use]
    pub const fn new(class: u8, reads_only: bool, client: Option<u16>) -> Self {
        debug_assert!(class <= Self::ANY, "the class has a number in the word");
        let client = match client {
            None => 0,
            Some(place) => {
                debug_assert!(place < 1 << 12, "the place is in the word");
                ONE_CLIENT | (place as u64) << CLIENT_SHIFT
            }
        };
        let bits = ((class as u64 + 1) << CLASS_SHIFT) | if reads_only { READS_ONLY } else { 0 } | client;
        Self(NonZeroU64::new(bits).expect("a class has a number other than 0 in the word"))
    }

    /// The number of the class that may pass, or [`ANY`](Self::ANY).
    #[inline]
    #[must_use]
    pub const fn class(self) -> u8 {
        ((self.0.get() & CLASS) >> CLASS_SHIFT) as u8 - 1
    }

    /// Whether only reads may pass.
    #[inline]
    #[must_use]
    pub const fn reads_only(self) -> bool {
        self.0.get() & READS_ONLY != 0
    }

    /// The place of the one client whose requests may pass; `None` if those of every client may.
    #[inline]
    #[must_use]
    pub const fn client(self) -> Option<u16> {
        if self.0.get() & ONE_CLIENT == 0 { None } else { Some(((self.0.get() & CLIENT) >> CLIENT_SHIFT) as u16) }
    }

    /// Whether requests of the client with this place may pass.
    #[inline]
    #[must_use]
    pub const fn is_for(self, client: usize) -> bool {
        match self.client() {
            None => true,
            Some(place) => place as usize == client,
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class() {
            Self::ANY => write!(f, "gate=any")?,
            class => write!(f, "gate={class}")?,
        }
        if let Some(client) = self.client() {
            write!(f, ",client={client}")?;
        }
        f.write_str(if self.reads_only() { ",reads" } else { "" })
    }
}

/// The word as it was when it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(u64);

impl Snapshot {
    /// Whether WAITING is set. A thread sets it when a request waits in a scheduler, in a software queue, on a dispatch
    /// list, or in the staging word of a combiner that gave up. WAITING may stay set for a while afterwards. And
    /// requests may wait while WAITING is clear: those published to a combiner that is still at work, and those that a
    /// thread has inserted or put on a dispatch list and checks itself before it returns.
    #[inline]
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        self.0 & WAITING != 0
    }

    /// No new request may enter.
    #[inline]
    #[must_use]
    pub const fn is_frozen(self) -> bool {
        self.0 & Flag::Frozen.bit() != 0
    }

    /// Nothing may be dispatched to the driver.
    #[inline]
    #[must_use]
    pub const fn is_quiesced(self) -> bool {
        self.0 & Flag::Quiesced.bit() != 0
    }

    /// The requests that may bypass the scheduler: none while a request waits for a tag, a depth token or room, or
    /// while the queue is quiesced. Requests that were inserted or published a moment ago do not count: a thread is
    /// about to try for what they need, and sets WAITING if it fails.
    #[inline]
    #[must_use]
    pub fn gate(self) -> Option<Gate> {
        if self.is_quiesced() || self.is_waiting() && unless_mutated("bypass.waiting") { None } else { self.any_gate() }
    }

    /// Whether no request waits for a tag, a depth token or room, and the queue is not quiesced.
    #[inline]
    #[must_use]
    pub const fn is_open(self) -> bool {
        !self.is_quiesced() && !self.is_waiting()
    }

    /// The gate, whether something waits or not.
    #[inline]
    const fn any_gate(self) -> Option<Gate> {
        match NonZeroU64::new(self.0 & GATE) {
            Some(bits) => Some(Gate(bits)),
            None => None,
        }
    }

    /// How often WAITING was set, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn waiting_seq(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [(self.is_waiting(), "WAITING"), (self.is_frozen(), "FROZEN"), (self.is_quiesced(), "QUIESCED")];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, "{name} ")?;
        }
        if let Some(gate) = self.any_gate() {
            write!(f, "{gate:?} ")?;
        }
        write!(f, "waiting_seq={}", self.waiting_seq())
    }
}

/// The word itself, on a line of its own. The word changes only by the named transitions below.
#[derive(Debug)]
pub struct Word(Line<AtomicU64>);

/// A word with no flag set.
impl Default for Word {
    fn default() -> Self {
        Self(Line::new("queue.word", AtomicU64::new(0)))
    }
}

impl Word {
    /// Reads the word.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Snapshot {
        // Acquire pairs with the Release half of every transition. A thread that reads the new count sees what was put
        // down before WAITING was set, and a thread that reads a flag as gone sees what was done under it.
        Snapshot(self.0.load(order("word.load", Ordering::Acquire)))
    }

    /// Sets WAITING and counts that, in one operation. Returns the word as it was before.
    ///
    /// Called when the waiting request is where a dispatching thread will check for it. A thread that sets WAITING
    /// because it found no tag or room owes a fence and a second attempt: see
    /// [`Liveness::prepare_to_wait`](crate::liveness::Liveness::prepare_to_wait).
    #[inline]
    pub fn set_waiting(&self) -> Snapshot {
        // Release publishes what was put down to a thread that reads the count. Acquire: a caller that finds the queue
        // free continues the work of the thread that let it go.
        let order = order("word.set_waiting", Ordering::AcqRel);
        let before =
            self.0.fetch_update(order, Ordering::Relaxed, |word| Some(word.wrapping_add(WAITING_SEQ) | WAITING));
        Snapshot(before.unwrap_or_else(|word| word))
    }

    /// Clears WAITING unless the word has changed since `seen`. The caller read `seen` before it last checked
    /// all lists of waiting requests. Returns whether WAITING was cleared; if not, the caller checks again.
    #[inline]
    #[must_use]
    pub fn clear_waiting(&self, seen: Snapshot) -> bool {
        debug_assert!(seen.is_waiting(), "WAITING is cleared by a thread that has seen it");
        // Release: a thread that reads WAITING as gone and passes sees what the clearer dispatched. Setting WAITING is
        // always a read-modify-write of this word. So a setting that this exchange does not see comes after it, and
        // sets WAITING again.
        let order = order("word.clear_waiting", Ordering::Release);
        self.0.compare_exchange(seen.0, seen.0 & !WAITING, order, Ordering::Relaxed).is_ok()
    }

    /// Opens the gate, which was shut. Called under the scheduler's lock, like every change of the gate.
    pub fn open_gate(&self, gate: Gate) {
        // Release: a thread that passes sees what was done before the gate was opened.
        let before = self.0.fetch_or(gate.0.get(), order("word.open_gate", Ordering::Release));
        debug_assert_eq!(before & GATE, 0, "a gate that is opened was shut");
    }

    /// Shuts the gate, which was open, and fences. What passes before that is in the counts that the caller reads next.
    pub fn shut_gate(&self) {
        let before = self.0.fetch_and(!GATE, Ordering::Relaxed);
        debug_assert_ne!(before & CLASS, 0, "a gate that is shut was open");
        // Step b of the module's interleaving, between the change of the word and the look at the counts; pairs with
        // the fence of `pass`.
        fence_at("word.shut_fence");
    }

    /// Shuts the gate if it is open. For a gate of every class, through which requests pass without being counted.
    /// Returns whether the gate was open.
    pub fn end_gate(&self) -> bool {
        // Relaxed: a thread that passes looks only once, and what it saw may be out of date.
        self.0.fetch_and(!GATE, Ordering::Relaxed) & GATE != 0
    }

    /// Passes the gate, which this thread has seen open. `count` counts what the thread takes along; then the thread
    /// fences and looks at the gate once more. Returns false if the gate is no longer as this thread saw it. Then
    /// nothing may pass, because the thread that shut the gate may have read the counts before.
    ///
    /// COST: a fence and a load.
    #[inline]
    #[must_use]
    pub fn pass(&self, gate: Gate, count: impl FnOnce()) -> bool {
        count();
        // Step 2 of the module's interleaving, between the count and the second look; pairs with the fence of
        // `shut_gate`.
        fence_at("word.pass_fence");
        !unless_mutated("word.second_look") || self.load().gate() == Some(gate)
    }

    /// Sets a flag and fences. Returns the word as it was before. The caller then waits for every
    /// [`Activity`](crate::grace::Activity), and if it freezes, for the tags.
    pub fn close(&self, flag: Flag) -> Snapshot {
        // Acquire pairs with the Release of `open`: a thread that sets the flag again sees what was done while the flag
        // was set before. The fence is step b of the interleaving in [`grace`](crate::grace), between the flag and the
        // look at the activities. It pairs with the fence of `Activity::enter`.
        let before = Snapshot(self.0.fetch_or(flag.bit(), Ordering::Acquire));
        fence_at("word.close_fence");
        before
    }

    /// Clears a flag. Returns the word as it was before.
    pub fn open(&self, flag: Flag) -> Snapshot {
        // Release: a thread that reads the flag as gone sees what was changed while it was set.
        let before = Snapshot(self.0.fetch_and(!flag.bit(), order("word.open", Ordering::Release)));
        debug_assert!(before.0 & flag.bit() != 0, "a flag is taken away by a thread that has set it: {before:?}");
        before
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn word_is_cleared_only_if_nothing_was_staged_since() {
        let word = Word::default();
        assert!(!word.set_waiting().is_waiting());
        let seen = word.load();
        assert!(seen.is_waiting() && seen.waiting_seq() == 1);
        assert!(word.set_waiting().is_waiting());
        assert!(!word.clear_waiting(seen));
        assert!(word.clear_waiting(word.load()));
        assert_eq!(format!("{:?}", word.load()), "waiting_seq=2");
    }

    #[test]
    fn word_flags_are_independent() {
        let word = Word::default();
        word.set_waiting();
        assert!(!word.close(Flag::Frozen).is_frozen());
        word.close(Flag::Quiesced);
        assert_eq!(format!("{:?}", word.load()), "WAITING FROZEN QUIESCED waiting_seq=1");
        assert!(word.open(Flag::Frozen).is_frozen());
        assert_eq!(format!("{:?}", word.open(Flag::Quiesced)), "WAITING QUIESCED waiting_seq=1");
        assert_eq!(format!("{:?}", word.load()), "WAITING waiting_seq=1");
    }

    #[test]
    fn word_gate_is_open_while_nothing_waits() {
        let word = Word::default();
        let gate = Gate::new(2, true, None);
        assert_eq!(word.load().gate(), None);
        word.open_gate(gate);
        assert_eq!(word.load().gate(), Some(gate));
        assert_eq!(format!("{:?}", word.load()), "gate=2,reads waiting_seq=0");
        word.set_waiting();
        assert_eq!(word.load().gate(), None);
        assert!(word.clear_waiting(word.load()));
        word.close(Flag::Quiesced);
        assert_eq!(word.load().gate(), None);
        word.open(Flag::Quiesced);
        assert_eq!(word.load().gate(), Some(gate));
        word.shut_gate();
        assert_eq!(word.load().gate(), None);
        let all = Gate::new(0, false, None);
        word.open_gate(all);
        assert_eq!(word.load().gate(), Some(all));
        assert!(word.end_gate() && !word.end_gate());
        let gate = Gate::new(Gate::ANY, false, None);
        word.open_gate(gate);
        assert_eq!(
            (word.load().gate(), format!("{:?}", word.load())),
            (Some(gate), "gate=any waiting_seq=1".to_owned())
        );
        assert_eq!((gate.class(), Gate::new(1, false, None).class()), (Gate::ANY, 1));
        word.shut_gate();
        for place in [0, 1, 4095] {
            let gate = Gate::new(1, false, Some(place));
            word.open_gate(gate);
            assert_eq!(word.load().gate(), Some(gate));
            assert_eq!(format!("{:?}", word.load()), format!("gate=1,client={place} waiting_seq=1"));
            assert_eq!([0, 1, 4095].map(|of| gate.is_for(of)), [0, 1, 4095].map(|of| of == usize::from(place)));
            word.shut_gate();
        }
        assert!(all.is_for(7) && format!("{:?}", word.load()) == "waiting_seq=1");
    }

    #[test]
    fn word_count_wraps_without_touching_the_flags() {
        let word = Word(Line::new("test.word", AtomicU64::new(u64::from(u32::MAX) << 32 | Flag::Frozen.bit())));
        word.set_waiting();
        assert_eq!(format!("{:?}", word.load()), "WAITING FROZEN waiting_seq=0");
    }
}
