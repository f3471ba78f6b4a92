//! A lock that no thread waits for.
#![expect(unsafe_code, reason = "a lock lends its content mutably, which only the lock itself can justify")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};
use super::{Line, Tracked, UnsafeCell, fetch, order};

/// A value that one thread at a time may use. Other threads turn back at once.
pub struct TryLock<T>(Line<Marked<T>>);

/// The value beside the mark, so that a thread that takes the lock gets the value with the same line. No thread waits
/// by looking at the mark, which would take the line away from the holder.
struct Marked<T> {
    held: AtomicBool,
    value: UnsafeCell<Tracked<T>>,
}

// SAFETY: the content is reached only through a `TryGuard`, and `held` lets only one `TryGuard` exist at a time. So
// sharing the lock moves the content between threads but never shares it.
unsafe impl<T: Send> Sync for TryLock<T> {}

/// The hold of a [`TryLock`]. Dropping it lets go.
pub struct TryGuard<'a, T> {
    lock: &'a TryLock<T>,
    /// A guard is `Send` and `Sync` exactly if the reference that it lends is.
    lends: PhantomData<&'a mut T>,
}

impl<T> TryLock<T> {
    /// A free lock around `value`, on a line called `name`.
    pub fn new(name: &'static str, value: T) -> Self {
        Self(Line::new(name, Marked { held: AtomicBool::new(false), value: UnsafeCell::new(Tracked::new(value)) }))
    }

    /// Asks for the line of the lock, which the caller will take soon.
    #[inline]
    pub fn fetch(&self) {
        fetch(&*self.0);
    }

    /// Takes the lock if it is free. Never spins.
    ///
    /// COST: one load if the lock is held; the load leaves the line shared, so that the holder pays for its next write.
    /// A load and a compare-exchange if the lock is free.
    #[inline]
    pub fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        if self.0.held.load(Ordering::Relaxed) {
            return None;
        }
        // Not a swap, so that only holders ever write; the models can follow exactly this too. Acquire pairs with the
        // Release of the last holder's drop: this thread sees the last holder's changes to the content.
        let acquire = order("try_lock.acquire", Ordering::Acquire);
        // No guard may be made on failure, not even for a moment: dropping it would free another thread's hold.
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
        // SAFETY: as in `deref`, and `&mut self` keeps out every other reference through this guard.
        self.lock.0.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for TryGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release publishes this holder's changes to the content to the exchange of the next holder.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::TryLock;
    use crate::platform::{Arc, thread};

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
