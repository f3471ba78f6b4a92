//! Waiting for a change of what a lock protects.

use std::sync::atomic::AtomicU32;
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use super::mutex::MutexGuard;
use super::waiters;
use crate::hot::CpuId;
use crate::machine::{call_system, kind_of_locks, sleep, wake};
use crate::step::step;
use crate::time;

/// A condition variable, for which only virtual CPUs may wait.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Gives the condition variable an address, and the size of `std`'s.
    word: AtomicU32,
}

/// Whether a wait ended because its time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait ended because its time was over.
    #[must_use]
    pub const fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable for which no CPU waits.
    #[must_use]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(&self.word).addr()
    }

    fn wait_until<'a, T>(&self, mut guard: MutexGuard<'a, T>, until: Option<u64>) -> MutexGuard<'a, T> {
        let (mutex, me) = (guard.mutex, crate::cpu());
        // Between `push_back` and `sleep` there is no step. So no other CPU notifies in between, and no notification is
        // lost.
        guard.release(|| waiters::at(self.address(), |waiters| waiters.sleepers.push_back(me)));
        sleep(until);
        waiters::known(self.address(), |waiters| waiters.sleepers.retain(|waiting| *waiting != me));
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

    /// Takes out the CPU that has waited longest.
    fn next(&self) -> Option<CpuId> {
        waiters::known(self.address(), |waiters| waiters.sleepers.pop_front()).flatten()
    }

    /// Wakes the CPU that has waited longest. A CPU whose time has passed no longer waits, even if it has not gone on
    /// yet.
    pub fn notify_one(&self) {
        let is_woken = std::iter::from_fn(|| self.next()).any(wake);
        notified(is_woken);
    }

    /// Wakes all CPUs that wait.
    pub fn notify_all(&self) {
        let nr_woken = std::iter::from_fn(|| self.next()).filter(|cpu| wake(*cpu)).count();
        notified(nr_woken > 0);
    }
}

/// Ends a notification, which is a system call and a step if CPUs have clocks of their own.
fn notified(has_woken: bool) {
    if kind_of_locks().is_some() {
        if !has_woken {
            call_system(|kernel| kernel.call);
        }
        step();
    }
}
