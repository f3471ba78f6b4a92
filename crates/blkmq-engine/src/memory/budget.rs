//! The memory that the connections of a server share.
//!
//! Every connection may take a part of its own without asking. Memory beyond that part comes from a common part, one
//! chunk at a time, so that a small request does not touch the common part. A connection gets a further chunk only
//! while it has no more of the common part than is still free. One connection that takes all it can gets half of the
//! common part, the next one a quarter, and so on. So something is always left for a connection that comes later.
//!
//! A connection that waits for memory keeps none that it cannot release. So all waiting ends:
//!
//! - A read is given memory for all of its data before it begins, or none. The read holds this memory until the socket,
//!   or with TLS the TLS library, has taken the whole reply. A client that reads nothing, so that the socket takes
//!   nothing more, is disconnected in the end.
//! - A write is given memory one piece at a time, and each piece is written when it has arrived. The connection's own
//!   part is large enough for a piece. So a write that is half received never holds memory that other connections wait
//!   for.
//! - Connections that have nothing of the common part wait in line. The first of them gets the memory that comes free
//!   before all others do. Connections that have some of the common part stand in no line: they could keep others
//!   waiting by holding on to what they have. Nor do connections whose clients read nothing.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkmq::Notify;
use blkmq::event::EventFd;

use super::spare::Spare;

/// The amount that a connection asks for at a time, in bytes.
pub(crate) const CHUNK: usize = 256 << 10;
/// The least that a connection may have without asking, in bytes: room to receive data, and for small requests as well.
const LEAST_OWN: usize = 256 << 10;
/// The most that a connection may have without asking, in bytes. Buffers that are kept for later never come out of the
/// common part.
const MOST_OWN: usize = 8 << 20;
/// Bytes that a connection holds beside the data of its requests: input, tasks, its submitter's requests, its thread's
/// stack, and TLS.
pub(crate) const BESIDE: usize = 256 << 10;

/// One connection that waits for memory.
#[derive(Debug)]
struct Waiter {
    number: u64,
    bell: Arc<EventFd>,
}

#[derive(Debug)]
struct CommonPart {
    /// Bytes of the common part that no connection has.
    free: usize,
    /// Connections that have nothing of the common part and wait for some, the first one first.
    line: VecDeque<Waiter>,
    /// Connections that have some of the common part, and that are woken when more is free.
    others: VecDeque<Waiter>,
}

/// How much memory the connections may have together, and how much they have.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    own: usize,
    common: usize,
    part: Mutex<CommonPart>,
    /// Buffers that no connection has.
    pub(super) spare: Spare,
}

/// Returns the least memory in bytes with which this many connections can be served.
pub fn least(connections: usize) -> usize {
    connections.saturating_mul(BESIDE + 2 * LEAST_OWN)
}

impl Budget {
    /// Creates a budget of this many bytes for this many connections. `bytes` is at least [`least`] of `connections`.
    pub(crate) fn new(bytes: usize, connections: usize) -> Self {
        debug_assert!(bytes >= least(connections), "{bytes} bytes are too few for {connections} connections");
        let data = bytes.saturating_sub(connections.saturating_mul(BESIDE));
        let own = (data / 2 / connections.max(1)).clamp(LEAST_OWN, MOST_OWN);
        let common = data.saturating_sub(own.saturating_mul(connections));
        let most = bytes;
        Self {
            most,
            own,
            common,
            part: Mutex::new(CommonPart { free: common, line: VecDeque::new(), others: VecDeque::new() }),
            spare: Spare::default(),
        }
    }

    /// Returns the number of bytes that each connection may have without asking.
    #[inline]
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// Returns the longest request, in bytes, that certainly gets its memory in the end. The buffers of a request take
    /// up to twice as much memory.
    pub(crate) fn longest(&self) -> usize {
        (self.own + self.common) / 2
    }

