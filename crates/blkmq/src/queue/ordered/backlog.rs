//! The backlog: requests that have entered the queue and are not in the scheduler yet, because a combiner has taken
//! them over and not inserted them yet, or because there was no room. Published requests that no combiner has taken
//! over yet are in the staging word or, under the locking `staged`, in a bucket.
//!
//! Requests are taken in the order of publication, in rounds. The oldest [`ROUNDS`] requests form the front, or as many
//! as the combiner may still take if these are fewer. Each round takes one request of each thread with requests in the
//! front. The rounds guarantee two things. A request waits only for those that were published before it, and for a few
//! more, however much other threads publish behind it. And within the front no thread's k-th request waits for another
//! thread's (k + 1)-th.
//!
//! Requests for which the scheduler had no room stay in one list per thread, class and sync or async. So the order
//! within each list is kept, and no list blocks another. Free room is granted round-robin to the threads that wait for
//! it: no thread gets room twice before another thread that could use it. Within a thread the highest class gets room
//! first, and within a class sync and async requests alternate.

use blkmq_sched::Class;

use crate::queue::topology::hctx::next_bit;
use crate::request::limits::MAX_THREADS;
use crate::request::{Location, Request, RqList, Slots};
use blkmq_sync::{Named, Tracked};

/// The size of the front: the most requests that are taken in rounds before the next ones join.
pub(crate) const ROUNDS: usize = 64;

// So that the whole front can take the fast path together.
const _: () = assert!(ROUNDS <= blkmq_sched::MAX_FAST_BATCH);

/// Words of a set of threads.
const NR_WORDS: usize = MAX_THREADS / 64;

/// The number of kinds of requests, async and sync of each class. A kind without room blocks no other kind.
const NR_KINDS: usize = 2 * Class::ALL.len();

/// The waiting requests of one thread.
#[derive(Debug, Default)]
struct Waiting {
    /// The requests in the front, in the order of publication.
    incoming: Tracked<RqList>,
    /// The requests that wait for room, by kind.
    without_room: [Tracked<RqList>; NR_KINDS],
    /// The kind of a class that is tried for room first: 0 for async, 1 for sync.
    turn: usize,
}

impl Waiting {
    /// Tries the oldest request of one kind after the other, until `insert` takes one. The highest class comes first,
    /// since a request of a lower class that is let in keeps its room while it waits for the higher class. Returns
    /// whether `insert` took one.
    fn retry_one<'q>(
        &mut self,
        slots: &'q Slots,
        insert: &mut impl FnMut(Request<'q>) -> Result<(), Request<'q>>,
    ) -> bool {
        for step in 0..NR_KINDS {
            let kind = step ^ self.turn;
            let list = &mut *self.without_room[kind];
            let Some(rq) = list.pop_front(slots) else { continue };
            match insert(rq) {
                Ok(()) => {
                    self.turn = 1 - kind % 2;
                    return true;
                }
                Err(rq) => list.push_front(rq, Location::Staged),
            }
        }
        false
    }
}

/// The requests of the backlog, by thread.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    threads: Named<Vec<Waiting>>,
    /// The threads with requests in the front.
    incoming: [Tracked<u64>; NR_WORDS],
    /// The thread whose turn is next.
    turn: Tracked<usize>,
    nr_incoming: Tracked<usize>,
    /// The requests that were added since the present rounds began.
    later: Tracked<RqList>,
    /// The threads with requests that wait for room.
    without_room: [u64; NR_WORDS],
    /// The thread of `without_room` that is tried first.
    retry_turn: usize,
    nr_without_room: usize,
}

/// The list in which a request waits for room. No request overtakes another one in its list.
fn kind(rq: &Request<'_>) -> usize {
    2 * rq.priority().class.index() + usize::from(rq.body().is_sync())
}

fn bit(thread: usize) -> (usize, u64) {
    (thread / 64, 1 << (thread % 64))
}

