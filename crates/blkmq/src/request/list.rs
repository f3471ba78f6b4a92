//! Lists of requests, linked through their slots: no allocation, constant time, no lock of their own.
#![expect(unsafe_code, reason = "tokens are made again from the addresses on a list")]

use super::slot::{NIL, SlotIndex, Slots};
use super::state::Place;
use super::token::Request;
use crate::handover::Handover;
use crate::stack::{Chain, SlotStack};
use crate::sync::atomic::Ordering;

/// A first-in first-out list of requests.
///
/// # Invariants
/// Every address on the list was left there by a token that [`push_back`](Self::push_back) or
/// [`push_front`](Self::push_front) consumed, or came over a chain whose owner gave it up; none is on another list.
#[derive(Debug)]
pub(crate) struct RqList {
    head: SlotIndex,
    tail: SlotIndex,
    len: usize,
}

impl Default for RqList {
    fn default() -> Self {
        Self::new()
    }
}

impl RqList {
    pub(crate) const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_back(&mut self, slots: &Slots, rq: Request<'_>, place: Place) {
        rq.slot().next.store(NIL.0, Ordering::Relaxed);
        let index = rq.leave_at(place);
        match self.len {
            0 => self.head = index,
            _ => set_next(slots, self.tail, index),
        }
        self.tail = index;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, rq: Request<'_>, place: Place) {
        rq.slot().next.store(self.head.0, Ordering::Relaxed);
        let index = rq.leave_at(place);
        if self.len == 0 {
            self.tail = index;
        }
        self.head = index;
        self.len += 1;
    }

    pub(crate) fn pop_front<'q>(&mut self, slots: &'q Slots) -> Option<Request<'q>> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: by the list's invariant the address stands for a token; it is taken off the list here.
        let rq = unsafe { slots.adopt(self.head) };
        self.head = SlotIndex(rq.slot().next.load(Ordering::Relaxed));
        self.len -= 1;
        Some(rq)
    }

    /// Moves everything from `other` behind what is here.
    #[cfg(test)]
    pub(crate) fn append(&mut self, slots: &Slots, other: &mut Self) {
        let other = std::mem::take(other);
        if other.len == 0 {
            return;
        }
        match self.len {
            0 => self.head = other.head,
            _ => set_next(slots, self.tail, other.head),
        }
        self.tail = other.tail;
        self.len += other.len;
    }

    /// The addresses on the list, for dumps by the list's owner.
    pub(crate) fn indices<'a>(&'a self, slots: &'a Slots) -> impl Iterator<Item = SlotIndex> + 'a {
        let mut at = self.head;
        (0..self.len).map(move |_| {
            let index = at;
            at = next(slots, index);
            index
        })
    }

    /// Gives the whole list to an issue list, in order. Owes a drain of it.
    pub(crate) fn hand_over(self, slots: &Slots, issue: &Handover<RqList>) {
        issue.append(self.indices(slots).map(|index| index.0), |index| slots.link(index));
    }

    /// Gives the whole list to a completion ring, in order.
    pub(crate) fn deliver(self, slots: &Slots, completions: &SlotStack) {
        completions.push(self.indices(slots).map(|index| index.0), |index| slots.link(index));
    }

    /// Takes over, in order and behind what is here, what [`hand_over`](Self::hand_over) or [`deliver`](Self::deliver)
    /// gave away. Nothing else puts addresses on issue lists and completion rings.
    pub(crate) fn take_over(&mut self, slots: &Slots, mut chain: Chain, place: Place) {
        while let Some(index) = chain.pop(|index| slots.link(index)) {
            // SAFETY: a list gave the address up, the stack gives each address out once, and the stack's Release and
            // Acquire publish what the giver wrote into the request.
            let rq = unsafe { slots.adopt(SlotIndex(index)) };
            self.push_back(slots, rq, place);
        }
    }

    /// Shows the last request to `look`, which may change it.
    pub(crate) fn with_last<'q, R>(&mut self, slots: &'q Slots, look: impl FnOnce(&mut Request<'q>) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the list owns the request; the token ends with this call and is not given away.
        let mut rq = unsafe { slots.adopt(self.tail) };
        Some(look(&mut rq))
    }
}

fn next(slots: &Slots, index: SlotIndex) -> SlotIndex {
    SlotIndex(slots.slot(index).next.load(Ordering::Relaxed))
}

fn set_next(slots: &Slots, index: SlotIndex, next: SlotIndex) {
    slots.slot(index).next.store(next.0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plugged, slots};
    use super::*;

    #[test]
    fn requests_come_off_in_the_order_they_went_on() {
        let slots = slots(4);
        let mut list = RqList::new();
        for slot in 0..3 {
            list.push_back(&slots, plugged(&slots, slot, u64::from(slot), &[0; 512]), Place::Held);
        }
        list.push_front(plugged(&slots, 3, 3, &[0; 512]), Place::Held);
        list.with_last(&slots, |rq| rq.body_mut().sector = 77);
        let order: Vec<_> = std::iter::from_fn(|| list.pop_front(&slots)).map(|rq| (rq.sector(), rq.free())).collect();
        assert_eq!(order, [(3, 3), (0, 0), (1, 1), (77, 2)]);
        assert!(list.is_empty());
    }

    #[test]
    fn what_is_delivered_to_another_thread_arrives_whole_and_in_order() {
        let slots = slots(8);
        let ring = SlotStack::new("test.ring");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for half in 0..2 {
                    let mut list = RqList::new();
                    for slot in half * 4..half * 4 + 4 {
                        list.push_back(
                            &slots,
                            plugged(&slots, slot, u64::from(slot), &[slot as u8; 512]),
                            Place::Completed,
                        );
                    }
                    list.deliver(&slots, &ring);
                }
            });
            let mut arrived = RqList::new();
            while arrived.len() < 8 {
                arrived.take_over(&slots, ring.take_all(|index| slots.link(index)), Place::Completed);
                std::thread::yield_now();
            }
            for slot in 0..8_u8 {
                let mut rq = arrived.pop_front(&slots).unwrap();
                assert_eq!(rq.sector(), u64::from(slot));
                assert!(rq.segments().all(|segment| segment.bytes().iter().all(|byte| *byte == slot)));
                rq.free();
            }
        });
    }
}
