//! A RAM disk: keeps the data, and is done with a request as soon as it gets it.

use std::fmt;

use blkmq_sched::Time;

use super::parameter::{Accepts, Parameter, SpecError, Values};
use super::store::{MAX_DATALESS_SECTORS, MAX_SIZE, Store, check_geometry};
use super::{Batch, Driver, Extent, Topology, TopologyError};
use crate::request::limits::{Limits, MAX_DEPTH, MAX_HW_QUEUES, SECTOR_SIZE};

/// The parameters of the RAM disk.
///
#[doc = include_str!("../../docs/ram.md")]
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
    pub(super) fn from_values(values: &Values) -> Result<Self, SpecError> {
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

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        topology.check()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.store.extent(start, bytes)
    }

    fn takes_time(&self) -> bool {
        false
    }

    fn is_concurrent(&self) -> bool {
        true
    }

    /// COST: per page a lock and a look-up; a page that is written for the first time is allocated.
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(mut rq) = batch.next_request() {
            // A write is already durable when it is done, so FUA asks for nothing more.
            let status = self.store.execute(&mut rq, false);
            batch.finish(rq, status);
        }
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Limits { capacity_sectors, logical_block_size, .. } = self.limits;
        writeln!(out, "ram size={} bs={logical_block_size}", capacity_sectors * SECTOR_SIZE as u64)?;
        self.store.show(out)
    }
}

#[cfg(test)]
mod tests {
    use crate::driver::Extent;
    use crate::driver::harness::Harness;
    use crate::driver::spec;
    use crate::request::bio::{Bio, Flags};
    use crate::request::buffer::Buffer;

    /// Red if zeroes that are to leave no hole give memory back, or take none.
    #[test]
    fn zeroes_without_a_hole_take_up_memory() {
        let ram = spec::open("ram,size=1M").unwrap();
        let mut queue = Harness::new(&*ram, 0);
        let nounmap = Flags { nounmap: true, ..Flags::NONE };
        assert!(queue.run(Bio::write(0, Buffer::from(&[9; 4096][..]))).1.is_ok());
        for (flags, extent) in [(nounmap, Extent::data(16384)), (Flags::NONE, Extent::hole(1 << 20))] {
            assert!(queue.run(Bio::write_zeroes(0, 32).with_flags(flags)).1.is_ok());
            assert_eq!(ram.extent(0, 1 << 20), extent);
            let (bio, status) = queue.run(Bio::read(0, Buffer::from(&[1; 16384][..])));
            assert!(status.is_ok() && bio.buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
        }
    }

    #[test]
    fn data_is_kept_until_it_is_discarded_or_zeroed() {
        let ram = spec::open("ram,size=1M,bs=4K").unwrap();
        assert_eq!((ram.limits().capacity_sectors, ram.limits().logical_block_size), (2048, 4096));
        let mut queue = Harness::new(&*ram, 0);
        assert!(queue.run(Bio::write(8, Buffer::from(&[9; 3 * 4096][..]))).1.is_ok());
        assert!(queue.run(Bio::discard(8, 8)).1.is_ok());
        assert!(queue.run(Bio::write_zeroes(24, 8)).1.is_ok());
        let (bio, status) = queue.run(Bio::read(0, Buffer::from(&[1; 5 * 4096][..])));
        assert!(status.is_ok());
        let data = bio.buffers.iter().next().unwrap();
        let blocks: Vec<_> = data.chunks(4096).map(|block| (block[0], block[4095])).collect();
        assert_eq!(blocks, [(0, 0), (0, 0), (9, 9), (0, 0), (0, 0)]);
        assert_eq!(queue.nr_started(), 0, "everything is done at once");
    }
}
