//! The witness, to which each part of the world tells every event. The witness keeps the history and asks the checkers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkmq_sched::Time;
use blkmq_vcpu::{Switch, cpu, steps, stop, time, uninterrupted};

use super::check::{Checkers, Violation};
use super::event::{Event, Stamp};
use super::history::{Entry, History};

/// The witness of one world. Clones are the same witness.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Inner>>);

struct Inner {
    history: History,
    checkers: Checkers,
    violation: Option<(Stamp, Violation)>,
    /// What the world's thread holds of memory, in bytes.
    live: Option<fn() -> i64>,
    /// How many of the bytes in `live` the history and the checkers have taken since they were made.
    own: i64,
    /// How many of the bytes in `live` are buffers that clients keep for later.
    spare: i64,
}

impl Witness {
    /// A witness with these checkers. `live` returns how many bytes of memory the world's thread holds. Without `live`,
    /// memory is not checked.
    pub(crate) fn new(history: History, checkers: Checkers, live: Option<fn() -> i64>) -> Self {
        Self(Arc::new(Mutex::new(Inner { history, checkers, violation: None, live, own: 0, spare: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when something has just happened. Ends the run if the event breaks a promise.
    pub(crate) fn tell(&self, event: Event<'_>) {
        let is_fine = uninterrupted(|| self.inner().see(event));
        if !is_fine {
            stop();
        }
    }

    /// Called when a client keeps this many bytes more of buffers for later; a negative number means fewer.
    pub(crate) fn note_spare(&self, bytes: isize) {
        uninterrupted(|| self.inner().spare += bytes as i64);
    }

    /// Tells how much memory is held, without the memory of the witness itself and without the buffers that are not in
    /// use.
    pub(crate) fn tell_memory(&self) {
        let live = uninterrupted(|| {
            let Inner { live, own, spare, .. } = &*self.inner();
            live.map(|live| live() - own - spare)
        });
        if let Some(live) = live {
            self.tell(Event::Memory { live });
        }
    }

    /// Called when something that is no event breaks a promise.
    pub(crate) fn accuse(&self, violation: Violation) {
        uninterrupted(|| _ = self.inner().violation.get_or_insert((stamp(), violation)));
        stop();
    }

    /// Called when another CPU runs from now on.
    pub(crate) fn note_switch(&self, switch: Switch) {
        self.inner().note(Entry::Switch(switch));
    }

    /// Called when every CPU has come to its end, or when the run was stopped. Returns the first broken promise, and
    /// the hash of the history.
    pub(crate) fn end(&self, at: Stamp, is_finished: bool) -> (Option<(Stamp, Violation)>, u64) {
        let Inner { history, checkers, violation, .. } = &mut *self.inner();
        if violation.is_none() && is_finished {
            *violation = checkers.end().err().map(|broken| (at, broken));
        }
        (violation.take(), history.hash())
    }
}

impl Inner {
    /// Takes an entry into the history. The reader of the history may keep what it wants.
    fn note(&mut self, entry: Entry<'_>) {
        let before = self.live.map_or(0, |live| live());
        self.history.note(entry);
        self.own += self.live.map_or(0, |live| live()) - before;
    }

    fn see(&mut self, event: Event<'_>) -> bool {
        let at = stamp();
        self.note(Entry::Event(at, event));
        let before = self.live.map_or(0, |live| live());
        if self.violation.is_none() {
            self.violation = self.checkers.see(at, &event).err().map(|broken| (at, broken));
        }
        self.own += self.live.map_or(0, |live| live()) - before;
        self.violation.is_none()
    }
}

/// This moment.
pub(crate) fn stamp() -> Stamp {
    Stamp { step: steps(), time: Time(time::now()), cpu: cpu() }
}
