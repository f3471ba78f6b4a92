//! The model of an SSD: channels, dies with read and program times, a write buffer, and garbage collection that makes
//! it fast and slow by turns. The model's times depend on what was asked when and on the seed, and on nothing else.
//!
//! The controller takes commands in the order in which they come, whatever the hardware queue, `iops` a second at most.
//! A read goes to the dies of its pages, each of which does one thing at a time. Reads go before programs, but not
//! before the step that is under way. A write is over when it is in the buffer. If the buffer is full, `write_slots`
//! writes wait for room in the controller. The next write keeps all commands behind it waiting, reads too. The buffer
//! is programmed page by page, on one die after the other. See [`Config`] for the default profile, and the module
//! `collector` for collection.
//!
//! The model leaves out a translation table (pages lie where their address says, not where they were written), hits of
//! reads in the buffer, the bus time of programs, round robin among hardware queues, wear, heat, and what discards
//! spare.

mod collector;
mod config;
mod flash;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::OnceLock;

use blkmq_sched::{Op, RqId, Time};

use super::store::Store;
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::{Limits, MAX_HW_QUEUES};
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use flash::{Flash, Work};

/// The model of an SSD.
pub struct Ssd {
    config: Config,
    store: Option<Store>,
    flash: Line<Mutex<Flash>>,
    queues: Box<[OnceLock<Box<Pending>>]>,
}

/// The commands of a hardware queue, by the time at which they are over.
#[derive(Debug)]
struct Pending {
    /// When the first command is over, for a look without the lock; [`NEVER`] if there is none. A look that misses a
    /// change is made again: a thread that waits keeps polling, or asks [`Ssd::next_event`], which takes the lock.
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

impl Pending {
    fn new() -> Self {
        Self {
            next_due: Line::new("ssd.next_due", AtomicU64::new(NEVER)),
            commands: Line::new("ssd.pending", Mutex::new(Commands::default())),
        }
    }

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

impl Ssd {
    /// An SSD.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let cache_size = config.write_cache.then_some(config.buffer);
        let ssd = Self {
            store: config.memory_backed.then(|| Store::new(cache_size)),
            flash: Line::new("ssd.flash", Mutex::new(Flash::new(config.clone()))),
            queues: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            config,
        };
        ssd.prepare(ssd.topology());
        ssd
    }

    /// Cuts the power: data that is not durable is lost, and every request fails until the power is back. A request in
    /// progress takes place wholly before or after the loss, block by block. Without `memory_backed` nothing happens.
    pub fn lose_power(&self) {
        if let Some(store) = &self.store {
            store.lose_power();
        }
    }

    /// Switches the power on again.
    pub fn restore_power(&self) {
        if let Some(store) = &self.store {
            store.restore_power();
        }
    }

    /// Makes the state of the hardware queues.
    fn prepare(&self, topology: Topology) {
        for queue in &self.queues[..topology.nr_queues()] {
            let mut commands = queue.get_or_init(|| Box::new(Pending::new())).commands.lock();
            let missing = usize::from(topology.depth).saturating_sub(commands.heap.len());
            commands.heap.reserve(missing);
        }
    }

    fn pending(&self, hctx: u16) -> Option<&Pending> {
        self.queues[usize::from(hctx)].get().map(|pending| &**pending)
    }

    fn work(&self, rq: &Request<'_>) -> Work {
        match rq.op() {
            Op::Read => Work::Read,
            Op::Write if self.config.write_cache && self.config.fua && rq.flags().fua => Work::WriteThrough,
            Op::Write => Work::Write,
            Op::Flush if self.config.write_cache => Work::Flush,
            Op::Flush | Op::Discard | Op::WriteZeroes => Work::Note,
        }
    }
}

impl Driver for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn limits(&self) -> Limits {
        self.config.limits()
    }

    fn topology(&self) -> Topology {
        self.config.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        topology.check()?;
        self.prepare(topology);
        Ok(())
    }

    fn keeps_data(&self) -> bool {
        self.store.is_some()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.store.as_ref().map_or(Extent::data(bytes), |store| store.extent(start, bytes))
    }

    /// COST: two locks per batch, one of them the whole device's; per request a step of each page's die and a push into
    /// a heap. Nothing is allocated but the pages of a memory-backed SSD.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let Some(pending) = self.pending(hctx) else { return };
        let mut commands = pending.commands.lock();
        let mut flash = self.flash.lock();
        while let Some(mut rq) = batch.next_request() {
            let status = self.store.as_ref().map_or(Status::Ok, |store| store.execute(&mut rq, self.config.fua));
            let due = flash.submit(self.work(&rq), rq.sector(), u64::from(rq.nr_sectors()), now);
            let nr = commands.nr;
            commands.nr += 1;
            commands.heap.push(Reverse(Command { due, nr, id: batch.start(rq), status }));
        }
        pending.note_next_due(&commands);
    }

    /// COST: one load of a line that changes with each completion, if nothing is due.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        let Some(pending) = self.pending(hctx) else { return };
        let due = pending.next_due.load(Ordering::Relaxed);
        if due == NEVER || due > now.0 {
            return;
        }
        let mut commands = pending.commands.lock();
        while commands.next_due().is_some_and(|due| due <= now)
            && let Some(Reverse(Command { id, status, .. })) = commands.heap.pop()
        {
            // A stale id is a request that the timeout scan ended in between. No thread waits for it any more.
            let _ = done.complete(id, status);
        }
        pending.note_next_due(&commands);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        NextEvent::from(self.pending(hctx).and_then(|pending| pending.commands.lock().next_due()))
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        if let Some(pending) = self.pending(hctx) {
            pending.commands.lock().heap.iter().for_each(|Reverse(command)| due.add(command.id, command.due));
        }
    }

    fn timeout(&self, hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        if let Some(pending) = self.pending(hctx) {
            let mut commands = pending.commands.lock();
            commands.heap.retain(|Reverse(command)| command.id != id);
            pending.note_next_due(&commands);
        }
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "ssd {}", self.config)?;
        let (used, is_slow) = self.flash.lock().collection();
        writeln!(out, "spare_used={used} collecting={}", u8::from(is_slow))?;
        if let Some(store) = &self.store {
            store.show(out)?;
        }
        for (hctx, queue) in self.queues.iter().enumerate() {
            let pending = queue.get().map_or(0, |pending| pending.commands.lock().heap.len());
            if pending > 0 {
                writeln!(out, "hctx {hctx}: pending={pending}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Ssd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssd").field("config", &self.config).finish_non_exhaustive()
    }
}
