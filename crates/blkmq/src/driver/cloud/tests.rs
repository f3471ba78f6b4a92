//! The volume as a driver, without the block layer.

use blkmq_sched::Time;
use proptest::prelude::*;

use super::{Cloud, Config};
use crate::driver::harness::Harness;
use crate::driver::tests::random_cases;
use crate::driver::{Driver, Topology};
use crate::request::Status;
use crate::request::bio::Bio;
use crate::request::buffer::Buffer;

const US: u64 = 1000;

fn cloud(parameters: &str) -> Cloud {
    Cloud::new(parameters.parse::<Config>().unwrap())
}

fn read(number: u64) -> Bio {
    Bio::read(8 * number, Buffer::zeroed(4096)).with_user_data(number)
}

fn numbers(done: Vec<(Bio, Status)>) -> Vec<u64> {
    done.into_iter().inspect(|done| assert!(done.1.is_ok())).map(|(bio, _)| bio.user_data).collect()
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
fn each_completes_when_it_is_due_and_a_request_given_up_to_a_timeout_never() {
    let cloud = cloud("iops=1000,burst=1ms,hold=3ms,latency=10us,spread=0");
    let mut queue = Harness::new(&cloud, 0);
    (0..3).for_each(|number| queue.push(read(number)));
    assert!(queue.issue(Time(0)).is_empty());
    assert_eq!(queue.due_times(), (3, Some(Time(10 * US))));
    assert!(queue.poll(Time(10 * US - 1)).is_empty());
    let (bio, status) = queue.expire(2, Time(1)).expect("the volume gives it up");
    assert_eq!((bio.user_data, status), (2, Status::Timeout));
    assert_eq!(numbers(queue.poll(Time(10 * US))), [0]);
    assert_eq!(cloud.next_event(0).time(), Some(Time(3010 * US)));
    assert_eq!(numbers(queue.poll(Time(3010 * US))), [1]);
    assert_eq!(cloud.next_event(0).time(), None);
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

#[test]
fn what_is_wrong_with_a_parameter_is_said() {
    for (parameters, reason) in [
        ("iops=0", "iops=\"0\": give a number of operations a second from 1 to 1000000000"),
        ("mbps=2G", "mbps=\"2G\": give a number of MB/s from 1 to 1000000"),
        ("hold=2s", "hold=\"2s\": give a time from 0 to 1000000000 (in ns, or with ns, us, ms, s)"),
        ("burst=2d", "burst=\"2d\": \"d\" is no unit; there are: ns, us, ms, s"),
        ("size=2G,gb=1", "give size or gb, not both"),
        ("bs=3000", "bs=3000 is not one of 512, 1024, 2048, 4096"),
    ] {
        assert_eq!(parameters.parse::<Config>().unwrap_err().to_string(), reason, "{parameters}");
    }
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
        let run = |looks: bool| {
            let cloud = cloud(&parameters);
            let mut queue = Harness::new(&cloud, 0);
            let (mut now, mut over) = (Time(0), Vec::new());
            let mut take = |queue: &mut Harness<'_>, at: Time| {
                over.extend(numbers(queue.poll(at)).into_iter().map(|number| (number, at)));
            };
            for (number, &(gap, is_write, nr, look)) in (0..).zip(&steps) {
                let until = now.after(gap * US);
                while let Some(at) = cloud.next_event(0).time().filter(|at| *at <= until) {
                    take(&mut queue, at);
                }
                now = until;
                if looks && look {
                    take(&mut queue, now);
                }
                let buffer = Buffer::zeroed(nr as usize * 512);
                let bio = if is_write { Bio::write(0, buffer) } else { Bio::read(0, buffer) };
                queue.push(bio.with_user_data(number));
                prop_assert!(queue.issue(now).is_empty());
            }
            while let Some(at) = cloud.next_event(0).time() {
                take(&mut queue, at);
            }
            Ok(over)
        };
        let over = run(false)?;
        let mut ids: Vec<_> = over.iter().map(|(number, _)| *number).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..steps.len() as u64).collect::<Vec<_>>());
        let end = over.iter().map(|(_, at)| at.0).max().unwrap_or(0);
        let most = iops * (end + burst * 1_000_000) / 1_000_000_000 + 1;
        prop_assert!(over.len() as u64 <= most, "{} in {end} ns", over.len());
        prop_assert_eq!(over, run(true)?);
    }
}
