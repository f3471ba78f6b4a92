//! The model of a volume of a cloud: a fast device behind a limiter that lets so many operations and so many bytes pass
//! a second. The model's times depend on what was asked when and on the seed, and on nothing else.
//!
//! The limiter saves up what is not used, for `burst` at most. Each operation that comes takes what it costs, and goes
//! to the device if that was there. Otherwise the limiter holds the operation for `hold`, and for `hold` again until
//! what it costs has come in. So the limiter keeps no order: what comes while an operation is held, and finds enough,
//! passes it. The device behind the limiter works on any number of operations at once, and takes a time for each that
//! the seed decides.
//!
//! See [`Config`] for the default profile. The model leaves out the network, the device's own limits, and a second
//! ceiling for bursts.

mod config;
mod limiter;
#[cfg(test)]
mod tests;

use std::fmt;

use blkmq_sched::{Op, Time};

use super::model::{Model, Profile, limits};
use super::pending::Timed;
use super::store::Store;
use super::{Batch, Request, Topology};
use crate::request::limits::{Limits, SECTOR_SIZE};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use limiter::Limiter;

/// The model of a volume of a cloud.
pub type Cloud = Model<Config>;

impl Config {
    /// What a request costs: operations, and bytes.
    fn cost(&self, rq: &Request<'_>) -> (u64, u64) {
        let bytes = u64::from(rq.nr_sectors()) * SECTOR_SIZE as u64;
        match rq.op() {
            Op::Read => (1, bytes),
            Op::Write => (bytes.div_ceil(self.write_unit), bytes),
            Op::Flush | Op::Discard | Op::WriteZeroes => (1, 0),
        }
    }
}

impl Profile for Config {
    const NAME: &'static str = "cloud";
    const LINES: [&'static str; 2] = ["cloud.next_event", "cloud.pending"];
    type Shared = Line<Mutex<Limiter>>;
    type Commands = Timed;

    fn machine(&self) -> Line<Mutex<Limiter>> {
        Line::new("cloud.limiter", Mutex::new(Limiter::new(self)))
    }

    fn store(&self) -> Option<Store> {
        self.memory_backed.then(|| Store::new(None))
    }

    fn limits(&self) -> Limits {
        Limits { max_sectors: self.max_sectors, max_discard_segments: 256, ..limits(self.bs, self.size) }
    }

    fn topology(&self) -> Topology {
        let depth = self.hw_queue_depth;
        Topology::new(self.submit_queues, depth)
    }

    /// COST: two locks per batch, one of them the whole device's; per request a few divisions and a place in a list.
    /// Nothing is allocated but the pages of a memory-backed volume.
    fn queue_rqs(cloud: &Cloud, _hctx: u16, pending: Option<&mut Timed>, batch: &mut Batch<'_>, now: Time) {
        let Some(pending) = pending else { return };
        let mut limiter = cloud.machine.lock();
        while let Some(mut rq) = batch.next_request() {
            let status = cloud.execute(&mut rq, false);
            let (operations, bytes) = cloud.config.cost(&rq);
            let due = limiter.submit(operations, bytes, now);
            pending.push(batch.start(rq), due, status);
        }
    }

    fn show(cloud: &Cloud, out: &mut dyn fmt::Write) -> fmt::Result {
        let (passed, held) = cloud.machine.lock().counts();
        writeln!(out, "passed={passed} held={held}")
    }
}
