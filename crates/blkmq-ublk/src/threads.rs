//! The threads of a device at their end: the last one tells how it was, and the device waits for them.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::stall::until_stalled;

/// Called when the last thread of a device has ended, with what failed first.
pub(crate) type Ended = Box<dyn Fn(Option<Error>) + Send + Sync>;

/// What the threads of a device leave behind.
struct Outcome {
    failure: Mutex<Option<Error>>,
    ended: Ended,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        (self.ended)(self.failure.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A thread among those of its device. However the thread ends, it leaves: a panic counts as a failure.
pub(crate) struct Membership {
    result: io::Result<()>,
    /// Dropped before the sender: when the device hears of the last thread, `ended` has returned.
    outcome: Arc<Outcome>,
    _running: Sender<()>,
}

impl Membership {
    /// Says how the thread has ended.
    pub(crate) fn end(mut self, result: io::Result<()>) {
        self.result = result;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = std::mem::replace(&mut self.result, Ok(())) {
            let mut failure = self.outcome.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(Error::System(error));
        }
    }
}

/// The threads of a device, as the device waits for them.
#[derive(Debug)]
pub(crate) struct Threads(Receiver<()>);

impl Threads {
    /// So many threads, none of which has begun.
    pub(crate) fn new(nr: usize, ended: Ended) -> (Self, Vec<Membership>) {
        let (running, ends) = channel();
        let outcome = Arc::new(Outcome { failure: Mutex::default(), ended });
        let join = |_| {
            let result = Err(io::Error::other("a thread of a queue has ended in the middle"));
            Membership { result, outcome: Arc::clone(&outcome), _running: running.clone() }
        };
        (Self(ends), (0..nr).map(join).collect())
    }

    /// Waits until every thread has left. Returns false if nothing has [moved](until_stalled) for the limit.
    pub(crate) fn wait(&self, limit: Duration, moved: impl Fn() -> u64) -> bool {
        let wait = |pause| (self.0.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)).then_some(());
        until_stalled(limit, moved, wait).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Red if only threads that return are counted: then no caller hears of the end of a device whose thread panicked.
    /// Red if an end waits forever for a thread whose requests the device keeps.
    #[test]
    fn a_thread_that_panics_has_ended_with_a_failure() {
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let ended = move |error: Option<Error>| _ = tell.lock().unwrap().send(error.map(|error| error.to_string()));
        let (threads, members) = Threads::new(2, Box::new(ended));
        for (number, member) in members.into_iter().enumerate() {
            assert!(!threads.wait(Duration::from_millis(10), || 0));
            assert!(told.try_recv().is_err());
            let serve = move || {
                let member = member;
                if number == 0 {
                    std::panic::panic_any("as it must not be");
                }
                member.end(Ok(()));
            };
            assert_eq!(thread::spawn(serve).join().is_err(), number == 0);
        }
        assert!(threads.wait(Duration::from_secs(600), || 0));
        assert!(told.recv().unwrap().unwrap().contains("ended in the middle"));
        assert!(told.try_recv().is_err(), "it is told once");
    }
}
