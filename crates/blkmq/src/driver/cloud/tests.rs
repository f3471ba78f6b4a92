//! The volume as a driver, without the block layer.

use blkmq_sched::Time;
use proptest::prelude::*;

use super::{Cloud, Config};
use crate::driver::harness::Harness;
use crate::driver::tests::{numbers, play, random_cases};
use crate::driver::{Driver, Topology};
use crate::request::bio::Bio;
use crate::request::buffer::Buffer;

const US: u64 = 1000;

fn cloud(parameters: &str) -> Cloud {
    Cloud::new(parameters.parse::<Config>().unwrap())
}

fn read(number: u64) -> Bio {
    Bio::read(8 * number, Buffer::zeroed(4096)).with_user_data(number)
}

/// Red if an operation costs something else than its kind and size say: each test lets exactly so many pass.
#[test]
fn a_write_costs_an_operation_for_each_unit_and_a_read_one() {
    // Credit for four operations.
    let cloud = cloud("iops=4000,burst=1ms,hold=50ms,latency=0,spread=0,write_unit=4096");
    let mut queue = Harness::new(&cloud, 0);
    let write = |kib: usize| Bio::write(0, Buffer::zeroed(kib << 10));
    for (number, bio) in [write(9), Bio::read(0, Buffer::zeroed(64 << 10)), write(4)].into_iter().enumerate() {
        queue.push(bio.with_user_data(number as u64));
    }
    assert!(queue.issue(Time(0)).is_empty());
    assert_eq!(numbers(queue.poll(Time(0))), [0, 1], "three operations and one");
    assert_eq!(numbers(queue.poll(Time(50_000 * US))), [2]);
}

#[test]
fn the_number_of_hardware_queues_changes_and_they_share_the_ceilings() {
    let cloud = cloud("iops=1000,burst=1ms,hold=3ms,latency=0,spread=0");
    let topology = Topology::new(3, 1023);
    cloud.set_topology(topology).unwrap();
    assert!(cloud.set_topology(Topology { default_queues: 0, ..topology }).is_err());
    for (hctx, due) in [(0, 0), (1, 3), (2, 3)] {
        let mut queue = Harness::new(&cloud, hctx);
        queue.push(read(u64::from(hctx)));
        queue.issue(Time(0));
        assert_eq!(queue.due_times().1, Some(Time(due * 1000 * US)));
        assert_eq!(numbers(queue.poll(Time(due * 1000 * US))), [u64::from(hctx)]);
    }
}

#[test]
fn data_is_kept_if_asked_for_and_nothing_has_to_be_flushed() {
    let cloud = cloud("memory_backed=1,size=16M");
    assert!(cloud.keeps_data() && !cloud.limits().write_cache);
    let mut queue = Harness::new(&cloud, 0);
    assert!(queue.run(Bio::write(8, Buffer::from(&[7; 512][..]))).1.is_ok());
    let (bio, status) = queue.run(Bio::read(8, Buffer::zeroed(512)));
    assert!(status.is_ok() && bio.buffers.iter().all(|buffer| buffer[..] == [7; 512]));
}

proptest! {
    #![proptest_config(random_cases(128))]

    /// Whatever is asked, and whenever the device is looked at, each request completes once, at the time that was said
    /// when it came, and within the ceilings. A second volume with the same seed says the same.
    #[test]
    fn each_completes_once_at_a_time_that_the_seed_decides_and_never_too_many(
        seed in 0..4_u64,
        steps in prop::collection::vec((0..400_u64, any::<bool>(), 1..64_u64, any::<bool>()), 1..150),
    ) {
        let (iops, burst) = (5_000, 4);
        let parameters = format!("seed={seed},size=64M,iops={iops},burst={burst}ms,mbps=40,write_unit=1G");
        let run = |looks| {
            let bios = steps.iter().map(|&(gap, is_write, nr, look)| {
                let buffer = Buffer::zeroed(nr as usize * 512);
                (gap, if is_write { Bio::write(0, buffer) } else { Bio::read(0, buffer) }, look)
            });
            play(&cloud(&parameters), bios, looks)
        };
        let over = run(false);
        let end = over.iter().map(|(_, at)| at.0).max().unwrap_or(0);
        let most = iops * (end + burst * 1_000_000) / 1_000_000_000 + 1;
        prop_assert!(over.len() as u64 <= most, "{} in {end} ns", over.len());
        prop_assert_eq!(over, run(true));
    }
}