/// The first thread of a set at or behind `from`, going round.
fn next(from: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    debug_assert!(from <= MAX_THREADS, "a turn is that of a thread, or behind the last");
    next_bit(NR_WORDS, from, word)
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { threads: Named::new("queue.backlog", Vec::new()), ..Self::default() }
    }

    /// Reserves an entry for a thread. Called when it joins.
    pub(in crate::queue) fn reserve(&mut self, thread: u16) {
        let len = self.threads.len().max(usize::from(thread) + 1);
        self.threads.resize_with(len, Waiting::default);
    }

    /// Adds published requests, in the order of publication.
    pub(crate) fn add(&mut self, left: RqList) {
        self.later.append(left);
    }

    /// Takes all requests, in the order of publication, if no rounds have begun and nothing waits for room.
    pub(crate) fn take_all(&mut self) -> Option<RqList> {
        (*self.nr_incoming == 0 && self.nr_without_room == 0).then(|| std::mem::take(&mut *self.later))
    }

    /// Whether nothing waits here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        *self.nr_incoming == 0 && self.later.is_empty() && self.nr_without_room == 0
    }

    /// Whether there are requests that were not tried yet.
    #[inline]
    pub(crate) fn is_untried(&self) -> bool {
        *self.nr_incoming > 0 || !self.later.is_empty()
    }

    /// Whether the front is empty: all requests wait for the next rounds, or for room.
    #[inline]
    pub(crate) fn is_between_rounds(&self) -> bool {
        *self.nr_incoming == 0
    }

    /// Requests that wait here.
    pub(crate) fn len(&self) -> usize {
        *self.nr_incoming + self.later.len() + self.nr_without_room
    }

    /// Whether the counts and sets say what the lists hold. For assertions.
    pub(super) fn agrees(&self) -> bool {
        let (mut nr_incoming, mut nr_without_room) = (0, 0);
        for (thread, waiting) in self.threads.iter().enumerate() {
            let without_room: usize = waiting.without_room.iter().map(|list| list.len()).sum();
            let (word, bit) = bit(thread);
            if (*self.incoming[word] & bit != 0) == waiting.incoming.is_empty()
                || (self.without_room[word] & bit != 0) == (without_room == 0)
            {
                return false;
            }
            nr_incoming += waiting.incoming.len();
            nr_without_room += without_room;
        }
        (nr_incoming, nr_without_room) == (*self.nr_incoming, self.nr_without_room)
    }

    /// Whether requests of the same kind and thread wait for room. If so, this request goes behind them.
    #[inline]
    pub(crate) fn is_blocked(&self, rq: &Request<'_>) -> bool {
        self.has_waiting_for_room() && self.is_behind_some(rq)
    }

    #[cold]
    fn is_behind_some(&self, rq: &Request<'_>) -> bool {
        let thread = usize::from(rq.index().pool());
        let (word, bit) = bit(thread);
        self.without_room[word] & bit != 0 && !self.threads[thread].without_room[kind(rq)].is_empty()
    }

    /// The next request whose turn it is, which the caller tries. `most` is how many the caller may still take, this
    /// one included. If new rounds begin, they have no more requests than that, so that they are over when the caller
    /// stops. While rounds are half done nothing can be [taken together](Self::take_all).
    pub(crate) fn take<'q>(&mut self, slots: &'q Slots, most: usize) -> Option<Request<'q>> {
        if *self.nr_incoming == 0 {
            self.begin_rounds(slots, most.min(ROUNDS));
        }
        let thread = next(*self.turn, |at| *self.incoming[at])?;
        *self.turn = thread + 1;
        let list = &mut *self.threads[thread].incoming;
        debug_assert!(!list.is_empty(), "a thread in the rounds has a request there");
        let rq = list.pop_front(slots);
        if list.is_empty() {
            let (word, bit) = bit(thread);
            *self.incoming[word] &= !bit;
        }
        *self.nr_incoming -= 1;
        rq
    }

    fn begin_rounds(&mut self, slots: &Slots, most: usize) {
        debug_assert_eq!(*self.nr_incoming, 0, "rounds begin when the rounds before are over");
        while *self.nr_incoming < most
            && let Some(rq) = self.later.pop_front(slots)
        {
            *self.nr_incoming += 1;
            let thread = usize::from(rq.index().pool());
            let (word, bit) = bit(thread);
            *self.incoming[word] |= bit;
            self.threads[thread].incoming.push_back(rq, Location::Staged);
        }
    }

    /// Adds a request for which there is no room.
    pub(crate) fn put_without_room(&mut self, rq: Request<'_>) {
        let thread = usize::from(rq.index().pool());
        let (word, bit) = bit(thread);
        self.without_room[word] |= bit;
        self.nr_without_room += 1;
        self.threads[thread].without_room[kind(&rq)].push_back(rq, Location::Staged);
    }

    /// Whether something waits for room.
    #[inline]
    pub(crate) fn has_waiting_for_room(&self) -> bool {
        self.nr_without_room > 0
    }

    /// Tries the requests that wait for room, the oldest of each list first. A request that `insert` gives back stays
    /// where it was. Returns how many `insert` took.
    pub(crate) fn retry<'q>(
        &mut self,
        slots: &'q Slots,
        mut insert: impl FnMut(Request<'q>) -> Result<(), Request<'q>>,
    ) -> usize {
        let before = self.nr_without_room;
        let mut set = self.without_room;
        while let Some(thread) = next(self.retry_turn, |at| set[at]) {
            let (word, bit) = bit(thread);
            let waiting = &mut self.threads[thread];
            if waiting.retry_one(slots, &mut insert) {
                self.nr_without_room -= 1;
                // Only a thread that got room gives up its turn. Otherwise attempts without room could rotate the turn
                // to the same thread each time that there is room.
                self.retry_turn = thread + 1;
            } else {
                set[word] &= !bit;
                if waiting.without_room.iter().all(|list| list.is_empty()) {
                    self.without_room[word] &= !bit;
                }
            }
        }
        before - self.nr_without_room
    }
}

#[cfg(test)]
mod tests;
