//! The commands that a device model works on, by the time at which each is over: for models that know this time when a
//! command comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::OnceLock;

use blkmq_sched::{RqId, Time};

use super::{Done, DueTimes, NextEvent, Topology};
use crate::request::Status;
use crate::request::limits::MAX_HW_QUEUES;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, Mutex, MutexGuard};

/// The commands of each hardware queue.
#[derive(Debug)]
pub(super) struct Pending {
    queues: Box<[OnceLock<Box<Queue>>]>,
    /// The names of the two lines of each hardware queue.
    names: [&'static str; 2],
}

#[derive(Debug)]
struct Queue {
    /// When the first command is over, for a look without the lock; [`NEVER`] if there is none. A look that misses a
    /// change is made again: a thread that waits keeps polling, or asks [`Pending::next_event`], which takes the lock.
    next_due: Line<AtomicU64>,
    commands: Line<Mutex<Commands>>,
}

#[derive(Debug, Default)]
struct Commands {
    heap: BinaryHeap<Reverse<Command>>,
    /// How many commands have come so far. Commands that are over at the same time keep the order in which they came.
    nr: u64,
}

#[derive(Debug, Clone, Copy)]
struct Command {
    due: Time,
    nr: u64,
    id: RqId,
    status: Status,
}

/// By time, then by number. No two commands have the same number.
impl Ord for Command {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.nr).cmp(&(other.due, other.nr))
    }
}

impl PartialOrd for Command {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Command {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Command {}

/// A time that never comes, in nanoseconds.
const NEVER: u64 = u64::MAX;

impl Queue {
    /// Under the lock: notes when the next command is over.
    fn note_next_due(&self, commands: &Commands) {
        self.next_due.store(commands.next_due().map_or(NEVER, |due| due.0), Ordering::Relaxed);
    }
}

impl Commands {
    fn next_due(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(command)| command.due)
    }
}

/// A hardware queue's commands under their lock, while more are added. No thread looks for a command between its start
/// and its place here.
pub(super) struct Adding<'a> {
    queue: &'a Queue,
    commands: MutexGuard<'a, Commands>,
}

impl Adding<'_> {
    /// Request `id` will be over at `due`, with this status.
    ///
    /// COST: a push into a heap.
    pub(super) fn push(&mut self, id: RqId, due: Time, status: Status) {
        let nr = self.commands.nr;
        self.commands.nr += 1;
        self.commands.heap.push(Reverse(Command { due, nr, id, status }));
    }
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.queue.note_next_due(&self.commands);
    }
}

impl Pending {
    /// No commands. The names are those of two lines that threads share: when the first command is over, and the
    /// commands.
    pub(super) fn new(names: [&'static str; 2], topology: Topology) -> Self {
        let pending = Self { queues: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(), names };
        pending.prepare(topology);
        pending
    }

    /// Makes the state of the hardware queues.
    pub(super) fn prepare(&self, topology: Topology) {
        let [next_due, commands] = self.names;
        let make = || {
            Box::new(Queue {
                next_due: Line::new(next_due, AtomicU64::new(NEVER)),
                commands: Line::new(commands, Mutex::new(Commands::default())),
            })
        };
        for queue in &self.queues[..topology.nr_queues()] {
            let mut commands = queue.get_or_init(make).commands.lock();
            let missing = usize::from(topology.depth).saturating_sub(commands.heap.len());
            commands.heap.reserve(missing);
        }
    }

    fn queue(&self, hctx: u16) -> Option<&Queue> {
        self.queues[usize::from(hctx)].get().map(|queue| &**queue)
    }

    /// The hardware queue, to add commands. `None` if there is no such hardware queue.
    ///
    /// COST: a lock for each batch.
    pub(super) fn add(&self, hctx: u16) -> Option<Adding<'_>> {
        self.queue(hctx).map(|queue| Adding { queue, commands: queue.commands.lock() })
    }

    /// COST: one load of a line that changes with each completion, if nothing is due.
    pub(super) fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        let Some(queue) = self.queue(hctx) else { return };
        let due = queue.next_due.load(Ordering::Relaxed);
        if due == NEVER || due > now.0 {
            return;
        }
        let mut commands = queue.commands.lock();
        while commands.next_due().is_some_and(|due| due <= now)
            && let Some(Reverse(Command { id, status, .. })) = commands.heap.pop()
        {
            // A stale id is a request that the timeout scan ended in between. No thread waits for it any more.
            let _ = done.complete(id, status);
        }
        queue.note_next_due(&commands);
    }

    pub(super) fn next_event(&self, hctx: u16) -> NextEvent {
        NextEvent::from(self.queue(hctx).and_then(|queue| queue.commands.lock().next_due()))
    }

    pub(super) fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        if let Some(queue) = self.queue(hctx) {
            queue.commands.lock().heap.iter().for_each(|Reverse(command)| due.add(command.id, command.due));
        }
    }

    /// The request is given up.
    pub(super) fn forget(&self, hctx: u16, id: RqId) {
        if let Some(queue) = self.queue(hctx) {
            let mut commands = queue.commands.lock();
            commands.heap.retain(|Reverse(command)| command.id != id);
            queue.note_next_due(&commands);
        }
    }

    /// Writes how many commands each hardware queue has, where it has any.
    pub(super) fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for (hctx, queue) in self.queues.iter().enumerate() {
            let pending = queue.get().map_or(0, |queue| queue.commands.lock().heap.len());
            if pending > 0 {
                writeln!(out, "hctx {hctx}: pending={pending}")?;
            }
        }
        Ok(())
    }
}
