//! A RAM disk: keeps the data, and is done with a request as soon as it gets it.

use blkmq_sched::Time;

use super::model::{Model, Profile, limits};
use super::parameter::parameters;
use super::parameter::units::{DEPTH, QUEUES, count, size};
use super::pending::Timed;
use super::store::{MAX_SIZE, Store};
use super::{Batch, Topology};
use crate::request::limits::Limits;

parameters! {
/// What a RAM disk is like.
///
/// Read it from a spec, which has a default for everything: `"size=64M".parse::<Config>()`.
pub struct Config;

/// The parameters of the RAM disk.
///
#[doc = include_str!("../../docs/ram.md")]
pub const PARAMETERS = {
    size: u64 = size(1, 512, MAX_SIZE), "1G", "size of the device in bytes; memory is taken as it is written";
    bs: u32 = size(1, 512, 4096), "512", "logical block size in bytes, a power of two";
    submit_queues: u16 = count("", 1, QUEUES), "1", "hardware queues; more than there are CPUs is fine";
    hw_queue_depth: u16 = count("", 1, DEPTH), "64", "requests that a hardware queue takes at once";
}}

/// The RAM disk.
pub type Ram = Model<Config>;

impl Profile for Config {
    const NAME: &'static str = "ram";
    const LINES: [&'static str; 2] = ["ram.next_event", "ram.pending"];
    type Shared = ();
    type Commands = Timed;

    fn machine(&self) {}

    fn store(&self) -> Option<Store> {
        Some(Store::new(None))
    }

    fn limits(&self) -> Limits {
        limits(self.bs, self.size)
    }

    fn topology(&self) -> Topology {
        let depth = self.hw_queue_depth;
        Topology::new(self.submit_queues, depth)
    }

    fn takes_time(&self) -> bool {
        false
    }

    fn is_concurrent(&self) -> bool {
        true
    }

    fn is_inline(_: &Ram, _: u16) -> bool {
        true
    }

    /// COST: per page a lock and a look-up; a page that is written for the first time is allocated.
    fn queue_rqs(ram: &Ram, _hctx: u16, _: Option<&mut Timed>, batch: &mut Batch<'_>, _now: Time) {
        while let Some(mut rq) = batch.next_request() {
            // A write is already durable when it is done, so FUA asks for nothing more.
            let status = ram.execute(&mut rq, false);
            batch.finish(rq, status);
        }
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
