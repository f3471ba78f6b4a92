//! What is known of locks and condition variables for which CPUs wait, by address. This lies apart from the locks and
//! condition variables, so that these are as large as `std`'s. Nothing follows from the order of addresses.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use crate::hot::CpuId;

/// A CPU in the queue of a lock of [`LockKind::Queued`](crate::LockKind::Queued), with its node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) cpu: CpuId,
    /// The next CPU has said that it is the next.
    pub(super) knows_next: bool,
    /// The CPU before has said that this one is the first now.
    pub(super) is_first: bool,
}

/// The CPUs that wait for a lock or a condition variable.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waiters {
    /// The CPUs that sleep, the one that has slept longest first.
    pub(super) sleepers: VecDeque<CpuId>,
    /// The lock is held, and a CPU may sleep for it.
    pub(super) is_marked: bool,
    /// The CPU that waits at the word of a queued lock, without a node.
    pub(super) pending: Option<CpuId>,
    /// The CPUs that wait with a node.
    pub(super) queue: VecDeque<Node>,
    /// The CPUs that have drawn a number.
    pub(super) numbers: VecDeque<CpuId>,
}

impl Waiters {
    /// Whether a CPU waits in a queue, so that no other one may take the lock, even if it is not held.
    pub(super) fn has_queue(&self) -> bool {
        self.pending.is_some() || !self.queue.is_empty() || !self.numbers.is_empty()
    }
}

thread_local! {
    static WAITERS: RefCell<BTreeMap<usize, Waiters>> = const { RefCell::new(BTreeMap::new()) };
}

/// Forgets all, as a run begins and as it ends.
pub(crate) fn clear() {
    WAITERS.with(|waiters| waiters.borrow_mut().clear());
}

/// What is known of the lock or condition variable at this address, to be changed.
pub(super) fn at<R>(address: usize, change: impl FnOnce(&mut Waiters) -> R) -> R {
    WAITERS.with(|all| {
        let mut all = all.borrow_mut();
        let waiters = all.entry(address).or_default();
        let result = change(waiters);
        if *waiters == Waiters::default() {
            all.remove(&address);
        }
        result
    })
}

/// The same, if anything is known.
pub(super) fn known<R>(address: usize, change: impl FnOnce(&mut Waiters) -> R) -> Option<R> {
    let is_known = WAITERS.with(|all| all.borrow().contains_key(&address));
    is_known.then(|| at(address, change))
}
