//! Lists of requests, linked through their slots: no allocation, constant time, no lock of their own.
#![expect(unsafe_code, reason = "tokens are made again from the slots on a list")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use blkmq_sched::MAX_FAST_BATCH;

use super::index::{NIL, SlotIndex};
use super::slot::{AHEAD, Slot, Slots};
use super::state::Location;
use super::token::Request;
use crate::request::bio::Bio;
use blkmq_sync::Tracked;
use blkmq_sync::atomic::Ordering;
use blkmq_sync::handover::Handover;
use blkmq_sync::stack::{Chain, SlotStack};
use blkmq_sync::staging::Staging;

/// A first-in first-out list of requests.
///
/// # Invariants
/// 1. Every slot on the list was left there by a token that [`push_back`](Self::push_back),
///    [`push_front`](Self::push_front) or [`push_free`](Self::push_free) consumed, or came over a chain whose owner
///    gave it up. No slot is on another list.
/// 2. All slots are of the same [`Slots`], and every method that asks for the slots is given these.
/// 3. From `head`, `len` slots are linked by `next`; the last of them is `tail`. If the list is empty, neither `head`
///    nor `tail` is looked at.
#[derive(Debug)]
pub(crate) struct RqList {
    head: NonNull<Slot>,
    tail: NonNull<Slot>,
    len: usize,
}

// SAFETY: a list stands for the tokens of its requests, which may move to another thread.
unsafe impl Send for RqList {}

impl Default for RqList {
    #[inline]
    fn default() -> Self {
        Self { head: NonNull::dangling(), tail: NonNull::dangling(), len: 0 }
    }
}

impl Slots {
    /// Every slot of the caller's own pool, free.
    pub(crate) fn take_pool(&self, pool: u16) -> RqList {
        let mut free = RqList::default();
        for slot in (0..self.nr_slots(pool)).rev() {
            free.push_free(self.take_own(SlotIndex::new(pool, slot)));
        }
        free
    }
}

impl RqList {
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push_back(&mut self, rq: Request<'_>, location: Location) {
        let slot = NonNull::from(rq.slot());
        debug_assert!(self.len == 0 || slot != self.tail, "a request is put on a list once");
        let _ = rq.leave_at(location);
        match self.len {
            0 => self.head = slot,
            // SAFETY: the tail is on the list (Invariants 1 and 2).
            _ => unsafe { set_next(self.tail, slot) },
        }
        self.tail = slot;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn push_front(&mut self, rq: Request<'_>, location: Location) {
        let slot = NonNull::from(rq.slot());
        let _ = rq.leave_at(location);
        // SAFETY: the token ended here, so the slot is this list's to link.
        unsafe { self.link_front(slot) };
    }

    /// Ends the request's operation, and puts its free slot in front.
    #[inline]
    pub(crate) fn push_free(&mut self, rq: Request<'_>) {
        let slot = NonNull::from(rq.slot());
        rq.free();
        // SAFETY: the token ended here, so the slot is this list's to link.
        unsafe { self.link_front(slot) };
    }

    /// As [`push_free`](Self::push_free), and takes the operation out of the slot.
    ///
    /// COST: the operation is read last, so it is copied once, to its destination in the caller.
    ///
    /// The operation is complete: no part of it is outstanding.
    ///
    /// # Panics
    /// If the slot holds no operation.
    #[inline(always)]
    pub(crate) fn push_free_for_bio(&mut self, rq: Request<'_>) -> Bio {
        debug_assert!(!rq.body().is_split, "the operation of a part stays with its parent: {rq:?}");
        let slot = rq.slot();
        self.push_free(rq);
        // SAFETY: slot Invariant 2: all parts are back. The slot's submitter, in whose hands this is, has not taken the
        // free slot again.
        let cell = unsafe { &mut *slot.bio.get() };
        cell.take()
    }

    /// Puts a slot in front.
    ///
    /// # Safety
    /// Its token has just ended in the caller's hands, so it is on no list.
    #[inline]
    unsafe fn link_front(&mut self, slot: NonNull<Slot>) {
        debug_assert!(self.len == 0 || slot != self.head, "a request is put on a list once");
        match self.len {
            0 => self.tail = slot,
            // SAFETY: the caller's promise; the slot is on this list from here on.
            _ => unsafe { set_next(slot, self.head) },
        }
        self.head = slot;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop_front<'q>(&mut self, slots: &'q Slots) -> Option<Request<'q>> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: by Invariants 1 and 2 the slot stands for a token of these slots; it is taken off the list here.
        let rq = unsafe { slots.adopt_at(self.head) };
        self.len -= 1;
        if self.len > 0 {
            self.head = next(rq.slot());
        }
        Some(rq)
    }

