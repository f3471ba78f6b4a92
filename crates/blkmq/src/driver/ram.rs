//! A RAM disk: keeps the data, and is done with a request as soon as it gets it.

use std::fmt;

use blkmq_sched::{RqId, Time};

use super::spec::{Accepts, Parameter, Values};
use super::store::{MAX_DATALESS_SECTORS, MAX_SIZE, Store, check_geometry};
use super::{Batch, Done, Driver, TimeoutAction, Topology, check_topology};
use crate::limits::{Limits, SECTOR_SIZE};
use crate::{MAX_DEPTH, MAX_HW_QUEUES};

/// The parameters of the RAM disk.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "size",
        accepts: Accepts::Size { unit: 1, min: 512, max: MAX_SIZE },
        default: "1G",
        about: "size of the device in bytes; memory is taken as it is written",
    },
    Parameter {
        name: "bs",
        accepts: Accepts::Size { unit: 1, min: 512, max: 4096 },
        default: "512",
        about: "logical block size in bytes, a power of two",
    },
    Parameter {
        name: "submit_queues",
        accepts: Accepts::Count { unit: "", min: 1, max: MAX_HW_QUEUES as u64 },
        default: "1",
        about: "hardware queues; more than there are CPUs is fine",
    },
    Parameter {
        name: "hw_queue_depth",
        accepts: Accepts::Count { unit: "", min: 1, max: MAX_DEPTH as u64 },
        default: "64",
        about: "requests that a hardware queue takes at once",
    },
];

/// The RAM disk.
#[derive(Debug)]
pub struct Ram {
    limits: Limits,
    topology: Topology,
    store: Store,
}

impl Ram {
    pub(crate) fn from_values(values: &Values) -> Result<Self, String> {
        let (bs, size) = (values.number("bs"), values.number("size"));
        check_geometry(bs, size)?;
        let limits = Limits {
            capacity_sectors: size / SECTOR_SIZE as u64,
            logical_block_size: bs,
            physical_block_size: bs,
            max_discard_sectors: MAX_DATALESS_SECTORS,
            max_write_zeroes_sectors: MAX_DATALESS_SECTORS,
            ..Limits::default()
        };
        let topology = Topology {
            default_queues: values.number("submit_queues"),
            read_queues: 0,
            poll_queues: 0,
            depth: values.number("hw_queue_depth"),
        };
        Ok(Self { limits, topology, store: Store::new(None) })
    }
}

impl Driver for Ram {
    fn name(&self) -> &'static str {
        "ram"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn topology(&self) -> Topology {
        self.topology
    }

    fn set_topology(&self, topology: Topology) -> Result<(), String> {
        check_topology(topology)
    }

    fn is_concurrent(&self) -> bool {
        true
    }

    /// COST: per page a lock and a look-up; a page that is written for the first time is allocated.
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(mut rq) = batch.next() {
            // Everything is as durable as it gets, so FUA asks for nothing more.
            let status = self.store.execute(&mut rq, false);
            batch.finish(rq, status);
        }
    }

    fn poll(&self, _hctx: u16, _done: &mut Done<'_>, _now: Time) {}

    fn next_event(&self, _hctx: u16) -> Option<Time> {
        None
    }

    fn timeout(&self, _hctx: u16, _id: RqId, _now: Time) -> TimeoutAction {
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Limits { capacity_sectors, logical_block_size, .. } = self.limits;
        writeln!(out, "ram size={} bs={logical_block_size}", capacity_sectors * SECTOR_SIZE as u64)?;
        self.store.show(out)
    }
}
