//! What was left with the holder of the scheduler and is not in the scheduler yet.
//!
//! What was left first is taken first, in rounds: of the [`ROUNDS`] requests that stand in front, one of each member
//! that has some, then another of each. So no request waits for more than was there when it came, and a few, however
//! much others leave behind it; and among those in front nobody's k-th request waits for another's (k + 1)-th.
//!
//! Requests for which the scheduler had no room stay in one list per member, class and sync or async, so that the order
//! within each is kept and none of them holds up another. Room that comes goes round: among members who wait for it
//! nobody gets it twice before another that could use it. Of a member its highest class has it first, sync and async
//! requests by turns.

use blkmq_sched::Class;

use crate::member::MAX_MEMBERS;
use crate::request::{Place, Request, RqList, Slots};

/// Requests that are taken in rounds; then the next that stand in front are.
const ROUNDS: usize = 64;

/// A set of members.
type Set = [u64; MAX_MEMBERS / 64];

/// Kinds of requests, async and sync of each class: none holds up another for want of room.
const NR_KINDS: usize = 2 * Class::ALL.len();

/// What waits of one member.
#[derive(Debug, Default)]
struct Waiting {
    /// What is taken in the rounds, in the order in which the member left it.
    incoming: RqList,
    /// What found no room, by kind.
    without_room: [RqList; NR_KINDS],
    /// Within a class, what looks for room first: 0 for async, 1 for sync.
    turn: usize,
}

impl Waiting {
    /// Tries the oldest request of one kind after the other, until `insert` takes one: the highest class first, since
    /// what is let in of a lower one keeps its place while it waits for that. Returns whether it did.
    fn retry_one<'q>(
        &mut self,
        slots: &'q Slots,
        insert: &mut impl FnMut(Request<'q>) -> Result<(), Request<'q>>,
    ) -> bool {
        for step in 0..NR_KINDS {
            let kind = step ^ self.turn;
            let list = &mut self.without_room[kind];
            let Some(rq) = list.pop_front(slots) else { continue };
            match insert(rq) {
                Ok(()) => {
                    self.turn = 1 - kind % 2;
                    return true;
                }
                Err(rq) => list.push_front(rq, Place::Staged),
            }
        }
        false
    }
}

/// What was left with the holder, by member.
#[derive(Debug)]
pub(crate) struct Backlog {
    members: Vec<Waiting>,
    /// Who has something that is taken in the rounds of now.
    incoming: Set,
    /// The member whose turn is next.
    turn: usize,
    nr_incoming: usize,
    /// What was left since these rounds began.
    later: RqList,
    /// Who has something that found no room.
    without_room: Set,
    /// Of these the one who looks for room first.
    retry_turn: usize,
    nr_without_room: usize,
}

/// The list that a request without room waits in: none of it passes another one there.
fn kind(rq: &Request<'_>) -> usize {
    2 * rq.body().priority.class.index() + usize::from(rq.body().is_sync())
}

fn bit(member: usize) -> (usize, u64) {
    (member / 64, 1 << (member % 64))
}

/// The first member of the set at or behind `from`, going round.
fn next(set: &Set, from: usize) -> Option<usize> {
    let at = from / 64 % set.len();
    (0..=set.len()).find_map(|step| {
        let place = (at + step) % set.len();
        let below = (1 << (from % 64)) - 1;
        let word = match step {
            0 => set[place] & !below,
            _ if step == set.len() => set[place] & below,
            _ => set[place],
        };
        (word != 0).then(|| place * 64 + word.trailing_zeros() as usize)
    })
}

impl Default for Backlog {
    fn default() -> Self {
        Self::new()
    }
}

impl Backlog {
    pub(crate) fn new() -> Self {
        let nobody = [0; MAX_MEMBERS / 64];
        Self {
            members: Vec::new(),
            incoming: nobody,
            turn: 0,
            nr_incoming: 0,
            later: RqList::new(),
            without_room: nobody,
            retry_turn: 0,
            nr_without_room: 0,
        }
    }

