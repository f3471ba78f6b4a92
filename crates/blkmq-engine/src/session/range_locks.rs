//! Blocks that are changed in part, and whose turn it is there.
//!
//! A device changes whole blocks. A connection that is to change some bytes of a block reads the block, puts the bytes
//! in, and writes it back. A change of other bytes of the block that the device does between the read and the write
//! would be undone by the write. Such a change may come from any connection of the same queue. So a **part** (a change
//! that begins or ends within a block) has its blocks for itself from before its read until after its write. All other
//! changes, of whole blocks, are far more common, and pay nothing for that: no line that several threads write, and no
//! fence.
//!
//! The connections of a queue share a table of **claims**. Each claim is a range of blocks, and has a ticket. Tickets
//! give the order of the claims. A change without a ticket is **free**. The rules:
//!
//! 1. A part claims its blocks. The part begins when every claim on one of its blocks with a lower ticket is over, and
//!    when every connection has passed the claim.
//! 2. A connection looks once a turn whether there are new claims. The connection passes a claim at a moment at which
//!    it has no free change in progress on the claim's blocks.
//! 3. A connection that knows of any claim looks into the table before each change of whole blocks. The change is free
//!    if no part claims one of its blocks. Otherwise the change claims its blocks too, and begins when the parts with
//!    lower tickets on these blocks are over. No connection has to pass the claim of such a change.
//! 4. A connection that has passed all claims, and has no free change in progress, can **rest**: no other connection
//!    waits for it to pass claims. A resting connection looks into the table before its next change.
//!
//! So no free change is in progress on the blocks of a part between the part's read and its write:
//!
//! ```text
//!    connection A: a part of block 7           connection B: all of block 7
//! 1                                            looks: no claim is new
//! 2                                            submits change X, which is free
//! 3  claims 7 (ticket 1), rings B's bell
//! 4  waits: B has not passed ticket 1
//! 5                                            submits change Y, free: B has not looked since step 1
//! 6                                            looks: ticket 1 is new; X and Y are under way on 7
//! 7                                            change Z comes: ticket 1 claims 7, so Z gets ticket 2
//! 8                                            X and Y are over: passes ticket 1, rings A's bell
//! 9  reads 7, puts its bytes in, writes 7
//! 10 ends ticket 1, rings B's bell
//! 11                                           submits Z, and ends ticket 2 when Z is over
//! ```
//!
//! A change that is free when B looks in step 6 began before B passes ticket 1, and B waits for it. A change that comes
//! later finds ticket 1 in the table. In steps 2 and 5, B does not race with step 3: B passes the claim itself, in its
//! own thread, and the table's lock orders that before step 9. The load of `latest` only says that there is something
//! to look for. If B misses it once, A waits for longer.
//!
//! Nothing waits in a circle. A free change waits for nothing. A claim waits for lower tickets, and for connections
//! that pass it when their free changes are over. A connection whose thread is stuck passes nothing. The owner of a
//! claim that waits asks the others from time to time whether they still look ([`Seat::ask`]), and gives the claim up
//! if one does not for long.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use blkmq::event::EventFd;
use blkmq::{Notify, RequestQueue, WeakRequestQueue};

/// The position of a claim in the order of all claims of a queue.
pub(super) type Ticket = u64;

/// The range locks at queues that have connections.
static ALL: Mutex<Vec<(WeakRequestQueue, Weak<RangeLocks>)>> = Mutex::new(Vec::new());

/// A connection as the other connections see it.
#[derive(Debug)]
struct Member {
    bell: Arc<EventFd>,
    /// Whether the connection rests: it has no free change in progress, and looks into the table before it begins one.
    rests: bool,
    /// Claims of this connection whose turn has come, and that it has not taken up yet.
    ready: Vec<Ticket>,
    /// When another connection asked whether this one still looks, unless it has looked since.
    asked: Option<Instant>,
}

#[derive(Debug)]
struct Claim {
    owner: usize,
    /// The claimed blocks, as a range of bytes that consists of whole blocks.
    blocks: Range<u64>,
    /// Whether it is the claim of a part. Nothing else may run on these blocks at the same time.
    is_part: bool,
    /// The number of obstacles that it waits for: claims with lower tickets, and connections that have not passed it.
    obstacles: usize,
}

#[derive(Debug, Default)]
struct Table {
    last: Ticket,
    members: BTreeMap<usize, Member>,
    claims: BTreeMap<Ticket, Claim>,
}

/// The range locks of all connections to one queue.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    /// The ticket of the newest claim of a part. Every connection reads it; only claims of parts write it.
    latest: AtomicU64,
    table: Mutex<Table>,
}

