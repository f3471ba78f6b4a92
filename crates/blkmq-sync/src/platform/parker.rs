//! Putting a thread to sleep until another thread has something for it.

use std::sync::PoisonError;
use std::time::Duration;

use super::backend::sync::Condvar;
use super::{Mutex, place_anew};

/// One token, and the thread that sleeps for it.
///
/// [`unpark`](Self::unpark) leaves the token; there is at most one. [`park_until`](Self::park_until) sleeps while there
/// is no token, and takes it. So a wake-up that comes before the sleeper is not lost. After the wake-up the sleeper
/// sees what the waker did before, because the lock orders the two threads.
#[derive(Debug, Default)]
pub struct Parker {
    token: Mutex<bool>,
    left: Condvar,
}

impl Parker {
    /// A parker without a token.
    #[must_use]
    pub fn new() -> Self {
        Self { token: Mutex::new(false), left: Condvar::new() }
    }

    /// Names the token, for rigs. The parker has its place.
    pub fn name_places(&self) {
        place_anew("parker.token", &self.token);
    }

    /// Sleeps until there is a token, and takes it. If a timeout is given, sleeps no longer than `timeout` from now.
    /// Returns whether it took the token.
    ///
    /// The model checkers know no time. There a timeout under a second passes after one yield, and a longer one never
    /// passes. A sleep that only a long timeout would end is a lost wake-up, which the checkers then report as a
    /// deadlock.
    pub fn park_until(&self, timeout: Option<Duration>) -> bool {
        match timeout {
            None => self.park(),
            Some(timeout) => self.park_timeout(timeout),
        }
    }

    /// Leaves the token and wakes the sleeper.
    pub fn unpark(&self) {
        *self.token.lock() = true;
        self.left.notify_one();
    }

    fn park(&self) -> bool {
        let mut token = self.token.lock();
        while !*token {
            token = self.left.wait(token).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut *token)
    }

    #[cfg(not(loom))]
    fn park_timeout(&self, timeout: Duration) -> bool {
        let (mut token, _) = self
            .left
            .wait_timeout_while(self.token.lock(), timeout, |token| !*token)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token)
    }

    #[cfg(loom)]
    fn park_timeout(&self, timeout: Duration) -> bool {
        if timeout >= Duration::from_secs(1) {
            return self.park();
        }
        super::thread::yield_now();
        std::mem::take(&mut *self.token.lock())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::{Arc, thread};

    #[test]
    fn parker_keeps_one_token() {
        let parker = Parker::new();
        parker.unpark();
        parker.unpark();
        assert!(parker.park_until(None));
        assert!(!parker.park_until(Some(Duration::ZERO)));
    }

    #[test]
    fn parker_wakes_a_sleeper() {
        let parker = Arc::new(Parker::new());
        let waker = parker.clone();
        let waker = thread::spawn(move || waker.unpark());
        assert!(parker.park_until(None));
        waker.join().unwrap();
    }
}
