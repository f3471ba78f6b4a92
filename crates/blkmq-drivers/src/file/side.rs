//! What one thread at a time has: behind a lock, or without one where the hardware queue is owned.
#![expect(unsafe_code, reason = "who owns a hardware queue needs no lock for what no other thread comes to")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::{lock, try_lock};

/// A value that one thread at a time has.
///
/// Invariant: there is one [`Turn`] at a time, and each sees what was done in the one before. The lock sees to both; where
/// there is none, the block layer does, which calls [`queue_rqs`](blkmq::driver::Driver::queue_rqs) and
/// [`poll`](blkmq::driver::Driver::poll) of an [owned](blkmq::driver::Driver::is_owned) hardware queue by its owner alone, one after
/// the other. Only these come here.
#[derive(Debug)]
pub(super) struct Side<T> {
    lock: Option<Mutex<()>>,
    /// There is a turn. Without a lock that is looked at, so that a second one in the same thread is found, and as a rule one
    /// in another.
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: by the invariant one thread at a time has the value, and it may be a different one each time.
unsafe impl<T: Send> Sync for Side<T> {}

impl<T> Side<T> {
    /// A value that only the owner of the hardware queue comes to, or that any thread may.
    pub(super) fn new(value: T, is_owned: bool) -> Self {
        Self { lock: (!is_owned).then(Mutex::default), is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes a turn, once nobody else has one.
    ///
    /// COST: a lock; without one a load and two stores of a line that no other thread writes.
    pub(super) fn take(&self) -> Turn<'_, T> {
        let held = self.lock.as_ref().map(lock);
        self.begin(held)
    }

    /// The same; `None` if another thread has one.
    pub(super) fn try_take(&self) -> Option<Turn<'_, T>> {
        let held = match &self.lock {
            Some(lock) => Some(try_lock(lock)?),
            None => None,
        };
        Some(self.begin(held))
    }

    fn begin<'s>(&'s self, held: Option<MutexGuard<'s, ()>>) -> Turn<'s, T> {
        if held.is_none() {
            assert!(!self.is_taken.load(Ordering::Relaxed), "an owned hardware queue is called by its owner alone");
            self.is_taken.store(true, Ordering::Relaxed);
        }
        Turn { side: self, held }
    }
}

/// A value in the hands of one thread.
pub(super) struct Turn<'s, T> {
    side: &'s Side<T>,
    held: Option<MutexGuard<'s, ()>>,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: by the invariant there is no other turn, and this one lends the value as it is borrowed itself.
        unsafe { &*self.side.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.side.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if self.held.is_none() {
            self.side.is_taken.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_side_is_had_by_one_thread_at_a_time() {
        let side = Arc::new(Side::new(0, false));
        let each = if cfg!(miri) { 20 } else { 20_000 };
        let threads = (0..3).map(|_| {
            let side = Arc::clone(&side);
            thread::spawn(move || (0..each).for_each(|_| *side.take() += 1))
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("it came to its end"));
        let turn = side.take();
        assert_eq!(*turn, 3 * each);
        assert!(side.try_take().is_none());
    }

    #[test]
    fn an_owned_side_goes_from_hand_to_hand_and_has_no_second_turn() {
        let side = Side::new(1, true);
        *side.take() += 1;
        let side = thread::spawn(move || {
            *side.try_take().expect("it is free") += 1;
            side
        });
        let side = side.join().expect("it came to its end");
        let turn = side.take();
        assert_eq!(*turn, 3);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(side.take()))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| side.try_take().is_some())).is_err());
        drop(turn);
        assert!(side.try_take().is_some());
    }
}
