//! Room in the scheduler: a thread that waits for room is told when there may be some.

use crate::platform::Line;
use crate::platform::atomic::{AtomicU64, Ordering};

/// The bit that is set while a thread's plug is held back because there is no room. A carry out of this bit counts how
/// often room came.
const WANTED: u64 = 1;

/// How often there may have been room again since a thread wanted some, and whether a thread wants some now. The word
/// changes only while a plug is held back.
#[derive(Debug)]
pub struct Room(Line<AtomicU64>);

/// The word as it was when a thread that found no room asked to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

impl Default for Room {
    fn default() -> Self {
        Self::new()
    }
}

impl Room {
    /// No thread wants room.
    #[must_use]
    pub fn new() -> Self {
        Self(Line::new("queue.room", AtomicU64::new(0)))
    }

    /// Asks to be told. The caller then fences ([`Liveness::lack_room`](crate::liveness::Liveness::lack_room)) and
    /// looks for room once more. This second look finds the room that came before; room that comes later makes the
    /// ticket [stale](Self::is_stale).
    #[must_use]
    pub fn want(&self) -> Ticket {
        Ticket(self.0.fetch_or(WANTED, Ordering::Relaxed) | WANTED)
    }

    /// Whether room may have come since the ticket was drawn.
    #[must_use]
    pub fn is_stale(&self, ticket: Ticket) -> bool {
        debug_assert_eq!(ticket.0 & WANTED, WANTED, "a ticket is of a thread that wanted room");
        self.0.load(Ordering::Relaxed) != ticket.0
    }

    /// Called when there may be room. The caller has made the room visible and fenced
    /// ([`Liveness::brought`](crate::liveness::Liveness::brought)). If this returns true, the caller wakes the threads
    /// that sleep.
    ///
    /// COST: a load while no plug is held back.
    #[must_use = "the threads that sleep must be woken"]
    pub fn came(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        // If the exchange fails, another thread came first, and that thread wakes the sleepers. A thread that has asked
        // again since then fenced after this caller did, and finds this caller's room itself.
        seen & WANTED != 0 && self.0.compare_exchange(seen, seen + WANTED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether a plug is held back.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_that_comes_makes_every_ticket_stale_and_is_told_once() {
        let room = Room::new();
        assert!(!room.came() && !room.is_wanted());
        let (first, second) = (room.want(), room.want());
        assert_eq!(first, second);
        assert!(room.is_wanted() && !room.is_stale(first));
        assert!(room.came() && !room.came());
        assert!(room.is_stale(first) && !room.is_wanted());
        // A thread that asks again afterwards does not make an older ticket good.
        let third = room.want();
        assert!(room.is_stale(first) && !room.is_stale(third));
    }
}
