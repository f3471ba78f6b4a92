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
mod tests;

use std::fmt;

use blkmq_sched::{Op, Time};

use super::model::{Model, Profile, limits};
use super::parameter::SpecError;
use super::pending::Timed;
use super::store::Store;
use super::{Batch, Request, Topology};
use crate::request::limits::{Limits, SECTOR_SIZE};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use flash::{CommandKind, Flash};

/// The model of an SSD.
pub type Ssd = Model<Config>;

impl Config {
    fn work(&self, rq: &Request<'_>) -> CommandKind {
        match rq.op() {
            Op::Read => CommandKind::Read,
            Op::Write if self.write_cache && self.fua && rq.flags().fua => CommandKind::WriteThrough,
            Op::Write => CommandKind::Write,
            Op::Flush if self.write_cache => CommandKind::Flush,
            Op::Flush | Op::Discard | Op::WriteZeroes => CommandKind::Note,
        }
    }
}

impl Profile for Config {
    const NAME: &'static str = "ssd";
    const LINES: [&'static str; 2] = ["ssd.next_event", "ssd.pending"];
    type Shared = Line<Mutex<Flash>>;
    type Commands = Timed;

    fn check(&self) -> Result<(), SpecError> {
        if !self.page.is_power_of_two() {
            return Err(SpecError::new(format!("page={} is not a power of two", self.page)));
        }
        if self.read_slow < self.read {
            return Err(SpecError::new("a slow page takes longer: read <= read_slow"));
        }
        let largest = u64::from(self.max_sectors) * SECTOR_SIZE as u64;
        if largest + 2 * self.row() > self.buffer {
            return Err(SpecError::new(format!(
                "a request of max_sectors={} does not fit into the buffer",
                self.max_sectors
            )));
        }
        Ok(())
    }

    fn machine(&self) -> Line<Mutex<Flash>> {
        Line::new("ssd.flash", Mutex::new(Flash::new(self.clone())))
    }

    fn store(&self) -> Option<Store> {
        self.memory_backed.then(|| Store::new(self.write_cache.then_some(self.buffer)))
    }

    fn limits(&self) -> Limits {
        Limits {
            max_sectors: self.max_sectors,
            max_discard_segments: 256,
            write_cache: self.write_cache,
            fua: self.fua && self.write_cache,
            ..limits(self.bs, self.size)
        }
    }

    fn topology(&self) -> Topology {
        let depth = self.hw_queue_depth;
        Topology::new(self.submit_queues, depth)
    }

    /// COST: two locks per batch, one of them the whole device's; per request a step of each page's die and a place in
    /// a list. Nothing is allocated but the pages of a memory-backed SSD.
    fn queue_rqs(ssd: &Ssd, _hctx: u16, pending: Option<&mut Timed>, batch: &mut Batch<'_>, now: Time) {
        let Some(pending) = pending else { return };
        let mut flash = ssd.machine.lock();
        while let Some(mut rq) = batch.next_request() {
            let status = ssd.execute(&mut rq, ssd.config.fua);
            let due = flash.submit(ssd.config.work(&rq), rq.sector(), u64::from(rq.nr_sectors()), now);
            pending.push(batch.start(rq), due, status);
        }
    }

    fn show(ssd: &Ssd, out: &mut dyn fmt::Write) -> fmt::Result {
        let (left, is_slow) = ssd.machine.lock().collection();
        writeln!(out, "collecting={} bytes_left={left}", u8::from(is_slow))
    }
}