    /// Moves everything from `other` behind what is here.
    #[inline]
    pub(crate) fn append(&mut self, other: Self) {
        if other.len == 0 {
            return;
        }
        debug_assert!(self.len == 0 || self.tail != other.tail, "two lists have no request in common");
        match self.len {
            0 => self.head = other.head,
            // SAFETY: the tail is on the list (Invariants 1 and 2).
            _ => unsafe { set_next(self.tail, other.head) },
        }
        self.tail = other.tail;
        self.len += other.len;
    }

    /// Moves everything from `other` in front of what is here.
    #[inline]
    pub(crate) fn prepend(&mut self, mut other: Self) {
        other.append(std::mem::take(self));
        *self = other;
    }

    /// Moves the requests at the front to which `belongs` says yes into a list of their own. `belongs` may change each
    /// request that it is shown, also the first that does not belong.
    #[inline]
    pub(crate) fn take_while<'q>(
        &mut self,
        slots: &'q Slots,
        mut belongs: impl FnMut(&mut Request<'q>) -> bool,
    ) -> Self {
        let mut taken = Self { head: self.head, tail: self.head, len: 0 };
        let mut at = self.head;
        while taken.len < self.len {
            // SAFETY: the list owns the request (Invariants 1 and 2); the token ends with this round and is not given
            // away.
            let mut rq = ManuallyDrop::new(unsafe { slots.adopt_at(at) });
            if !belongs(&mut rq) {
                break;
            }
            taken.tail = at;
            taken.len += 1;
            if taken.len < self.len {
                at = next(rq.slot());
            }
        }
        self.head = at;
        self.len -= taken.len;
        taken
    }

    /// Shows each request to `look`, which may change it.
    #[inline]
    pub(crate) fn each<'q>(&mut self, slots: &'q Slots, mut look: impl FnMut(&mut Request<'q>)) {
        *self = self.take_while(slots, |rq| {
            look(rq);
            true
        });
    }

    /// Puts the requests in another order: `order` names the present place of each.
    ///
    /// # Panics
    /// If there are more than [`MAX_FAST_BATCH`], or `order` does not name each of them once: a request would be lost.
    pub(crate) fn reorder(&mut self, order: &[u8]) {
        if let ([0], 1) = (order, self.len) {
            return;
        }
        let mut slots = [None; MAX_FAST_BATCH];
        assert!(order.len() == self.len && self.len <= slots.len(), "an order names each request");
        slots.iter_mut().zip(self.slots()).for_each(|(location, slot)| *location = Some(slot));
        // The slots are taken out one by one, so each is linked once. The list then holds the same slots as before.
        let mut order = order.iter().map(|location| {
            let slot = slots.get_mut(usize::from(*location)).and_then(Option::take);
            slot.expect("an order names each request once")
        });
        let Some(first) = order.next() else { return };
        (self.head, self.tail) = (first, first);
        for slot in order {
            // SAFETY: the tail is on the list (Invariants 1 and 2).
            unsafe { set_next(self.tail, slot) };
            self.tail = slot;
        }
    }