    /// Makes room for what a member leaves. Called when it joins.
    pub(crate) fn reserve(&mut self, member: u16) {
        let len = self.members.len().max(usize::from(member) + 1);
        self.members.resize_with(len, Waiting::default);
    }

    /// Adds what was left, in the order in which it was.
    pub(crate) fn add(&mut self, left: RqList) {
        self.later.append(left);
    }

    /// Takes all of it, in the order in which it was left, if no rounds have begun and nothing waits for room.
    pub(crate) fn take_all(&mut self) -> Option<RqList> {
        (self.nr_incoming == 0 && self.nr_without_room == 0).then(|| std::mem::take(&mut self.later))
    }

    /// Whether nothing waits here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.nr_incoming == 0 && self.later.is_empty() && self.nr_without_room == 0
    }

    /// Whether something waits that was not tried yet.
    #[inline]
    pub(crate) fn is_untried(&self) -> bool {
        self.nr_incoming > 0 || !self.later.is_empty()
    }

    /// Requests that wait here.
    pub(crate) fn len(&self) -> usize {
        self.nr_incoming + self.later.len() + self.nr_without_room
    }

    /// Whether requests of the same kind and member wait for room: then this one goes behind them.
    #[inline]
    pub(crate) fn is_blocked(&self, rq: &Request<'_>) -> bool {
        self.lacks_room() && self.is_behind_some(rq)
    }

    #[cold]
    fn is_behind_some(&self, rq: &Request<'_>) -> bool {
        let member = usize::from(rq.index().pool());
        let (word, bit) = bit(member);
        self.without_room[word] & bit != 0 && !self.members[member].without_room[kind(rq)].is_empty()
    }

    /// The next request whose turn it is, which the caller tries.
    pub(crate) fn take<'q>(&mut self, slots: &'q Slots) -> Option<Request<'q>> {
        if self.nr_incoming == 0 {
            self.begin_rounds(slots);
        }
        let member = next(&self.incoming, self.turn)?;
        self.turn = member + 1;
        let list = &mut self.members[member].incoming;
        let rq = list.pop_front(slots);
        if list.is_empty() {
            let (word, bit) = bit(member);
            self.incoming[word] &= !bit;
        }
        self.nr_incoming -= 1;
        rq
    }

    fn begin_rounds(&mut self, slots: &Slots) {
        while self.nr_incoming < ROUNDS
            && let Some(rq) = self.later.pop_front(slots)
        {
            self.nr_incoming += 1;
            let member = usize::from(rq.index().pool());
            let (word, bit) = bit(member);
            self.incoming[word] |= bit;
            self.members[member].incoming.push_back(rq, Place::Staged);
        }
    }

    /// Puts down a request for which there is no room.
    pub(crate) fn put_without_room(&mut self, rq: Request<'_>) {
        let member = usize::from(rq.index().pool());
        let (word, bit) = bit(member);
        self.without_room[word] |= bit;
        self.nr_without_room += 1;
        self.members[member].without_room[kind(&rq)].push_back(rq, Place::Staged);
    }

    /// Whether something waits for room.
    #[inline]
    pub(crate) fn lacks_room(&self) -> bool {
        self.nr_without_room > 0
    }

    /// Tries what waits for room, the oldest of each list first; one that `insert` gives back stays where it was.
    /// Returns how many it took.
    pub(crate) fn retry<'q>(
        &mut self,
        slots: &'q Slots,
        mut insert: impl FnMut(Request<'q>) -> Result<(), Request<'q>>,
    ) -> usize {
        let before = self.nr_without_room;
        let mut set = self.without_room;
        while let Some(member) = next(&set, self.retry_turn) {
            let (word, bit) = bit(member);
            let waiting = &mut self.members[member];
            if waiting.retry_one(slots, &mut insert) {
                self.nr_without_room -= 1;
                // Only who got something gives up his turn: looks in vain would else bring it round to the same one
                // each time that there is room.
                self.retry_turn = member + 1;
            } else {
                set[word] &= !bit;
                if waiting.without_room.iter().all(RqList::is_empty) {
                    self.without_room[word] &= !bit;
                }
            }
        }
        before - self.nr_without_room
    }
}

#[cfg(test)]
mod tests;
