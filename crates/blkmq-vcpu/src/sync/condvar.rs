//! Waiting for a change of what a lock protects.

use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use super::mutex::MutexGuard;
use crate::hot::CpuId;
use crate::machine::{sleep, wake};
use crate::time;

/// A condition variable for virtual CPUs; only they may wait.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Mutex<Vec<CpuId>>);

/// Whether a wait ended by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait ended by its time.
    #[must_use]
    pub const fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable for which no CPU waits.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::sync::Mutex::new(Vec::new()))
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<CpuId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<'a, T>(&self, mut guard: MutexGuard<'a, T>, until: Option<u64>) -> MutexGuard<'a, T> {
        let (mutex, me) = (guard.mutex, crate::cpu());
        // Between this line and the sleep there is no step, so no other CPU notifies in between.
        self.waiting().push(me);
        guard.release();
        sleep(until);
        self.waiting().retain(|waiting| *waiting != me);
        drop(guard);
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the lock go and waits to be notified.
    ///
    /// # Errors
    /// None; the result has `std`'s form.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(self.wait_until(guard, None))
    }

    /// Waits while `condition` holds and `timeout` has not passed.
    ///
    /// # Errors
    /// None; the result has `std`'s form.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let until = time::now().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if time::now() >= until {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = self.wait_until(guard, Some(until));
        }
    }

    /// Wakes the CPU that has waited longest. A CPU whose time has passed no longer waits, even if it has not gone on
    /// yet.
    pub fn notify_one(&self) {
        let mut waiting = self.waiting();
        while !waiting.is_empty() && !wake(waiting.remove(0)) {}
    }

    /// Wakes all CPUs that wait.
    pub fn notify_all(&self) {
        self.waiting().drain(..).for_each(|cpu| _ = wake(cpu));
    }
}