    /// The slots on the list.
    fn slots(&self) -> impl Iterator<Item = NonNull<Slot>> + use<'_> {
        let mut at = self.head;
        (0..self.len).map(move |location| {
            let slot = at;
            if location + 1 < self.len {
                // SAFETY: the slot is on the list (Invariants 1 and 2), and has one behind it (Invariant 3).
                at = next(unsafe { slot.as_ref() });
            }
            slot
        })
    }

    /// The addresses on the list.
    fn indices(&self) -> impl Iterator<Item = SlotIndex> + use<'_> {
        // SAFETY: the slot is on the list (Invariants 1 and 2), and only its address is read.
        self.slots().map(|slot| unsafe { slot.as_ref() }.index)
    }

    /// The addresses on the list. Every sixth slot, counted from the last, gets prefetch hints: the five slots
    /// before it on the list, which come behind it on the chain that the list becomes.
    fn indices_with_hints<'a>(&'a self, slots: &'a Slots) -> impl Iterator<Item = u32> + 'a {
        let (mut before, mut behind) = ([NIL; AHEAD], self.len);
        self.indices().map(move |index| {
            behind -= 1;
            let ahead = if behind.is_multiple_of(AHEAD + 1) { before } else { [NIL; AHEAD] };
            // SAFETY: slot Invariant 1; the list has the slot's token (Invariant 1).
            unsafe { *slots.slot(index).ahead.get() = Tracked::new(ahead) };
            before.rotate_right(1);
            before[0] = index;
            index.0
        })
    }

    /// Gives the whole list to an issue list, in order. Owes a drain of it.
    pub(crate) fn hand_over(self, slots: &Slots, issue: &Handover<RqList>) {
        issue.append(self.indices().map(|index| index.0), |index| slots.link(index));
    }

    /// Publishes the whole list, in order, for the thread at the scheduler. Gives the list back if no thread is there.
    pub(crate) fn publish(self, slots: &Slots, staging: &Staging) -> Result<(), Self> {
        let is_published = staging.publish(self.indices_with_hints(slots), |index| slots.link(index));
        if is_published { Ok(()) } else { Err(self) }
    }

    /// Publishes the whole list even if no thread is at the scheduler. The caller makes sure that a thread
    /// comes.
    pub(crate) fn publish_anyway(self, slots: &Slots, staging: &Staging) {
        staging.publish_anyway(self.indices_with_hints(slots), |index| slots.link(index));
    }

    /// Gives the whole list to a completion ring, in order.
    pub(crate) fn deliver(self, slots: &Slots, completions: &SlotStack) {
        completions.push(self.indices().map(|index| index.0), |index| slots.link(index));
    }

    /// Takes over what [`hand_over`](Self::hand_over), [`publish`](Self::publish) or [`deliver`](Self::deliver) gave
    /// away, in order and behind what is here. Nothing else puts addresses on issue lists, completion rings and the
    /// staging.
    #[inline]
    pub(crate) fn take_over(&mut self, slots: &Slots, chain: Chain, location: Location) {
        if !chain.is_empty() {
            self.take_over_some(slots, chain, location);
        }
    }

    /// As [`take_over`](Self::take_over), for what [`publish`](Self::publish) or
    /// [`publish_anyway`](Self::publish_anyway) gave away. Prefetches the slots of its hints too.
    pub(crate) fn take_over_published(&mut self, slots: &Slots, chain: Chain, location: Location) {
        self.take_over_fetched(slots, chain, location, |index| {
            slots.fetch(index);
            // SAFETY: slot Invariant 1; the chain gives this thread the slot's token, and the staging's Release and
            // Acquire publish what the publisher wrote.
            let hints = **unsafe { &*slots.slot(index).ahead.get() };
            hints.into_iter().take_while(|ahead| *ahead != NIL).for_each(|ahead| slots.fetch(ahead));
        });
    }

    #[inline(never)]
    fn take_over_some(&mut self, slots: &Slots, chain: Chain, location: Location) {
        self.take_over_fetched(slots, chain, location, |index| slots.fetch(index));
    }

    /// Takes over a chain. `fetch` asks for lines, before the link of the slot that it gets is read.
    #[inline]
    fn take_over_fetched(&mut self, slots: &Slots, mut chain: Chain, location: Location, fetch: impl Fn(SlotIndex)) {
        let mut taken = Self::default();
        while let Some(index) = chain.pop_newest(|index| {
            fetch(SlotIndex(index));
            slots.link(index)
        }) {
            // SAFETY: a list gave the address up, the stack gives each address out once, and the stack's Release and
            // Acquire publish what the giver wrote into the request.
            let rq = unsafe { slots.adopt(SlotIndex(index)) };
            taken.push_front(rq, location);
        }
        self.append(taken);
    }

    /// Shows the first request to `look`.
    #[inline]
    pub(crate) fn with_first<'q, R>(&self, slots: &'q Slots, look: impl FnOnce(&Request<'q>) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the list owns the request (Invariants 1 and 2); the token ends with this call and is not given away.
        let rq = ManuallyDrop::new(unsafe { slots.adopt_at(self.head) });
        Some(look(&rq))
    }

    /// Shows the last request to `look`, which may change it.
    #[inline]
    pub(crate) fn with_last<'q, R>(&mut self, slots: &'q Slots, look: impl FnOnce(&mut Request<'q>) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the list owns the request (Invariants 1 and 2); the token ends with this call and is not given away.
        let mut rq = ManuallyDrop::new(unsafe { slots.adopt_at(self.tail) });
        Some(look(&mut rq))
    }
}

