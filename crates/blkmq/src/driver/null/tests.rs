//! The null device as a driver, without the block layer.

use blkmq_sched::{Op, Time};

use super::{Config, Null};
use crate::driver::harness::Harness;
use crate::driver::tests::numbers;
use crate::driver::{Driver, Topology};
use crate::request::Status;
use crate::request::bio::{Bio, Flags};
use crate::request::buffer::{Buffer, Buffers};

fn null(parameters: &str) -> Null {
    Null::new(parameters.parse::<Config>().unwrap())
}

/// A write of 4 KiB that carries `number` as its user data.
fn write(number: u64) -> Bio {
    Bio::write(8 * number, Buffer::zeroed(4096)).with_user_data(number)
}

#[test]
fn irqmode_0_finishes_what_it_is_given_at_once() {
    let null = null("irqmode=0");
    let mut queue = Harness::new(&null, 0);
    (0..4).for_each(|number| queue.push(write(number)));
    assert_eq!(numbers(queue.issue(Time(5))), [0, 1, 2, 3]);
    assert_eq!((queue.nr_started(), null.next_event(0).time()), (0, None));
    assert!(null.is_concurrent());
}

#[test]
fn irqmode_1_completes_at_the_next_poll_even_one_with_an_older_clock() {
    let null = null("irqmode=1");
    let mut queue = Harness::new(&null, 0);
    (0..4).for_each(|number| queue.push(write(number)));
    assert_eq!(numbers(queue.issue(Time(5))), []);
    assert!(null.next_event(0).time().is_some_and(|time| time <= Time(5)));
    assert_eq!(queue.due_times(), (4, null.next_event(0).time()));
    assert_eq!(numbers(queue.poll(Time(4))), [0, 1, 2, 3]);
    assert_eq!((queue.nr_started(), null.next_event(0).time()), (4, None));
    assert_eq!(numbers(queue.poll(Time(9))), []);
}

#[test]
fn irqmode_2_completes_completion_nsec_after_the_issue_and_says_when() {
    let null = null("irqmode=2,completion_nsec=10us");
    let mut queue = Harness::new(&null, 0);
    (0..2).for_each(|number| queue.push(write(number)));
    queue.issue(Time(1_000));
    queue.push(write(2));
    queue.issue(Time(3_000));
    assert_eq!(null.next_event(0).time(), Some(Time(11_000)));
    assert_eq!(queue.due_times(), (3, Some(Time(11_000))));
    assert_eq!(numbers(queue.poll(Time(10_999))), []);
    assert_eq!(numbers(queue.poll(Time(11_000))), [0, 1]);
    assert_eq!(null.next_event(0).time(), Some(Time(13_000)));
    assert_eq!(queue.due_times(), (1, Some(Time(13_000))));
    assert_eq!(numbers(queue.poll(Time(20_000))), [2]);
    assert_eq!(null.next_event(0).time(), None);
}

#[test]
fn a_polled_queue_completes_at_the_next_poll_whatever_the_irqmode() {
    for irqmode in 0..3 {
        let null = null(&format!("submit_queues=2,read_queues=1,poll_queues=1,irqmode={irqmode}"));
        let mut queue = Harness::new(&null, 3);
        queue.push(write(0));
        assert_eq!(numbers(queue.issue(Time(7))), [], "irqmode {irqmode}");
        assert_eq!(numbers(queue.poll(Time(7))), [0], "irqmode {irqmode}");
    }
}

#[test]
fn what_requeue_strikes_is_refused_or_given_back_and_nothing_is_lost_or_overtaken_by_a_refusal() {
    let null = null("irqmode=0,requeue=3,100,0,-1");
    let mut queue = Harness::new(&null, 0);
    (0..8).for_each(|number| queue.push(write(number)));
    // The third request that the device sees is refused: it stays in front, and the batch ends.
    assert_eq!(numbers(queue.issue(Time(0))), [0, 1]);
    assert_eq!((queue.nr_refused(), queue.nr_requeued()), (1, 0));
    // The sixth request is given back, the ninth refused, and so on.
    assert_eq!(numbers(queue.issue(Time(0))), [2, 3, 5, 6]);
    assert_eq!((queue.nr_refused(), queue.nr_requeued()), (2, 1));
    assert_eq!(numbers(queue.issue(Time(0))), [4, 7]);
}

#[test]
fn a_swallowed_request_ends_only_by_its_timeout() {
    let null = null("irqmode=1,memory_backed=1,timeout=2,100,0,1");
    let mut queue = Harness::new(&null, 0);
    (0..3).for_each(|number| queue.push(write(number)));
    queue.issue(Time(0));
    assert_eq!(numbers(queue.poll(Time(1 << 60))), [0, 2]);
    assert_eq!(null.next_event(0).time(), None);
    let (bio, status) = queue.expire(1, Time(1 << 60)).expect("the device gives it up");
    assert_eq!((bio.user_data, status), (1, Status::Timeout));
}

