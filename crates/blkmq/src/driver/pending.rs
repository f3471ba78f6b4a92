//! The commands that a device model works on, by hardware queue.

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;

use blkmq_sched::{RqId, Time};

use super::parameter::FromSpec;
use super::{Done, DueTimes, NextEvent};
use crate::request::Status;
use crate::request::limits::MAX_HW_QUEUES;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, Mutex};

/// The commands of a hardware queue. They belong to one thread at a time.
pub trait Commands: Send + fmt::Debug {
    /// When [`pop_finished`](Self::pop_finished) is to be asked next.
    fn next_event(&self) -> Option<Time>;

    /// Takes the next command that is over by `now`, in the order of time.
    fn pop_finished(&mut self, now: Time) -> Option<(RqId, Status)>;

    /// When commands are over whose time is known. A command that was given up may be among them.
    fn due_times(&self) -> impl Iterator<Item = (RqId, Time)>;

    /// The request is given up.
    fn forget(&mut self, id: RqId);

    /// Makes room for `depth` commands.
    fn reserve(&mut self, depth: usize);

    /// Writes what is going on, if anything is.
    fn show(&self, hctx: usize, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// The commands of a model that knows when a command will be over as soon as it comes. The next one is in front; those
/// that are over at the same time keep the order in which they came.
#[derive(Debug, Default)]
pub struct Timed(VecDeque<Command>);

#[derive(Debug, Clone, Copy)]
struct Command {
    due: Time,
    id: RqId,
    status: Status,
}

impl<C: FromSpec> From<&C> for Timed {
    fn from(_: &C) -> Self {
        Self::default()
    }
}

impl Timed {
    /// Request `id` will be over at `due`, with this status.
    ///
    /// COST: nothing moves unless a command that came before is over later.
    #[inline]
    pub(super) fn push(&mut self, id: RqId, due: Time, status: Status) {
        let command = Command { due, id, status };
        if self.0.back().is_none_or(|last| last.due <= due) {
            return self.0.push_back(command);
        }
        self.0.insert(self.0.partition_point(|earlier| earlier.due <= due), command);
    }
}

impl Commands for Timed {
    fn next_event(&self) -> Option<Time> {
        self.0.front().map(|command| command.due)
    }

    fn pop_finished(&mut self, now: Time) -> Option<(RqId, Status)> {
        self.0.pop_front_if(|command| command.due <= now).map(|command| (command.id, command.status))
    }

    fn due_times(&self) -> impl Iterator<Item = (RqId, Time)> {
        self.0.iter().map(|command| (command.id, command.due))
    }

    fn forget(&mut self, id: RqId) {
        self.0.retain(|command| command.id != id);
    }

    fn reserve(&mut self, depth: usize) {
        self.0.reserve(depth.saturating_sub(self.0.len()));
    }

    fn show(&self, hctx: usize, out: &mut dyn fmt::Write) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { writeln!(out, "hctx {hctx}: pending={}", self.0.len()) }
    }
}

/// The commands of each hardware queue.
#[derive(Debug)]
pub(super) struct Pending<Q> {
    queues: Box<[OnceLock<Box<HwQueue<Q>>>]>,
    /// The names of the two lines of each hardware queue.
    names: [&'static str; 2],
}

#[derive(Debug)]
struct HwQueue<Q> {
    /// When something happens next, for a look without the lock; [`NEVER`] if nothing is going on. A look that misses a
    /// change is made again: a thread that waits keeps polling, or asks [`Pending::next_event`], which takes the lock.
    next_event: Line<AtomicU64>,
    commands: Line<Mutex<Q>>,
}

/// A time that never comes, in nanoseconds.
const NEVER: u64 = u64::MAX;

impl<Q: Commands> Pending<Q> {
    /// No hardware queues. The names are those of two lines that threads share: when something happens next, and the
    /// commands.
    pub(super) fn new(names: [&'static str; 2]) -> Self {
        Self { queues: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(), names }
    }

    /// Makes the state of a hardware queue, if it is not there yet.
    pub(super) fn prepare(&self, hctx: u16, depth: u16, make: impl FnOnce() -> Q) {
        let [next_event, commands] = self.names;
        let make = || {
            let next_event = Line::new(next_event, AtomicU64::new(NEVER));
            Box::new(HwQueue { next_event, commands: Line::new(commands, Mutex::new(make())) })
        };
        self.queues[usize::from(hctx)].get_or_init(make).commands.lock().reserve(usize::from(depth));
    }

    fn queue(&self, hctx: u16) -> Option<&HwQueue<Q>> {
        self.queues[usize::from(hctx)].get().map(|queue| &**queue)
    }

    /// Gives `work` the commands of a hardware queue, under their lock: no thread looks for a command between its start
    /// and its place here. `None` if there is no such hardware queue.
    ///
    /// COST: a lock for each batch.
    #[inline]
    pub(super) fn with<R>(&self, hctx: u16, work: impl FnOnce(&mut Q) -> R) -> Option<R> {
        let HwQueue { next_event, commands } = self.queue(hctx)?;
        let mut commands = commands.lock();
        let result = work(&mut commands);
        next_event.store(commands.next_event().map_or(NEVER, |time| time.0), Ordering::Relaxed);
        Some(result)
    }

    /// COST: one load of a line that changes with each event, if nothing is due.
    pub(super) fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        let next = self.queue(hctx).map_or(NEVER, |queue| queue.next_event.load(Ordering::Relaxed));
        if next == NEVER || next > now.0 {
            return;
        }
        self.with(hctx, |commands| {
            while let Some((id, status)) = commands.pop_finished(now) {
                // A stale id is a request that the timeout scan ended in between. No thread waits for it any more.
                let _ = done.complete(id, status);
            }
        });
    }

