//! The threads of a device at their end: the last one tells how it was, and the device waits for them.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::stall::until_stalled;

pub(crate) type Ended = Arc<dyn Fn(Option<Error>) + Send + Sync>;

/// What the threads of a device leave behind.
pub(crate) struct Count {
    state: Mutex<State>,
    is_over: Condvar,
    ended: Ended,
}

#[derive(Default)]
struct State {
    nr_left: usize,
    failure: Option<Error>,
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Count").finish_non_exhaustive()
    }
}

impl Count {
    /// `ended` is called by the last thread, with what failed first.
    pub(crate) fn new(ended: Ended) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), is_over: Condvar::new(), ended })
    }

    /// One more thread, until the value is dropped. All threads are counted before the first of them begins.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).nr_left += 1;
        Place { count: Arc::clone(self), result: None }
    }

    fn leave(&self, result: io::Result<()>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = result {
            state.failure.get_or_insert(Error::System(error));
        }
        state.nr_left -= 1;
        if state.nr_left == 0 {
            let failure = state.failure.take();
            drop(state);
            (self.ended)(failure);
            self.is_over.notify_all();
        }
    }

    /// Waits until every thread has left. Returns false if nothing has [moved](until_stalled) for the limit.
    pub(crate) fn wait(&self, limit: Duration, moved: impl Fn() -> u64) -> bool {
        let wait = |pause| {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.is_over.wait_timeout_while(state, pause, |state| state.nr_left > 0);
            (waited.unwrap_or_else(PoisonError::into_inner).0.nr_left == 0).then_some(())
        };
        until_stalled(limit, moved, wait).is_some()
    }
}

/// A thread among those of its device. However the thread ends, it leaves: a panic counts as a failure.
#[derive(Debug)]
pub(crate) struct Place {
    count: Arc<Count>,
    result: Option<io::Result<()>>,
}

impl Place {
    /// Says how the thread has ended.
    pub(crate) fn end(mut self, result: io::Result<()>) {
        self.result = Some(result);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let result = self.result.take();
        self.count
            .leave(result.unwrap_or_else(|| Err(io::Error::other("a thread of a queue has ended in the middle"))));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn count() -> (Arc<Count>, mpsc::Receiver<Option<String>>) {
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let ended = move |error: Option<Error>| _ = tell.lock().unwrap().send(error.map(|error| error.to_string()));
        (Count::new(Arc::new(ended)), told)
    }

    /// Red if only threads that return are counted: then no caller hears of the end of a device whose thread panicked.
    #[test]
    fn a_thread_that_panics_has_ended_with_a_failure() {
        let (count, told) = count();
        let places = [count.place(), count.place()];
        for (number, place) in places.into_iter().enumerate() {
            let serve = move || {
                let place = place;
                if number == 0 {
                    std::panic::panic_any("as it must not be");
                }
                place.end(Ok(()));
            };
            assert_eq!(thread::spawn(serve).join().is_err(), number == 0);
        }
        assert!(told.recv().unwrap().unwrap().contains("ended in the middle"));
        assert!(told.try_recv().is_err(), "it is told once");
    }

    /// Red if an end waits for ever for a thread whose requests the device keeps.
    #[test]
    fn what_does_not_end_is_waited_for_while_something_moves() {
        let (count, told) = count();
        let place = count.place();
        assert!(!count.wait(Duration::from_millis(10), || 0));
        assert!(told.try_recv().is_err());
        // Each look finds that something has moved, and the thread leaves after more looks than the limit has.
        let (leave, left) = mpsc::channel();
        let thread = thread::spawn(move || {
            left.recv().unwrap();
            place.end(Ok(()));
        });
        let looks = std::cell::Cell::new(0);
        let moved = || {
            looks.set(looks.get() + 1);
            if looks.get() == 100 {
                leave.send(()).unwrap();
            }
            looks.get()
        };
        assert!(count.wait(Duration::from_millis(10), moved));
        thread.join().unwrap();
        assert_eq!(told.recv().unwrap(), None);
    }
}