#[test]
fn bad_blocks_fail_what_touches_them_and_nothing_else() {
    let null = null("memory_backed=1,discard=1,badblocks=16-23");
    let mut queue = Harness::new(&null, 0);
    let mut status = |bio| queue.run(bio).1;
    for (sector, nr, expected) in [
        (0, 16, Status::Ok),
        (0, 17, Status::Medium),
        (23, 1, Status::Medium),
        (24, 8, Status::Ok),
        (8, 64, Status::Medium),
    ] {
        assert_eq!(status(Bio::read(sector, Buffer::zeroed(nr * 512))), expected, "read {sector}+{nr}");
        assert_eq!(status(Bio::discard(sector, nr as u64)), expected, "discard {sector}+{nr}");
    }
    assert_eq!(status(Bio::flush()), Status::Ok);
}

#[test]
fn data_comes_back_whatever_the_scatter_lists() {
    let null = null("irqmode=0,memory_backed=1");
    let mut queue = Harness::new(&null, 0);
    // 11 sectors from sector 5: over the edge of a page, and in pieces that end on no page.
    let data: Vec<u8> = (0..11 * 512).map(|at| (at % 251) as u8).collect();
    let pieces = |sizes: &[usize]| {
        let mut rest = &data[..];
        let cut = |size: &usize| Buffer::from(rest.split_off(..size * 512).unwrap());
        Buffers::from(sizes.iter().map(cut).collect::<Vec<_>>())
    };
    assert!(queue.run(Bio::write(5, pieces(&[1, 7, 2, 1]))).1.is_ok());
    let empty = [4, 4, 3].map(|size| Buffer::zeroed(size * 512)).into_iter().collect::<Vec<_>>();
    let (bio, status) = queue.run(Bio::read(5, empty));
    assert!(status.is_ok());
    assert_eq!(bio.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<_>>(), data);
    let (bio, _) = queue.run(Bio::read(0, Buffer::from(&[7; 32 * 512][..])));
    let read = bio.buffers.iter().next().unwrap().to_vec();
    assert!(read[..5 * 512].iter().chain(&read[16 * 512..]).all(|&byte| byte == 0), "what was not written is zero");
}

#[test]
fn a_device_with_fua_off_leaves_forced_writes_to_the_block_layer() {
    let null = null("irqmode=0,memory_backed=1,cache_size=1,fua=0");
    assert!(null.limits().write_cache && !null.limits().fua);
    let mut queue = Harness::new(&null, 0);
    let bio = Bio::write(0, Buffer::from(&[1; 512][..]));
    queue.run(bio.with_flags(Flags { fua: true, ..Flags::default() }));
    null.lose_power();
    null.restore_power();
    assert_eq!(queue.run(Bio::read(0, Buffer::zeroed(512))).0.buffers.iter().next().unwrap()[0], 0);
}

#[test]
fn the_number_of_hardware_queues_changes_and_new_ones_work() {
    let null = null("irqmode=2");
    let topology = Topology { default_queues: 3, read_queues: 2, poll_queues: 1, depth: 8 };
    null.set_topology(topology).unwrap();
    for hctx in 0..6 {
        let mut queue = Harness::new(&null, hctx);
        queue.push(write(u64::from(hctx)));
        queue.issue(Time(0));
        let at_once = queue.poll(Time(0)).len();
        assert_eq!(at_once, usize::from(hctx == 5), "hctx {hctx}: only the last one is polled");
        assert_eq!(at_once + queue.poll(Time(10_000)).len(), 1, "hctx {hctx}");
    }
    for wrong in [
        Topology { default_queues: 0, ..topology },
        Topology { default_queues: 1022, ..topology },
        Topology { depth: 0, ..topology },
    ] {
        assert!(null.set_topology(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn limits_follow_the_parameters_with_null_blks_defaults() {
    let limits = null("").limits();
    assert_eq!((limits.capacity_sectors, limits.logical_block_size), (250 << 21, 512));
    assert_eq!((limits.write_cache, limits.fua, limits.rotational), (false, false, false));
    assert_eq!((limits.max_op_sectors(Op::Discard), limits.max_op_sectors(Op::WriteZeroes)), (0, 0));
    let topology = Topology { default_queues: 1, read_queues: 0, poll_queues: 1, depth: 64 };
    assert_eq!(null("").topology(), topology);
    let limits = null("memory_backed=1,discard=1,cache_size=2,bs=4K,gb=1,max_sectors=64,rotational=1").limits();
    assert_eq!((limits.capacity_sectors, limits.logical_block_size, limits.max_sectors), (1 << 21, 4096, 64));
    assert_eq!((limits.write_cache, limits.fua, limits.rotational), (true, true, true));
    assert!(limits.max_op_sectors(Op::Discard) > 0 && limits.max_op_sectors(Op::WriteZeroes) > 0);
}
