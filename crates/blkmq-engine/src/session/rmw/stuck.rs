//! Changes whose turn does not come because the thread of another connection is stuck.
//!
//! A connection passes claims, and ends its own, in its thread. A thread can be stuck forever, for example in a page
//! fault of a machine's memory that another process does not deliver. Changes that wait for it fail after a while. A
//! device that is slow is no such case: the thread in front of it looks when its bell rings, and is waited for.

use std::time::{Duration, Instant};

use blkmq::{Bio, Buffers, Op};

use super::{Change, ReadModifyWrite, Work};

/// How often the others are asked whether they look.
const EVERY: Duration = Duration::from_secs(5);
/// The questions in a row that one of them leaves unanswered before a change fails. They are counted, and not the time,
/// because the whole process may have been stopped meanwhile.
const MISSES: u8 = 6;

/// How long a change has waited for others.
#[derive(Debug)]
pub(super) struct StallTimer {
    next: Instant,
    misses: u8,
}

impl StallTimer {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() + EVERY, misses: 0 }
    }
}

impl Work {
    /// Returns true if its turn has not come.
    fn waits(&self) -> bool {
        match &self.change {
            Change::Whole(_) => true,
            Change::Part(part) => part.reads == 0,
            Change::Last => false,
        }
    }
}

impl ReadModifyWrite {
    /// Returns how long the connection may sleep until it has to [look for stuck threads](Self::give_up). `None`: for
    /// any time.
    pub(in super::super) fn max_sleep(&self) -> Option<Duration> {
        if self.claims.is_empty() {
            return None;
        }
        let works = self.claims.iter().filter_map(|(_, place)| self.works[*place].as_ref());
        let next = works.filter(|work| work.waits()).map(|work| work.timer.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Takes a change out whose turn does not come because a thread is stuck. Its operation is one of its task that has
    /// no claim and was not begun, and has the memory of the change.
    pub(in super::super) fn give_up(&mut self, now: Instant) -> Option<Bio> {
        for at in 0..self.claims.len() {
            let (ticket, place) = self.claims[at];
            let Some(work) = self.works[place].as_mut().filter(|work| work.waits() && work.timer.next <= now) else {
                continue;
            };
            work.timer.next = now + EVERY;
            work.timer.misses = if self.seat.ask(ticket, now, EVERY / 2) { work.timer.misses + 1 } else { 0 };
            if work.timer.misses < MISSES {
                continue;
            }
            let work = self.works[place].take()?;
            self.claims.swap_remove(at);
            self.places.push(place);
            self.seat.end(ticket);
            let (sector, buffers) = match work.change {
                Change::Whole(bio) => (bio.sector, bio.buffers),
                Change::Part(part) => (work.blocks.start / blkmq::SECTOR_SIZE as u64, part.buffer.into()),
                Change::Last => (0, Buffers::None),
            };
            // Not of a kind that changes anything: it is no free change that others wait for.
            return Some(Bio::new(Op::Read, sector, 0, buffers).with_user_data(self.user_data(work.task)));
        }
        None
    }
}