/// The slot behind `slot`, which is on a list and not its last.
#[inline]
fn next(slot: &Slot) -> NonNull<Slot> {
    NonNull::new(slot.next.load(Ordering::Relaxed)).expect("a slot that is not the last has one behind it")
}

/// # Safety
/// The slot is on a list that the caller has. Pools never go before the requests that are on their lists.
#[inline]
unsafe fn set_next(slot: NonNull<Slot>, next: NonNull<Slot>) {
    // SAFETY: as the caller says.
    let slot = unsafe { slot.as_ref() };
    slot.next.store(next.as_ptr(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plugged, slots};
    use super::*;

    #[test]
    fn requests_come_off_in_the_order_they_went_on() {
        let slots = slots(4);
        let mut list = RqList::default();
        for slot in 0..3 {
            list.push_back(plugged(&slots, slot, u64::from(slot), &[0; 512]), Location::Held);
        }
        list.push_front(plugged(&slots, 3, 3, &[0; 512]), Location::Held);
        list.with_last(&slots, |rq| rq.body_mut().sector = 77);
        let order: Vec<_> = std::iter::from_fn(|| list.pop_front(&slots)).map(|rq| (rq.sector(), rq.free())).collect();
        assert_eq!(order, [(3, 3), (0, 0), (1, 1), (77, 2)]);
        assert!(list.is_empty());
    }

    /// Red if the last slot, which the combiner reads first, has no hints, if a slot has hints of others than those
    /// that the combiner reads next, or if a slot keeps its hints when it is published again.
    #[test]
    fn every_sixth_slot_from_the_last_has_hints_of_the_five_before_it() {
        let slots = slots(15);
        let mut list = RqList::default();
        // For each slot in turn, the slots that it has hints of.
        let hints = |list: &RqList| -> Vec<Vec<u32>> {
            let all: Vec<_> = list.indices().collect();
            assert!(list.indices_with_hints(&slots).eq(all.iter().map(|index| index.0)), "all of them, in order");
            let known = |index: &SlotIndex| {
                // SAFETY: slot Invariant 1; the list has the slot's token.
                let hints = unsafe { *slots.slot(*index).ahead.get() };
                hints.into_iter().take_while(|ahead| *ahead != NIL).map(|ahead| ahead.slot().into()).collect()
            };
            all.iter().map(known).collect()
        };
        let expected = |len: u32, first: u32| -> Vec<Vec<u32>> {
            let before = |at: u32| (at.saturating_sub(5)..at).rev().collect();
            (0..len).map(|at| if at % 6 == first { before(at) } else { vec![] }).collect()
        };
        for (len, first) in [(1, 0), (2, 1), (6, 5), (14, 1), (15, 2)] {
            while list.len() < len as usize {
                let slot = list.len() as u16;
                list.push_back(plugged(&slots, slot, u64::from(slot), &[0; 512]), Location::Held);
            }
            assert_eq!(hints(&list), expected(len, first));
        }
        std::iter::from_fn(|| list.pop_front(&slots)).for_each(|rq| _ = rq.free());
    }

    /// Red if the operation does not leave with the slot: the slot would keep its buffer, and panic when it is used
    /// again.
    #[test]
    fn a_free_slot_is_used_again_without_the_operation_that_it_held() {
        let slots = slots(1);
        for round in 0..3_u8 {
            let rq = plugged(&slots, 0, round.into(), &[round; 512]);
            let mut free = RqList::default();
            let bio = free.push_free_for_bio(rq);
            assert_eq!((bio.sector, free.len()), (round.into(), 1));
            assert!(bio.buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == round)));
        }
    }

    #[test]
    fn the_front_of_a_list_moves_as_far_as_it_belongs_together() {
        let slots = slots(6);
        let mut list = RqList::default();
        for slot in 0..6 {
            list.push_back(plugged(&slots, slot, u64::from(slot), &[0; 512]), Location::Held);
        }
        assert!(list.take_while(&slots, |_| false).is_empty());
        let mut shown = Vec::new();
        let mut front = list.take_while(&slots, |rq| {
            shown.push(rq.sector());
            rq.sector() < 2
        });
        assert_eq!((shown, front.len(), list.len()), (vec![0, 1, 2], 2, 4));
        assert_eq!(list.with_first(&slots, Request::sector), Some(2));
        list.push_back(front.pop_front(&slots).unwrap(), Location::Held);
        let mut all = list.take_while(&slots, |_| true);
        assert!(list.is_empty());
        front.append(list);
        front.append(std::mem::take(&mut all));
        front.append(all);
        let order: Vec<_> = std::iter::from_fn(|| front.pop_front(&slots)).map(|rq| (rq.sector(), rq.free())).collect();
        assert_eq!(order, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (0, 0)]);
    }

    #[test]
    fn requests_are_put_in_another_order() {
        for order in [[4, 2, 0, 1, 3], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
            let slots = slots(5);
            let mut list = RqList::default();
            for slot in 0..5 {
                list.push_back(plugged(&slots, slot, u64::from(slot), &[0; 512]), Location::Held);
            }
            list.reorder(&order);
            let mut behind = RqList::default();
            behind.push_back(list.pop_front(&slots).unwrap(), Location::Held);
            list.append(behind);
            let sectors: Vec<_> =
                std::iter::from_fn(|| list.pop_front(&slots)).map(|rq| (rq.sector(), rq.free()).0).collect();
            let mut expected = order.map(u64::from);
            expected.rotate_left(1);
            assert_eq!(sectors, expected);
        }
        RqList::default().reorder(&[]);
    }

    /// Red if a place may come twice: another request would then be on no list.
    #[test]
    #[should_panic(expected = "names each request once")]
    fn an_order_that_names_a_request_twice_is_caught() {
        let slots = slots(2);
        let mut list = RqList::default();
        for slot in 0..2 {
            list.push_back(plugged(&slots, slot, 0, &[0; 512]), Location::Held);
        }
        list.reorder(&[1, 1]);
    }

    #[test]
    fn what_is_delivered_to_another_thread_arrives_whole_and_in_order() {
        let slots = slots(8);
        let ring = SlotStack::new("test.ring");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for half in 0..2 {
                    let mut list = RqList::default();
                    for slot in half * 4..half * 4 + 4 {
                        list.push_back(plugged(&slots, slot, u64::from(slot), &[slot as u8; 512]), Location::Completed);
                    }
                    list.deliver(&slots, &ring);
                }
            });
            let mut arrived = RqList::default();
            while arrived.len() < 8 {
                arrived.take_over(&slots, ring.take_all(), Location::Completed);
                std::thread::yield_now();
            }
            for slot in 0..8_u8 {
                let mut rq = arrived.pop_front(&slots).unwrap();
                assert_eq!(rq.sector(), u64::from(slot));
                assert!(rq.segments().all(|segment| segment.to_vec().iter().all(|byte| *byte == slot)));
                rq.free();
            }
        });
    }
}
