//! The model of an SSD: channels, dies with read and program times, a write buffer, and garbage collection that makes
//! it fast and slow by turns. The model's times depend on what was asked when and on the seed, and on nothing else.
//!
//! The controller takes commands in the order in which they come, whatever the hardware queue, `iops` a second at most.
//! It works on `slots` commands at once. If it has as many, those that come wait in line, reads behind writes. A read
//! goes to the dies of its pages, each of which does one thing at a time. Reads go before programs, but not before the
//! step that is under way, which a die does not interrupt. A write is over when it is in the buffer, and keeps its slot
//! while it waits for room there. The buffer is programmed row by row, on one die after the other. While a die has
//! nothing else to do, it copies some rows for what was written. From time to time rows must be copied before others
//! can be programmed, and the SSD is slow. See [`Config`] for the default profile, and the module `collector` for
//! collection.
//!
//! The model leaves out a translation table (pages lie where their address says, not where they were written), hits of
//! reads in the buffer, the bus time of programs, round robin among hardware queues, wear, heat, and what discards
//! spare.

mod collector;
mod config;
mod flash;
#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;

use std::fmt;

use blkmq_sched::{Op, RqId, Time};

use super::pending::Pending;
use super::store::Store;
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::Limits;
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use flash::{Flash, Work};

/// The model of an SSD.
pub struct Ssd {
    config: Config,
    store: Option<Store>,
    flash: Line<Mutex<Flash>>,
    pending: Pending,
}

impl Ssd {
    /// An SSD.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let cache_size = config.write_cache.then_some(config.buffer);
        Self {
            store: config.memory_backed.then(|| Store::new(cache_size)),
            flash: Line::new("ssd.flash", Mutex::new(Flash::new(config.clone()))),
            pending: Pending::new(["ssd.next_due", "ssd.pending"], config.topology()),
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
        self.pending.prepare(topology);
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
        let Some(mut pending) = self.pending.add(hctx) else { return };
        let mut flash = self.flash.lock();
        while let Some(mut rq) = batch.next_request() {
            let status = self.store.as_ref().map_or(Status::Ok, |store| store.execute(&mut rq, self.config.fua));
            let due = flash.submit(self.work(&rq), rq.sector(), u64::from(rq.nr_sectors()), now);
            pending.push(batch.start(rq), due, status);
        }
    }

    /// COST: one load of a line that changes with each completion, if nothing is due.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.pending.poll(hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        self.pending.next_event(hctx)
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        self.pending.due_times(hctx, due);
    }

    fn timeout(&self, hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        self.pending.forget(hctx, id);
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "ssd {}", self.config)?;
        let (left, is_slow) = self.flash.lock().collection();
        writeln!(out, "collecting={} bytes_left={left}", u8::from(is_slow))?;
        if let Some(store) = &self.store {
            store.show(out)?;
        }
        self.pending.show(out)
    }
}

impl fmt::Debug for Ssd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssd").field("config", &self.config).finish_non_exhaustive()
    }
}
