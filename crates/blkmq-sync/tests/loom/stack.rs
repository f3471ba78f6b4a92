//! Models of the slot stack: nothing is lost or doubled, each pusher's order is kept, and a slot comes with its
//! content.

use crate::model::{Exclusive, fail_without, holds, join, oldest_first, spawn};
use blkmq_sync::Arc;
use blkmq_sync::atomic::AtomicU32;
use blkmq_sync::stack::SlotStack;

struct Ring {
    stack: SlotStack,
    links: [AtomicU32; 4],
    slots: [Exclusive; 4],
}

impl Ring {
    fn new() -> Arc<Self> {
        let links = std::array::from_fn(|_| AtomicU32::new(77));
        Arc::new(Self { stack: SlotStack::new("test.ring"), links, slots: Default::default() })
    }

    fn push(&self, slots: std::ops::Range<u32>) {
        for slot in slots.clone() {
            self.slots[slot as usize].touch();
        }
        self.stack.push(slots, |slot| &self.links[slot as usize]);
    }

    /// Appends everything in the stack to `seen`.
    fn take(&self, seen: &mut Vec<u32>) {
        let chain = self.stack.take_all();
        for slot in oldest_first(chain, |slot| &self.links[slot as usize]) {
            self.slots[slot as usize].touch();
            seen.push(slot);
        }
    }
}

/// Two pushers and a taker. The taker pushes again what it took early: if the stack had the ABA problem, this would
/// show it.
fn ring() {
    let ring = Ring::new();
    let pushers = [0..2, 2..3].map(|slots| spawn(&ring, move |ring| ring.push(slots)));
    let mut seen = Vec::new();
    ring.take(&mut seen);
    ring.push(3..4);
    if let Some(&slot) = seen.first() {
        ring.push(slot..slot + 1);
        seen.remove(0);
        assert!(slot != 1, "1 before 0");
    }
    let again = seen.len();
    pushers.into_iter().for_each(join);
    ring.take(&mut seen);
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3]);
    if again == 0 && !seen.starts_with(&[1]) {
        let place = |slot| seen.iter().position(|&seen| seen == slot);
        assert!(place(0) < place(1), "1 before 0: {seen:?}");
    }
    assert!(ring.stack.is_empty());
}

#[test]
fn slots_arrive_once_in_order_with_their_content() {
    holds(ring);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[("stack.push", ring), ("stack.take", ring)]);
}
