//! Threads, each on a virtual CPU of its own, unless there are fewer CPUs than threads ([`Cores`](crate::Cores)).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::hot::CpuId;
use crate::machine::{add, kind_of_locks, sleep as sleep_until, wake, yield_cpu};
use crate::step::step;
use crate::time;

/// How long a CPU without a clock of its own sleeps when it yields, in ns. The time must not be 0: if a CPU yields in a
/// loop until a certain time, the clock would never reach that time.
const YIELD_NS: u64 = 500;

/// A thread whose end another thread can wait for.
#[derive(Debug)]
pub struct JoinHandle<T>(Arc<Mutex<Shared<T>>>);

#[derive(Debug)]
struct Shared<T> {
    result: Option<T>,
    waiting: Option<CpuId>,
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> std::sync::MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread on a new CPU.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn_named("thread".to_owned(), body)
}

/// Starts a thread on a new CPU, with a name that reports of a run show.
pub fn spawn_named<T: Send + 'static>(name: String, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let shared = Arc::new(Mutex::new(Shared { result: None, waiting: None }));
    let theirs = Arc::clone(&shared);
    add(name, move || {
        let result = body();
        let mut shared = lock(&theirs);
        shared.result = Some(result);
        if let Some(waiting) = shared.waiting.take() {
            let _ = wake(waiting);
        }
    });
    step();
    JoinHandle(shared)
}

impl<T> JoinHandle<T> {
    /// Waits for the thread to end.
    ///
    /// # Errors
    /// None, since a panic ends the whole run; the result has `std`'s form.
    pub fn join(self) -> std::thread::Result<T> {
        loop {
            let mut shared = lock(&self.0);
            if let Some(result) = shared.result.take() {
                return Ok(result);
            }
            shared.waiting = Some(crate::cpu());
            drop(shared);
            sleep_until(None);
        }
    }

    /// Whether the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        lock(&self.0).result.is_some()
    }
}

/// Lets other CPUs go on.
pub fn yield_now() {
    if kind_of_locks().is_some() {
        yield_cpu();
        step();
    } else {
        sleep_until(Some(time::now() + YIELD_NS));
    }
}

/// Sleeps for this long.
pub fn sleep(duration: Duration) {
    sleep_until(Some(time::now().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))));
}
