//! A lock that nobody waits for.
#![expect(unsafe_code, reason = "a lock lends its content mutably, which only the lock itself can justify")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};
use super::{Line, UnsafeCell, order};

/// A value that one thread at a time may use; the others turn back at once.
pub struct TryLock<T>(Line<Marked<T>>);

/// The value beside the mark, so that who takes the lock has the value with it: nobody waits by looking at the mark.
struct Marked<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the content is reached only through a `TryGuard`, of which `held` lets one exist at a time, so sharing the
// lock moves the content between threads but never shares it.
unsafe impl<T: Send> Sync for TryLock<T> {}

/// The hold of a [`TryLock`]; dropping it lets go.
pub struct TryGuard<'a, T> {
    lock: &'a TryLock<T>,
    /// A guard is shared and sent as what it lends would be.
    lends: PhantomData<&'a mut T>,
}

impl<T> TryLock<T> {
    /// A free lock around `value`, on a line called `name`.
    pub fn new(name: &'static str, value: T) -> Self {
        Self(Line::new(name, Marked { held: AtomicBool::new(false), value: UnsafeCell::new(value) }))
    }

    /// Takes the lock if it is free. Never spins.
    ///
    /// COST: of a held lock one load, which leaves the line shared, so that the holder pays for its next write; of a
    /// free one a load and a compare-exchange.
    #[inline]
    pub fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        if self.0.held.load(Ordering::Relaxed) {
            return None;
        }
        // Not a swap: so only holders ever write, which is also what the models can follow exactly.
        // Acquire pairs with the Release of the last holder's drop: its changes to the content are visible here.
        let acquire = order("try_lock.acquire", Ordering::Acquire);
        // No guard may come to be on failure, not even for a moment: dropping it would free another's hold.
        match self.0.held.compare_exchange(false, true, acquire, Ordering::Relaxed) {
            Ok(_) => Some(TryGuard { lock: self, lends: PhantomData }),
            Err(_) => None,
        }
    }
}

impl<T> Deref for TryGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (`held` was false when it was made and stays true until it is dropped),
        // and the reference cannot outlive it.
        self.lock.0.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for TryGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` keeps every other reference through this guard away.
        self.lock.0.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for TryGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release publishes this holder's changes to the content to the exchange of the next.
        self.lock.0.held.store(false, order("try_lock.release", Ordering::Release));
    }
}

impl<T> fmt::Debug for TryLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLock").field("held", &self.0.held).finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for TryGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::TryLock;
    use crate::sync::{Arc, thread};

    #[test]
    fn try_lock_turns_the_second_back_until_the_first_lets_go() {
        let lock = TryLock::new("test.lock", 1);
        let mut first = lock.try_lock().unwrap();
        *first += 1;
        assert!(lock.try_lock().is_none());
        drop(first);
        assert_eq!(*lock.try_lock().unwrap(), 2);
    }

    #[test]
    fn try_lock_lets_one_in_at_a_time() {
        let lock = Arc::new(TryLock::new("test.lock", 0));
        let threads = [(); 3].map(|()| {
            let lock = lock.clone();
            thread::spawn(move || {
                (0..1000)
                    .filter(|_| {
                        lock.try_lock().is_some_and(|mut count| {
                            *count += 1;
                            true
                        })
                    })
                    .count()
            })
        });
        let counted: usize = threads.map(|thread| thread.join().unwrap()).into_iter().sum();
        assert_eq!(*lock.try_lock().unwrap(), counted);
    }
}
