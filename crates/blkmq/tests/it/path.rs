//! The way of a request, end to end, in one thread.

use std::sync::Arc;

use blkmq::driver::{Topology, spec};
use blkmq::{Bio, Buffer, Client, Clock, Flags, Limits, Locking, RequestQueue, Status, Submitter, Time, VirtualClock};

use crate::device::{ONE_QUEUE, Recorder, read};

fn queue(device: &str, scheduler: &str) -> RequestQueue {
    let driver = spec::open(device).expect("the spec is good");
    RequestQueue::builder(driver).scheduler(scheduler).build().expect("the queue is good")
}

fn finish(submitter: &mut Submitter) -> Vec<blkmq::Completion> {
    let mut done = Vec::new();
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        done.extend(std::iter::from_fn(|| submitter.reap()));
    }
    done
}

/// Red if a thread goes on choosing for a hardware queue that has no tags, because another one has some: what waits for
/// the first would leave the scheduler, and keep no order there and merge with nothing.
#[test]
fn what_lacks_a_tag_stays_in_the_scheduler() {
    for locking in Locking::ALL {
        let driver = Recorder::new(
            spec::open("null,size=64M").expect("the spec is good").limits(),
            Topology { default_queues: 2, depth: 2, ..ONE_QUEUE },
        );
        let q = RequestQueue::builder(driver.clone()).scheduler("mq-deadline").locking(locking).bypass(false);
        let q = q.build().unwrap();
        let [mut first, mut second] = ["first", "second"].map(|name| q.submitter(&Client::new(name)).unwrap());
        for sector in 0..20 {
            second.submit(read(sector * 100, 8)).unwrap();
        }
        second.flush_plug();
        let dump = q.dump();
        let of = |start: &str| {
            let found = dump.split_once(start).unwrap_or_else(|| panic!("{start}: {dump}")).1;
            found.split_whitespace().next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
        };
        let parked = of("hctx 0: dispatch list ") + of("hctx 1: dispatch list ");
        assert!(driver.nr_held() == 2 && parked <= 2, "{locking}: {parked} on dispatch lists\n{dump}");
        assert_eq!(of("mq-deadline holds ") + parked + 2, 20, "{locking}: {dump}");
        while second.nr_outstanding() > 0 {
            (0..driver.nr_held()).for_each(|_| driver.finish_oldest(Status::Ok));
            second.poll();
            while second.reap().is_some() {}
        }
        first.poll();
    }
}

#[test]
fn what_is_written_is_read_back() {
    for scheduler in blkmq::scheduler_names() {
        for irqmode in 0..3 {
            let q = queue(&format!("null,memory_backed=1,size=64M,irqmode={irqmode},hw_queue_depth=4"), scheduler);
            let mut submitter = q.submitter(&Client::new("test")).unwrap();
            for block in 0..100_u64 {
                let data = Buffer::from(&[block as u8 + 1; 4096][..]);
                submitter.submit(Bio::write(block * 16, data).with_user_data(block)).unwrap();
            }
            let done = finish(&mut submitter);
            assert_eq!(done.len(), 100);
            assert!(done.iter().all(|completion| completion.status == Status::Ok));
            for block in 0..100 {
                submitter.submit(Bio::read(block * 16, Buffer::zeroed(4096)).with_user_data(block)).unwrap();
            }
            for completion in finish(&mut submitter) {
                let expected = completion.bio.user_data as u8 + 1;
                let buffer = completion.bio.buffers.iter().next().unwrap();
                assert!(buffer.iter().all(|byte| *byte == expected), "{scheduler} irqmode {irqmode}");
            }
            assert_eq!(q.busy_tags(), 0);
            assert_eq!(q.counters().entered, q.counters().completed);
        }
    }
}

#[test]
fn contiguous_writes_in_a_plug_merge_and_each_completes() {
    let q = queue("null,memory_backed=1,size=64M", "mq-deadline");
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    for block in 0..16_u64 {
        submitter.submit(Bio::write(block * 8, Buffer::from(&[block as u8; 4096][..]))).unwrap();
    }
    assert_eq!(finish(&mut submitter).len(), 16);
    assert_eq!(q.counters().merges_plug, 15);
    assert_eq!(q.counters().issued, 1);
    submitter.submit(Bio::read(0, Buffer::zeroed(16 * 4096))).unwrap();
    let read = finish(&mut submitter).pop().unwrap();
    let bytes = read.bio.buffers.iter().next().unwrap();
    assert!((0..16).all(|block| bytes[block * 4096..][..4096].iter().all(|byte| *byte == block as u8)));
}

