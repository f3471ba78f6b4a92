//! A lock that virtual CPUs wait for.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

use crate::cache::Access;
use crate::hot::CpuId;
use crate::machine::{is_running, sleep, wake};
use crate::step::{step_at, step_on, told_at};

/// A lock. Taking it and letting it go are steps. A CPU that waits is woken when the lock is let go, and may find that
/// another CPU has taken it again, as with the lock of `std`.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    value: std::sync::Mutex<T>,
    waiting: std::sync::Mutex<Vec<CpuId>>,
}

/// The hold of a [`Mutex`]; dropping it lets go.
pub struct MutexGuard<'a, T> {
    pub(super) mutex: &'a Mutex<T>,
    /// The code that took the lock.
    at: &'static Location<'static>,
    /// `None` only once the guard has let go.
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { value: std::sync::Mutex::new(value), waiting: std::sync::Mutex::new(Vec::new()) }
    }

    #[track_caller]
    fn guard<'a>(&'a self, value: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, at: Location::caller(), value: Some(value) }
    }

    /// The hold of a lock that was just taken, without a step if CPUs have no clocks of their own.
    #[track_caller]
    fn taken<'a>(&'a self, value: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let guard = self.guard(value);
        told_at(self, Access::Update, guard.at);
        guard
    }

    /// Waits until the lock is free, and takes it.
    ///
    /// # Errors
    /// None: it does not poison. The result has `std`'s form.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !is_running() {
            return Ok(self.guard(self.value.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        loop {
            if let Ok(guard) = self.try_lock() {
                return Ok(guard);
            }
            // Another CPU may have let the lock go in the step of the last try. So the CPU tries again before it
            // sleeps; between this try and the sleep there is no step.
            match self.value.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(crate::cpu());
                    sleep(None);
                }
                Ok(value) => return Ok(self.taken(value)),
                Err(TryLockError::Poisoned(error)) => return Ok(self.taken(error.into_inner())),
            }
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// The lock is not free.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let tried = match self.value.try_lock() {
            Ok(value) => Ok(self.guard(value)),
            Err(TryLockError::Poisoned(error)) => Ok(self.guard(error.into_inner())),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        };
        step_on(self, Access::Update);
        tried
    }

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(|cpu| _ = wake(cpu));
    }
}

impl<T> MutexGuard<'_, T> {
    /// Lets go without a step.
    pub(super) fn release(&mut self) {
        if self.value.take().is_some() && is_running() {
            self.mutex.wake_waiting();
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.release();
        step_at(self.mutex, Access::Store, self.at);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard holds until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a guard holds until it is dropped")
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
