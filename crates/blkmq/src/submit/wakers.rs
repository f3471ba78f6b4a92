//! Wakers that are called once this thread holds no submitter any more.
//!
//! A waker may be the last thing that keeps a task, and with it an operation. Dropping an operation locks its
//! submitter. So a thread that drives the queue under a submitter's lock gathers the wakers that it comes by, also
//! those of other submitters, and calls them when the lock is free.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::task::Waker;

use blkmq_sync::wake::contain;

thread_local! {
    /// How many submitters this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
    static DUE: RefCell<VecDeque<Waker>> = const { RefCell::new(VecDeque::new()) };
}

/// While this lives, this thread gathers wakers. Made before a submitter is locked, and dropped after it is unlocked.
#[must_use]
pub(super) struct Gathering {
    /// It counts for the thread that made it.
    _not_send: PhantomData<*const ()>,
}

impl Gathering {
    pub(super) fn begin() -> Self {
        HELD.set(HELD.get() + 1);
        Self { _not_send: PhantomData }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let held = HELD.get() - 1;
        HELD.set(held);
        while held == 0
            && let Some(waker) = next_due()
        {
            contain(|| waker.wake());
        }
    }
}

fn next_due() -> Option<Waker> {
    // The list is gone when the thread ends, with nothing in it: no thread ends while it holds a submitter.
    DUE.try_with(|due| due.borrow_mut().pop_front()).ok().flatten()
}

/// Calls a waker: now, or when this thread holds no submitter any more.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    if HELD.get() > 0 {
        let _ = DUE.try_with(|due| due.borrow_mut().extend(waker.take()));
    }
    // Outside of the look at the list: the waker may come back here.
    waker.into_iter().for_each(|waker| contain(|| waker.wake()));
}
