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

use blkmq_sched::{Op, RqId, Time};

use super::pending::Pending;
use super::store::Store;
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::{Limits, SECTOR_SIZE};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, PARAMETERS};
use limiter::Limiter;

/// The model of a volume of a cloud.
pub struct Cloud {
    config: Config,
    store: Option<Store>,
    limiter: Line<Mutex<Limiter>>,
    pending: Pending,
}

impl Cloud {
    /// A volume.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            store: config.memory_backed.then(|| Store::new(None)),
            limiter: Line::new("cloud.limiter", Mutex::new(Limiter::new(&config))),
            pending: Pending::new(["cloud.next_due", "cloud.pending"], config.topology()),
            config,
        }
    }

    /// What a request costs: operations, and bytes.
    fn cost(&self, rq: &Request<'_>) -> (u64, u64) {
        let bytes = u64::from(rq.nr_sectors()) * SECTOR_SIZE as u64;
        match rq.op() {
            Op::Read => (1, bytes),
            Op::Write => (bytes.div_ceil(self.config.write_unit), bytes),
            Op::Flush | Op::Discard | Op::WriteZeroes => (1, 0),
        }
    }
}

impl Driver for Cloud {
    fn name(&self) -> &'static str {
        "cloud"
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

    /// COST: two locks per batch, one of them the whole device's; per request a few divisions and a push into a heap.
    /// Nothing is allocated but the pages of a memory-backed volume.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let Some(mut pending) = self.pending.add(hctx) else { return };
        let mut limiter = self.limiter.lock();
        while let Some(mut rq) = batch.next_request() {
            let status = self.store.as_ref().map_or(Status::Ok, |store| store.execute(&mut rq, false));
            let (operations, bytes) = self.cost(&rq);
            let due = limiter.submit(operations, bytes, now);
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
        writeln!(out, "cloud {}", self.config)?;
        let (passed, held) = self.limiter.lock().counts();
        writeln!(out, "passed={passed} held={held}")?;
        if let Some(store) = &self.store {
            store.show(out)?;
        }
        self.pending.show(out)
    }
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloud").field("config", &self.config).finish_non_exhaustive()
    }
}
