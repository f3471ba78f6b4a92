//! A blocking lock without poisoning.

use std::sync::{PoisonError, TryLockError};

use super::backend;

/// What [`Mutex::lock`] returns. Dropping it unlocks.
pub type MutexGuard<'a, T> = backend::sync::MutexGuard<'a, T>;

/// A blocking lock.
///
/// It does not poison: a panic under the lock already unwinds through the thread that caused it, and the other threads
/// must still be able to take back their requests and drain. Refusing them the lock would turn one failed thread into
/// a hang of all.
#[derive(Debug, Default)]
pub struct Mutex<T>(backend::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Self {
        Self(backend::sync::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    #[inline]
    #[cfg_attr(virtual_cpus, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free.
    #[inline]
    #[cfg_attr(virtual_cpus, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