impl Claim {
    /// Returns true if the claim and another one, of a part or not, cannot be served at the same time.
    fn conflicts(&self, blocks: &Range<u64>, is_part: bool) -> bool {
        (self.is_part || is_part) && self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }
}

impl Table {
    /// Passes claims of parts that other connections than this one have entered behind `seen`, if `passes` says so.
    fn pass_events(&mut self, number: usize, seen: Ticket, mut passes: impl FnMut(Ticket, &Range<u64>) -> bool) {
        let later = self.claims.range(seen + 1..).filter(|(_, claim)| claim.is_part && claim.owner != number);
        let passed = later.filter(|(ticket, claim)| passes(**ticket, &claim.blocks)).map(|(ticket, _)| *ticket);
        let passed: Vec<_> = passed.collect();
        passed.into_iter().for_each(|ticket| self.clear_obstacle(ticket));
    }

    /// Called when something that a claim waited for is over.
    fn clear_obstacle(&mut self, ticket: Ticket) {
        let Some(claim) = self.claims.get_mut(&ticket) else { return };
        debug_assert!(claim.obstacles > 0, "a claim whose turn has come waits for nothing more");
        claim.obstacles -= 1;
        if claim.obstacles == 0
            && let Some(member) = self.members.get_mut(&claim.owner)
        {
            member.ready.push(ticket);
            member.bell.notify();
        }
    }

    fn end(&mut self, ticket: Ticket) {
        let Some(over) = self.claims.remove(&ticket) else { return };
        let later = self.claims.range(ticket..).filter(|(_, claim)| claim.conflicts(&over.blocks, over.is_part));
        let waiting: Vec<_> = later.map(|(ticket, _)| *ticket).collect();
        waiting.into_iter().for_each(|ticket| self.clear_obstacle(ticket));
    }

    /// Enters a claim that waits for this many connections. Returns its ticket, and whether its turn has come.
    fn enter(&mut self, owner: usize, blocks: Range<u64>, is_part: bool, connections: usize) -> (Ticket, bool) {
        debug_assert!(!blocks.is_empty(), "a claim is for some block");
        let earlier = self.claims.values().filter(|claim| claim.conflicts(&blocks, is_part));
        let obstacles = earlier.count() + connections;
        self.last += 1;
        self.claims.insert(self.last, Claim { owner, blocks, is_part, obstacles });
        (self.last, obstacles == 0)
    }
}

impl RangeLocks {
    /// The range locks of a queue, which all its connections share.
    pub(super) fn of(q: &RequestQueue) -> Arc<Self> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, range_locks)| range_locks.strong_count() > 0);
        let known = all.iter().find(|(other, _)| other.is_of(q));
        if let Some(range_locks) = known.and_then(|(_, range_locks)| range_locks.upgrade()) {
            return range_locks;
        }
        let range_locks = Arc::new(Self::default());
        all.push((q.downgrade(), Arc::downgrade(&range_locks)));
        range_locks
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for a connection that has nothing in progress. `bell` wakes the connection's thread when there is
    /// something to look for.
    pub(super) fn join(self: Arc<Self>, bell: Arc<EventFd>) -> Seat {
        let mut table = self.lock();
        let number = table.members.last_key_value().map_or(0, |(last, _)| last + 1);
        table.members.insert(number, Member { bell, rests: false, ready: Vec::new(), asked: None });
        let seen = table.last;
        drop(table);
        Seat { range_locks: self, number, seen, rests: false }
    }
}

/// A connection's place at the table, which is dropped when the connection has nothing in progress any more.
#[derive(Debug)]
pub(super) struct Seat {
    range_locks: Arc<RangeLocks>,
    number: usize,
    /// The connection knows of the claims up to this ticket.
    seen: Ticket,
    rests: bool,
}

impl Seat {
    /// Returns true if there may be claims that the connection does not know of.
    ///
    /// COST: a load of a line that is written only when a connection changes a part of a block.
    #[inline]
    pub(super) fn has_new_claims(&self) -> bool {
        // Acquire: pairs with the Release in `claim_part`, so that a thread that the bell woke sees the reason.
        self.range_locks.latest.load(Ordering::Acquire) > self.seen
    }