    /// Returns the number of bytes that all connections together may have.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    fn lock(&self) -> MutexGuard<'_, CommonPart> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes of the common part for a connection that already has `has` of it: at most as many as it wants, at
    /// least as many as it needs. Returns how many: 0 if they are not available now, and then its bell rings when
    /// another try may succeed. `in_line`: the connection begins nothing else before it has got them, so it may be
    /// served before connections that come later.
    pub(crate) fn take(
        &self,
        number: u64,
        bell: &Arc<EventFd>,
        has: usize,
        wanted: RangeInclusive<usize>,
        in_line: bool,
    ) -> usize {
        debug_assert!(!wanted.is_empty() && *wanted.start() > 0, "a connection asks for something: {wanted:?}");
        debug_assert!(has <= self.common, "a connection has {has} bytes of the {} that there are", self.common);
        let mut part = self.lock();
        let room = part.free.saturating_sub(has);
        let is_next = part.line.front().is_none_or(|first| first.number == number);
        if is_next && *wanted.start() <= room {
            let taken = room.min(*wanted.end());
            part.free -= taken;
            part.forget(number);
            return taken;
        }
        let CommonPart { line, others, .. } = &mut *part;
        // For more than there is, it has to wait for its own requests first.
        let list = if in_line && has == 0 && *wanted.start() <= self.common {
            others.retain(|waiter| waiter.number != number);
            line
        } else {
            others
        };
        if list.iter().all(|waiter| waiter.number != number) {
            list.push_back(Waiter { number, bell: Arc::clone(bell) });
        }
        0
    }

    /// Gives this many bytes back.
    pub(crate) fn give(&self, bytes: usize) {
        let mut part = self.lock();
        part.free += bytes;
        debug_assert!(part.free <= self.common, "no more comes back than was taken: {bytes} too many");
        part.wake();
    }

    /// Called when the connection stands in no line any more, although it still waits.
    pub(crate) fn step_back(&self, number: u64) {
        let mut part = self.lock();
        if let Some(place) = part.line.iter().position(|waiter| waiter.number == number) {
            let waiter = part.line.remove(place);
            part.others.extend(waiter);
            part.wake();
        }
    }

    /// Returns true if a connection that has nothing of the common part waits for some.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.lock().line.is_empty()
    }

    /// Called when the connection does not wait any more.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().forget(number);
    }
}

impl CommonPart {
    fn forget(&mut self, number: u64) {
        self.line.retain(|waiter| waiter.number != number);
        self.others.retain(|waiter| waiter.number != number);
        self.wake();
    }

    /// Wakes the connections for which something may have changed.
    fn wake(&mut self) {
        match self.line.front() {
            Some(first) => first.bell.notify(),
            None => self.others.drain(..).for_each(|waiter| waiter.bell.notify()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bell() -> Arc<EventFd> {
        Arc::new(EventFd::new().unwrap())
    }

    /// Returns true if it has rung since it was last asked.
    fn has_rung(bell: &EventFd) -> bool {
        let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
        let rung = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0;
        bell.drain();
        rung
    }

    const MIB: usize = 1 << 20;

    /// 64 connections, with 64 MiB for all of them beside the own parts.
    fn budget() -> Budget {
        let budget = Budget::new(64 * BESIDE + 128 * MIB, 64);
        assert_eq!((budget.own(), budget.common), (MIB, 64 * MIB));
        budget
    }

    /// Red if a connection may take all that is free: the first one would have everything, and the others nothing.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn one_that_takes_all_it_can_leaves_something_for_each_that_comes_later() {
        let (budget, bell) = (budget(), bell());
        let mut all = Vec::new();
        for number in 0..4 {
            let mut has = 0;
            while budget.take(number, &bell, has, MIB..=MIB, false) > 0 {
                has += MIB;
            }
            all.push(has / MIB);
        }
        assert_eq!(all, [32, 16, 8, 4]);
    }

    /// Red if a connection in line is passed by connections that come later, or is not woken.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn the_first_in_line_gets_what_comes_free() {
        let budget = budget();
        let bells = [(); 4].map(|()| bell());
        assert_eq!(budget.take(0, &bells[0], 0, 40 * MIB..=40 * MIB, true), 40 * MIB);
        assert_eq!(budget.take(1, &bells[1], 0, 30 * MIB..=30 * MIB, true), 0);
        assert_eq!(budget.take(2, &bells[2], 0, 30 * MIB..=30 * MIB, true), 0);
        assert_eq!(
            budget.take(3, &bells[3], 0, MIB..=MIB, false),
            0,
            "others wait until the line has got what it waits for"
        );
        budget.give(20 * MIB);
        assert_eq!(bells.each_ref().map(|bell| has_rung(bell)), [false, true, false, false]);
        assert_eq!(budget.take(2, &bells[2], 0, 30 * MIB..=30 * MIB, true), 0);
        assert_eq!(budget.take(1, &bells[1], 0, 30 * MIB..=30 * MIB, true), 30 * MIB);
        assert!(has_rung(&bells[2]), "it is the next one's turn");
        // A connection that has gone does not keep the others waiting.
        budget.forget(2);
        assert!(has_rung(&bells[3]));
        assert_eq!(budget.take(3, &bells[3], 0, MIB..=4 * MIB, false), 4 * MIB);
        budget.give(34 * MIB);
        assert_eq!(budget.lock().free, 44 * MIB);
    }

    /// Red before a connection stood in no line for more than there is: it got nothing before its own requests were
    /// over, and kept all others waiting until then. In a machine other rings may go on for as long as they like.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn one_that_waits_for_its_own_memory_keeps_nobody_waiting() {
        let (budget, bells) = (budget(), [(); 2].map(|()| bell()));
        assert_eq!(budget.take(0, &bells[0], 0, 65 * MIB..=65 * MIB, true), 0);
        assert_eq!(budget.take(1, &bells[1], 0, MIB..=MIB, false), MIB);
        assert_eq!(budget.take(0, &bells[0], 0, 64 * MIB..=64 * MIB, true), 0);
        assert_eq!(budget.take(1, &bells[1], MIB, MIB..=MIB, false), 0, "now it stands in the line");
    }

