//! Models of the hand-over: what is appended is worked off in order, by the thread that holds the lock, and never left
//! behind.

use crate::model::{Exclusive, fail_without, holds, join, oldest_first, spawn};
use blkmq_sync::atomic::AtomicU32;
use blkmq_sync::handover::Handover;
use blkmq_sync::stack::Chain;
use blkmq_sync::{Arc, TryLock, thread};

/// More rounds than any model needs.
const ENDLESS: u32 = 100;

struct Issue {
    /// The state of the hand-over is the list of what was worked off.
    list: Handover<Vec<u32>>,
    links: [AtomicU32; 3],
    slots: [Exclusive; 3],
}

impl Issue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            list: Handover::new(Vec::new()),
            links: std::array::from_fn(|_| AtomicU32::new(77)),
            slots: Default::default(),
        })
    }

    fn link(&self, slot: u32) -> &AtomicU32 {
        &self.links[slot as usize]
    }

    fn append(&self, slots: std::ops::Range<u32>) {
        for slot in slots.clone() {
            self.slots[slot as usize].touch();
        }
        self.list.append(slots, |slot| self.link(slot));
    }

    /// Puts one slot in if the list is idle. Otherwise appends it.
    fn put_or_append(&self, slot: u32) {
        self.slots[slot as usize].touch();
        let put = self.list.put(|issued| {
            self.slots[slot as usize].touch();
            issued.push(slot);
        });
        if !put {
            self.list.append([slot], |slot| self.link(slot));
        }
    }

    fn work(&self, issued: &mut Vec<u32>, chain: Chain) {
        for slot in oldest_first(chain, |slot| self.link(slot)) {
            self.slots[slot as usize].touch();
            issued.push(slot);
        }
    }

    fn drain(&self, rounds: u32) -> bool {
        self.list.drain(rounds, |issued, chain| self.work(issued, chain))
    }

    fn issued(&self) -> Vec<u32> {
        assert!(!self.list.is_pending(), "left behind");
        let mut issued = Vec::new();
        self.list.drain(0, |worked, _| issued.append(worked));
        issued
    }
}

/// Two threads try the lock twice: an attempt that fails half-way must leave the lock with its holder.
fn two_attempts() {
    let lock = Arc::new(TryLock::new("test.lock", 0));
    let other = spawn(&lock, move |lock| attempts(lock));
    let done = attempts(&lock) + join(other);
    assert_eq!(*lock.try_lock().expect("nobody holds it"), done);
}

/// Adds one under the lock, up to twice. The lock is held over an access to something else, as in use.
fn attempts(lock: &TryLock<u64>) -> u64 {
    let step = |_| {
        let Some(mut count) = lock.try_lock() else { return 0 };
        let before = *count;
        thread::yield_now();
        *count = before + 1;
        1
    };
    (0..2).map(step).sum()
}

/// Two threads append and drain.
fn two_appenders() {
    beside_an_appender(|issue| issue.append(2..3));
}

/// One thread puts and drains, the other appends and drains. What a thread has appended must not be forgotten when the
/// thread leaves because the other one is putting at that moment.
fn putter_and_appender() {
    beside_an_appender(|issue| issue.put_or_append(2));
}

/// One thread appends two slots and drains, the other brings slot 2 and drains.
fn beside_an_appender(bring: fn(&Issue)) {
    let issue = Issue::new();
    let other = spawn(&issue, move |issue| {
        issue.append(0..2);
        assert!(issue.drain(ENDLESS));
    });
    bring(&issue);
    assert!(issue.drain(ENDLESS));
    join(other);
    let issued = issue.issued();
    assert!([[0, 1, 2], [2, 0, 1]].contains(&issued.clone().try_into().expect("three slots")), "{issued:?}");
}

/// Under another lock each thread knows that what it brings comes after what the other thread brought. The hand-over
/// must keep that order.
fn ordered_putters() {
    let (issue, order) = (Issue::new(), Arc::new(TryLock::new("test.order", Vec::new())));
    let bring = |issue: &Issue, order: &TryLock<Vec<u32>>, slots: &[u32]| {
        for slot in slots {
            if let Some(mut order) = order.try_lock() {
                issue.put_or_append(*slot);
                order.push(*slot);
            }
        }
        assert!(issue.drain(ENDLESS));
    };
    let second = order.clone();
    let other = spawn(&issue, move |issue| bring(issue, &second, &[0, 2]));
    bring(&issue, &order, &[1]);
    join(other);
    assert_eq!(issue.issued(), *order.try_lock().expect("nobody holds it"));
}

/// The holder does no rounds for other threads. A thread that gets false comes again, and nothing may be left then.
fn bounded() {
    let issue = Issue::new();
    let other = spawn(&issue, move |issue| {
        issue.append(0..1);
        while !issue.drain(0) {}
    });
    issue.append(1..2);
    while !issue.drain(0) {}
    join(other);
    assert_eq!(issue.issued().len(), 2);
}

#[test]
fn a_failed_attempt_leaves_the_lock_to_its_holder() {
    holds(two_attempts);
}

#[test]
fn everything_is_worked_off_in_order() {
    holds(two_appenders);
}

#[test]
fn what_is_put_in_front_of_nobody_leaves_nobody_behind() {
    holds(putter_and_appender);
}

#[test]
fn what_is_put_keeps_the_order_of_its_bringers() {
    holds(ordered_putters);
}

#[test]
fn who_runs_out_of_rounds_comes_again() {
    holds(bounded);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("handover.put_look", ordered_putters),
        ("handover.append_fence", putter_and_appender),
        ("handover.look", two_appenders),
        ("handover.append_fence", two_appenders),
        ("handover.look_fence", two_appenders),
        ("try_lock.acquire", two_appenders),
        ("try_lock.release", two_appenders),
    ]);
}