    #[inline]
    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// Learns of the new claims, with their blocks. `passes` says for each whether the connection passes it at once. If
    /// not, [`pass`](Self::pass) passes it later. The connection's own claims whose turn has come are added to `ready`.
    /// Returns whether the table holds any claim.
    pub(super) fn look(&mut self, ready: &mut Vec<Ticket>, passes: impl FnMut(Ticket, &Range<u64>) -> bool) -> bool {
        let mut table = self.range_locks.lock();
        if !self.rests {
            table.pass_events(self.number, self.seen, passes);
            self.seen = table.last;
        }
        if let Some(member) = table.members.get_mut(&self.number) {
            ready.append(&mut member.ready);
            member.asked = None;
        }
        !table.claims.is_empty()
    }

    /// Passes a claim that was not passed at once.
    pub(super) fn pass(&mut self, ticket: Ticket) {
        self.range_locks.lock().clear_obstacle(ticket);
    }

    /// Rests. The connection has passed all claims that it knows of, and has no free change under way.
    pub(super) fn rest(&mut self) {
        let mut table = self.range_locks.lock();
        table.pass_events(self.number, self.seen, |_, _| true);
        if let Some(member) = table.members.get_mut(&self.number) {
            member.rests = true;
        }
        (self.seen, self.rests) = (table.last, true);
    }

    /// Claims blocks to change a part of them. `is_passed`: whether the connection itself passes the claim at once.
    /// Returns the claim's ticket, and whether its turn has come.
    pub(super) fn claim_part(&mut self, blocks: Range<u64>, is_passed: bool) -> (Ticket, bool) {
        let mut table = self.range_locks.lock();
        let is_asked = |(number, member): &(&usize, &Member)| **number != self.number && !member.rests;
        let asked = table.members.iter().filter(is_asked).count() + usize::from(!is_passed);
        let (ticket, is_due) = table.enter(self.number, blocks, true, asked);
        // Release: pairs with the Acquire in `has_new_claims`. The ticket is stored before the bells ring.
        self.range_locks.latest.store(ticket, Ordering::Release);
        table.members.iter().filter(is_asked).for_each(|(_, member)| member.bell.notify());
        (ticket, is_due)
    }

    /// Claims blocks to change all of them, if parts of them are claimed. `None` if the change is free. Else the
    /// ticket, and whether its turn has come. Ends a rest.
    pub(super) fn claim_whole(&mut self, blocks: &Range<u64>) -> Option<Ticket> {
        let mut table = self.range_locks.lock();
        if self.rests {
            // Claims that exist now are in the table. For later claims, the connection will be asked to pass them.
            (self.seen, self.rests) = (table.last, false);
            if let Some(member) = table.members.get_mut(&self.number) {
                member.rests = false;
            }
        }
        let is_met = table.claims.values().any(|claim| claim.conflicts(blocks, false));
        is_met.then(|| table.enter(self.number, blocks.clone(), false, 0).0)
    }

    /// Asks all connections for which a claim may wait whether they still look. Returns true if one of them was asked
    /// at least `idle_timeout` ago, and has not looked since.
    pub(super) fn ask(&mut self, ticket: Ticket, now: Instant, idle_timeout: Duration) -> bool {
        let mut table = self.range_locks.lock();
        let Table { members, claims, .. } = &mut *table;
        let Some(Claim { blocks, is_part, .. }) = claims.get(&ticket) else { return false };
        let mut is_silent = false;
        for (number, member) in members.iter_mut().filter(|(number, _)| **number != self.number) {
            let has_claim =
                || claims.range(..ticket).any(|(_, claim)| claim.owner == *number && claim.conflicts(blocks, *is_part));
            // Only the claim of a part waits for others to pass it.
            if *is_part && !member.rests || has_claim() {
                is_silent |= now.saturating_duration_since(*member.asked.get_or_insert(now)) >= idle_timeout;
                member.bell.notify();
            }
        }
        is_silent
    }