    /// Red if a connection that has some of the common part stands in the line: it could keep memory from all others by
    /// not reading its replies.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn one_that_has_something_keeps_nobody_waiting() {
        let (budget, bells) = (budget(), [(); 2].map(|()| bell()));
        assert_eq!(budget.take(0, &bells[0], 0, 32 * MIB..=32 * MIB, true), 32 * MIB);
        assert_eq!(budget.take(0, &bells[0], 32 * MIB, MIB..=MIB, true), 0);
        assert_eq!(budget.take(1, &bells[1], 0, MIB..=MIB, true), MIB);
        budget.give(MIB);
        assert!(has_rung(&bells[0]), "it may try again");
    }

    /// Red if a connection whose client reads nothing keeps its place in the line: the first in line would keep all
    /// others waiting for as long as its client likes.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn one_that_steps_back_keeps_nobody_waiting_and_is_woken_with_the_others() {
        let (budget, bells) = (budget(), [(); 3].map(|()| bell()));
        assert_eq!(budget.take(0, &bells[0], 0, 60 * MIB..=60 * MIB, true), 60 * MIB);
        assert_eq!(budget.take(1, &bells[1], 0, 30 * MIB..=30 * MIB, true), 0);
        assert_eq!(budget.take(2, &bells[2], 0, MIB..=MIB, true), 0, "it is not the first");
        budget.step_back(1);
        assert!(has_rung(&bells[2]) && budget.is_wanted());
        assert_eq!(budget.take(2, &bells[2], 0, MIB..=MIB, true), MIB);
        assert!(!budget.is_wanted() && has_rung(&bells[1]), "nobody stands in line");
        assert_eq!(budget.take(1, &bells[1], 0, 30 * MIB..=30 * MIB, false), 0);
        budget.give(60 * MIB);
        assert!(has_rung(&bells[1]), "it may try again");
    }

    #[test]
    fn the_least_is_enough_for_each_and_little_is_kept_back_from_few() {
        let budget = Budget::new(least(256), 256);
        assert_eq!((budget.own(), budget.longest()), (LEAST_OWN, (LEAST_OWN + 256 * LEAST_OWN) / 2));
        let budget = Budget::new(6 << 30, 256);
        assert_eq!(budget.own(), MOST_OWN);
        assert!(budget.common > 3 << 30);
    }
}
