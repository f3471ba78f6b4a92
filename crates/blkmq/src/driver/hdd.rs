//! The model of a hard disk: seek by distance, rotation, a queue of its own with the shortest access first, a write
//! cache and read-ahead. The model's times depend on what was asked when, and on nothing else.
//!
//! With `write_cache=1` a write completes when its data is in the cache, as long as there is room. The cache is written
//! back from the lowest sector to the highest and again, joined where it touches, whenever no command waits for the
//! heads. If writes wait for room, or a flush waits for the cache to be clean, writing back and commands take turns.
//! With `write_cache=0`, and with FUA, a write completes when it is on the platter. Reads are answered from the cache
//! or from what was read ahead, if all of their sectors are there.
//!
//! The model leaves out zones (the transfer rate is the same everywhere), bad sectors, power saving, and the difference
//! between settling for a read and for a write.

mod cache;
mod config;
mod drive;
mod mechanics;
mod read_ahead;
#[cfg(test)]
mod tests;

use std::fmt;

use blkmq_sched::{Op, RqId, Time};

use super::store::Store;
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology};
use crate::request::Status;
use crate::request::limits::Limits;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use drive::{Command, Drive, Work};

/// The model of a hard disk.
pub struct Hdd {
    config: Config,
    store: Option<Store>,
    /// When to look next, for a look without the lock; [`NEVER`] if nothing is going on. A look that misses a change is
    /// made again: a thread that waits keeps polling, or asks [`Hdd::next_event`], which takes the lock.
    next_look: Line<AtomicU64>,
    drive: Line<Mutex<Drive>>,
}

/// A time that never comes, in nanoseconds.
const NEVER: u64 = u64::MAX;

impl Hdd {
    /// A hard disk.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let cache_size = config.write_cache.then_some(config.cache_size);
        Self {
            store: config.memory_backed.then(|| Store::new(cache_size)),
            next_look: Line::new("hdd.next_look", AtomicU64::new(NEVER)),
            drive: Line::new("hdd.drive", Mutex::new(Drive::new(&config))),
            config,
        }
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

    fn work(&self, rq: &Request<'_>) -> Work {
        match rq.op() {
            Op::Read => Work::Read,
            Op::Write if self.config.write_cache && !(self.config.fua && rq.flags().fua) => Work::WriteCached,
            Op::Write => Work::WriteThrough,
            // The limits let no other operation come.
            Op::Flush | Op::Discard | Op::WriteZeroes => Work::Flush,
        }
    }

    /// Under the lock: notes when to look next.
    fn note_next_look(&self, drive: &Drive) {
        self.next_look.store(drive.next_look().map_or(NEVER, |time| time.0), Ordering::Relaxed);
    }
}

impl Driver for Hdd {
    fn name(&self) -> &'static str {
        "hdd"
    }

    fn limits(&self) -> Limits {
        self.config.limits()
    }

    fn topology(&self) -> Topology {
        self.config.topology()
    }

    fn keeps_data(&self) -> bool {
        self.store.is_some()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.store.as_ref().map_or(Extent::data(bytes), |store| store.extent(start, bytes))
    }

    /// COST: one lock per batch; per request a look at each other one that waits for the heads. Nothing is allocated
    /// but the pages of a memory-backed disk.
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let mut drive = self.drive.lock();
        drive.advance(now);
        while let Some(mut rq) = batch.next_request() {
            let status = self.store.as_ref().map_or(Status::Ok, |store| store.execute(&mut rq, self.config.fua));
            let (work, start) = (self.work(&rq), rq.sector());
            let end = start + u64::from(rq.nr_sectors());
            let id = batch.start(rq);
            drive.submit(Command { id, status, work, start, end });
        }
        self.note_next_look(&drive);
    }

    /// COST: one load of a line that changes with each event, if nothing is due.
    fn poll(&self, _hctx: u16, done: &mut Done<'_>, now: Time) {
        let due = self.next_look.load(Ordering::Relaxed);
        if due == NEVER || due > now.0 {
            return;
        }
        let mut drive = self.drive.lock();
        drive.advance(now);
        while let Some(finished) = drive.pop_finished() {
            // A stale id is a request that the timeout scan ended in between. No thread waits for it any more.
            let _ = done.complete(finished.id, finished.status);
        }
        self.note_next_look(&drive);
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        NextEvent::from(self.drive.lock().next_look())
    }

    /// Tells what the heads and the interface are working on. Which of the other commands the heads choose next is not
    /// known before they are free: a command that comes meanwhile may be nearer.
    fn due_times(&self, _hctx: u16, due: &mut DueTimes<'_>) {
        self.drive.lock().due_times().for_each(|(id, time)| due.add(id, time));
    }

    fn timeout(&self, _hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        self.drive.lock().forget(id);
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "hdd {}", self.config)?;
        let (commands, dirty) = self.drive.lock().load();
        writeln!(out, "commands={commands} dirty_sectors={dirty}")?;
        self.store.as_ref().map_or(Ok(()), |store| store.show(out))
    }
}

impl fmt::Debug for Hdd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hdd").field("config", &self.config).finish_non_exhaustive()
    }
}