    pub(super) fn next_event(&self, hctx: u16) -> NextEvent {
        NextEvent::from(self.queue(hctx).and_then(|queue| queue.commands.lock().next_event()))
    }

    pub(super) fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        if let Some(queue) = self.queue(hctx) {
            queue.commands.lock().due_times().for_each(|(id, time)| due.add(id, time));
        }
    }

    /// The request is given up.
    pub(super) fn forget(&self, hctx: u16, id: RqId) {
        self.with(hctx, |commands| commands.forget(id));
    }

    /// Writes what is going on in each hardware queue.
    pub(super) fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let queues = self.queues.iter().enumerate();
        queues
            .filter_map(|(hctx, queue)| Some((hctx, queue.get()?)))
            .try_for_each(|(hctx, queue)| queue.commands.lock().show(hctx, out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::driver::tests::random_cases;

    proptest! {
        #![proptest_config(random_cases(256))]

        /// Red if a command is put before one that came earlier and is over at the same time, or behind one that is
        /// over later.
        #[test]
        fn commands_are_over_in_the_order_of_time_and_then_as_they_came(
            times in prop::collection::vec(0..8_u64, 0..40),
        ) {
            let mut timed = Timed::default();
            for (id, due) in (0..).zip(&times) {
                timed.push(RqId(id), Time(*due), Status::Ok);
            }
            let mut expected: Vec<_> = (0..).map(RqId).zip(times.iter().map(|due| Time(*due))).collect();
            expected.sort_by_key(|(_, due)| *due);
            prop_assert_eq!(timed.due_times().collect::<Vec<_>>(), expected.clone());
            for (id, due) in expected {
                prop_assert_eq!(timed.next_event(), Some(due));
                prop_assert_eq!(due.0.checked_sub(1).and_then(|early| timed.pop_finished(Time(early))), None);
                prop_assert_eq!(timed.pop_finished(due), Some((id, Status::Ok)));
            }
            prop_assert_eq!(timed.next_event(), None);
        }
    }
}