    /// Called when a change with a ticket is over, or when it will never begin.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.range_locks.lock().end(ticket);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.rests {
            self.rest();
        }
        let mut table = self.range_locks.lock();
        table.members.remove(&self.number);
        let own: Vec<_> =
            table.claims.iter().filter(|(_, claim)| claim.owner == self.number).map(|(ticket, _)| *ticket).collect();
        own.into_iter().for_each(|ticket| table.end(ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(range_locks: &Arc<RangeLocks>) -> Seat {
        Arc::clone(range_locks).join(Arc::new(EventFd::new().unwrap()))
    }

    fn look(seat: &mut Seat, passes: bool) -> (Vec<Ticket>, Vec<Ticket>) {
        let (mut ready, mut news) = (Vec::new(), Vec::new());
        seat.look(&mut ready, |ticket, _| {
            news.push(ticket);
            passes
        });
        (ready, news)
    }

    /// The steps of the interleaving in the module's text. Red if a part begins before others have passed its claim, or
    /// if a change of a whole block does not wait for a part of this block.
    #[test]
    fn a_part_waits_for_what_is_free_and_what_comes_later_waits_for_the_part() {
        let range_locks = Arc::new(RangeLocks::default());
        let (mut a, mut b) = (seat(&range_locks), seat(&range_locks));
        assert!(!b.has_new_claims());
        let (first, is_due) = a.claim_part(7..8, true);
        assert!(!is_due && b.has_new_claims());
        // X and Y are free.
        assert_eq!(look(&mut b, false), (vec![], vec![first]));
        let second = b.claim_whole(&(6..9)).expect("a part of it is claimed");
        assert_eq!(b.claim_whole(&(0..7)), None);
        assert_eq!(look(&mut a, true), (vec![], vec![]));
        b.pass(first);
        assert_eq!(look(&mut a, true), (vec![first], vec![]));
        assert_eq!(look(&mut b, true), (vec![], vec![]));
        a.end(first);
        assert_eq!(look(&mut b, true), (vec![second], vec![]));
        b.end(second);
        assert_eq!(b.claim_whole(&(7..8)), None);
    }

    /// Red if a part waits for a connection that rests, or if a connection that rested begins a change without looking.
    #[test]
    fn a_connection_that_rests_is_not_waited_for_and_looks_before_it_goes_on() {
        let range_locks = Arc::new(RangeLocks::default());
        let (mut a, mut b) = (seat(&range_locks), seat(&range_locks));
        b.rest();
        let (first, is_due) = a.claim_part(0..1, true);
        assert!(is_due);
        assert!(b.claim_whole(&(0..1)).is_some() && !b.rests());
        // Others wait for it again, and it need not pass the claims that it has seen.
        let (second, is_due) = a.claim_part(4..5, true);
        assert!(!is_due);
        assert_eq!(look(&mut b, true), (vec![], vec![second]));
        assert_eq!(look(&mut a, true).0, [second]);
        a.end(first);
        assert_eq!(look(&mut b, true).0.len(), 1);
    }

    /// Red if a connection that leaves keeps others waiting, because of its claims or of claims that it has not passed.
    #[test]
    fn a_connection_that_leaves_is_waited_for_no_more() {
        let range_locks = Arc::new(RangeLocks::default());
        let (mut a, mut b, c) = (seat(&range_locks), seat(&range_locks), seat(&range_locks));
        let (first, is_due) = a.claim_part(0..1, true);
        assert!(!is_due);
        assert_eq!(look(&mut b, true).1, [first]);
        drop(c);
        assert_eq!(look(&mut a, true).0, [first]);
        let (second, is_due) = b.claim_part(0..1, true);
        assert!(!is_due);
        drop(a);
        assert_eq!(look(&mut b, true).0, [second]);
    }

    /// Parts of the same blocks run in the order of their tickets, whichever ends first. Changes of whole blocks run at
    /// the same time. Red if changes of whole blocks wait for each other, or if a part runs before a lower ticket.
    #[test]
    fn turns_come_in_the_order_of_the_claims() {
        let range_locks = Arc::new(RangeLocks::default());
        let mut a = seat(&range_locks);
        let (first, is_due) = a.claim_part(0..2, true);
        assert!(is_due);
        let (second, is_due) = a.claim_part(1..3, true);
        assert!(!is_due);
        let wholes = [a.claim_whole(&(2..3)).unwrap(), a.claim_whole(&(2..4)).unwrap()];
        let (third, is_due) = a.claim_part(3..4, true);
        assert!(!is_due);
        let (other, is_due) = a.claim_part(8..9, true);
        assert!(is_due);
        a.end(other);
        a.end(first);
        assert_eq!(look(&mut a, true).0, [second]);
        a.end(second);
        assert_eq!(look(&mut a, true).0, wholes);
        wholes.into_iter().for_each(|ticket| a.end(ticket));
        assert_eq!(look(&mut a, true).0, [third]);
    }

    #[test]
    fn all_connections_of_a_queue_share_its_turns() {
        let queue = || RequestQueue::builder(blkmq::driver::spec::open("ram,size=1M").unwrap()).build().unwrap();
        let (one, other) = (queue(), queue());
        let range_locks = RangeLocks::of(&one);
        assert!(Arc::ptr_eq(&range_locks, &RangeLocks::of(&one)));
        assert!(!Arc::ptr_eq(&range_locks, &RangeLocks::of(&other)));
    }
}
