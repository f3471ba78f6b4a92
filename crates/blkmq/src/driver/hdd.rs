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

use blkmq_sched::{Op, Time};

use super::model::{Model, Profile, limits};
use super::parameter::SpecError;
use super::store::Store;
use super::{Batch, Request, Topology, TopologyError};
use crate::request::limits::{Limits, SECTOR_SIZE};
pub use config::{Config, PARAMETERS};
use drive::{Command, CommandKind, Drive};

/// The model of a hard disk.
pub type Hdd = Model<Config>;

impl Config {
    fn work(&self, rq: &Request<'_>) -> CommandKind {
        match rq.op() {
            Op::Read => CommandKind::Read,
            Op::Write if self.write_cache && !(self.fua && rq.flags().fua) => CommandKind::WriteCached,
            Op::Write => CommandKind::WriteThrough,
            // The limits let no other operation come.
            Op::Flush | Op::Discard | Op::WriteZeroes => CommandKind::Flush,
        }
    }
}

impl Profile for Config {
    const NAME: &'static str = "hdd";
    const LINES: [&'static str; 2] = ["hdd.next_event", "hdd.drive"];
    type Shared = ();
    type Commands = Drive;

    fn check(&self) -> Result<(), SpecError> {
        if !(self.seek_track <= self.seek_average && self.seek_average <= self.seek_full) {
            return Err(SpecError::new("a longer seek takes longer: seek_track <= seek_average <= seek_full"));
        }
        if u64::from(self.max_sectors) * SECTOR_SIZE as u64 > self.cache_size {
            return Err(SpecError::new(format!(
                "a request of max_sectors={} does not fit into cache_size",
                self.max_sectors
            )));
        }
        Ok(())
    }

    fn machine(&self) {}

    fn store(&self) -> Option<Store> {
        self.memory_backed.then(|| Store::new(self.write_cache.then_some(self.cache_size)))
    }

    fn limits(&self) -> Limits {
        Limits {
            physical_block_size: self.bs.max(4096),
            max_sectors: self.max_sectors,
            max_discard_sectors: 0,
            max_write_zeroes_sectors: 0,
            write_cache: self.write_cache,
            fua: self.fua && self.write_cache,
            rotational: true,
            ..limits(self.bs, self.size)
        }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, self.hw_queue_depth)
    }

    fn set_topology(_: &Hdd, _: Topology) -> Result<(), TopologyError> {
        Err(TopologyError::Fixed(Self::NAME))
    }

    /// COST: one lock per batch; per request a look at each other one that waits for the heads. Nothing is allocated
    /// but the pages of a memory-backed disk.
    fn queue_rqs(hdd: &Hdd, _hctx: u16, drive: Option<&mut Drive>, batch: &mut Batch<'_>, now: Time) {
        let Some(drive) = drive else { return };
        drive.advance(now);
        while let Some(mut rq) = batch.next_request() {
            let status = hdd.execute(&mut rq, hdd.config.fua);
            let (work, start) = (hdd.config.work(&rq), rq.sector());
            let end = start + u64::from(rq.nr_sectors());
            let id = batch.start(rq);
            drive.submit(Command { id, status, work, start, end });
        }
    }
}