#[test]
fn a_large_bio_is_split_and_completes_once() {
    let q = queue("null,memory_backed=1,size=64M,max_sectors=8", "mq-deadline");
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    let data: Vec<u8> = (0..100_000 / 512 * 512).map(|at| (at / 512) as u8).collect();
    submitter.submit(Bio::write(8, Buffer::from(&data[..]))).unwrap();
    assert_eq!(finish(&mut submitter).len(), 1);
    submitter.submit(Bio::read(8, Buffer::zeroed(data.len()))).unwrap();
    let done = finish(&mut submitter);
    assert_eq!(done.len(), 1);
    assert_eq!(&done[0].bio.buffers.iter().next().unwrap()[..], &data[..]);
    assert!(q.counters().issued >= 48);
}

#[test]
fn a_flush_and_a_fua_write_complete_on_a_cached_device() {
    for (scheduler, fua) in [("none", 0), ("none", 1), ("mq-deadline", 0), ("mq-deadline", 1)] {
        let q = queue(&format!("null,memory_backed=1,size=64M,cache_size=1,fua={fua}"), scheduler);
        let mut submitter = q.submitter(&Client::new("test")).unwrap();
        submitter.submit(Bio::write(0, Buffer::zeroed(4096))).unwrap();
        submitter.submit(Bio::flush()).unwrap();
        let flags = Flags { fua: true, preflush: true, ..Flags::default() };
        submitter.submit(Bio::write(64, Buffer::zeroed(4096)).with_flags(flags)).unwrap();
        let done = finish(&mut submitter);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|completion| completion.status == Status::Ok));
    }
}

#[test]
fn virtual_time_passes_while_waiting() {
    let clock = VirtualClock::new();
    let driver = spec::open("null,irqmode=2,completion_nsec=500000,hw_queue_depth=1").unwrap();
    let q = RequestQueue::builder(driver).clock(Clock::Virtual(clock.clone())).build().unwrap();
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    for block in 0..10 {
        submitter.submit(Bio::read(block * 80, Buffer::zeroed(4096))).unwrap();
    }
    assert_eq!(finish(&mut submitter).len(), 10);
    assert_eq!(clock.now(), Time(5_000_000));
}

#[test]
fn the_scheduler_changes_between_requests() {
    let q = queue("null,irqmode=2,completion_nsec=10000", "mq-deadline");
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    for name in ["none", "mq-deadline", "none"] {
        for block in 0..40 {
            submitter.submit(Bio::read(block * 80, Buffer::zeroed(4096))).unwrap();
        }
        let mut change = q.change_scheduler(name).unwrap();
        while change.poll().is_none() {
            submitter.poll();
        }
        drop(change);
        assert_eq!(finish(&mut submitter).len(), 40);
        assert_eq!(q.scheduler(), name);
    }
}

/// Red if a thread that has a tag begins its search at the same software queue each time.
#[test]
fn software_queues_take_turns() {
    let limits = Limits { capacity_sectors: 1 << 20, ..Limits::default() };
    let device = Recorder::new(limits, Topology { depth: 1, ..ONE_QUEUE });
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().unwrap();
    let mut submitters: Vec<_> = (0..3).map(|_| q.submitter(&Client::new("test")).unwrap()).collect();
    for (number, submitter) in (0..).zip(&mut submitters) {
        for place in 0..5 {
            submitter.submit(read(number * 1000 + place * 10, 1)).unwrap();
        }
        submitter.flush_plug();
    }
    let mut whose = Vec::new();
    while device.nr_held() > 0 {
        whose.extend(device.take_seen().iter().map(|seen| seen.sector / 1000));
        device.finish_oldest(Status::Ok);
        submitters[0].poll();
    }
    // The first operation came when no other submitter had any.
    assert_eq!(whose, [0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2]);
    assert_eq!(submitters.iter_mut().map(|submitter| finish(submitter).len()).collect::<Vec<_>>(), [5, 5, 5]);
}

/// Red if a device may be behind two queues: each queue numbers tags and requests by itself, so the device would take
/// those of one queue for those of the other.
#[test]
fn a_device_serves_one_queue_at_a_time() {
    let device = spec::open("ram,size=1M").unwrap();
    let build = || RequestQueue::builder(Arc::clone(&device)).build();
    let q = build().unwrap();
    assert!(build().unwrap_err().to_string().contains("the device 'ram' is behind a queue already"));
    drop(RequestQueue::builder(spec::open("ram,size=1M").unwrap()).build().expect("another device may"));
    drop(q);
    assert!(build().is_ok(), "it is free again");
}
