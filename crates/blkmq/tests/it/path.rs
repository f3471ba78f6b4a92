//! The way of a request, end to end, in one thread.

use std::sync::Arc;

use crate::device::{Drive, ONE_QUEUE, Recorder, join, open, read, virtual_queue};
use blkmq::driver::Topology;
use blkmq::{Bio, Buffer, Client, Locking, RequestQueue, Status, Time};

/// Red if a thread goes on choosing for a hardware queue that has no tags, because another one has some: what waits for
/// the first would leave the scheduler, and keep no order there and merge with nothing.
#[test]
fn what_lacks_a_tag_stays_in_the_scheduler() {
    for locking in Locking::ALL {
        let driver =
            Recorder::new(open("null,size=64M").limits(), Topology { default_queues: 2, depth: 2, ..ONE_QUEUE });
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
        driver.drain(&mut [&mut second]);
        first.poll();
    }
}

#[test]
fn virtual_time_passes_while_waiting() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=500000,hw_queue_depth=1"), |q| q);
    let mut submitter = join(&q);
    for block in 0..10 {
        submitter.submit(Bio::read(block * 80, Buffer::zeroed(4096))).unwrap();
    }
    assert_eq!(submitter.finish().len(), 10);
    assert_eq!(clock.now(), Time(5_000_000));
}

/// Red if a thread that has a tag begins its search at the same software queue each time.
#[test]
fn software_queues_take_turns() {
    let device = Recorder::of_depth(1);
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().unwrap();
    let mut submitters: Vec<_> = (0..3).map(|_| join(&q)).collect();
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
    assert_eq!(submitters.iter_mut().map(|submitter| submitter.finish().len()).collect::<Vec<_>>(), [5, 5, 5]);
}

/// Red if a device may be behind two queues: each queue numbers tags and requests by itself, so the device would take
/// those of one queue for those of the other.
#[test]
fn a_device_serves_one_queue_at_a_time() {
    let device = open("ram,size=1M");
    let build = || RequestQueue::builder(Arc::clone(&device)).build();
    let q = build().unwrap();
    assert!(build().unwrap_err().to_string().contains("the device 'ram' is behind a queue already"));
    drop(RequestQueue::builder(open("ram,size=1M")).build().expect("another device may"));
    drop(q);
    assert!(build().is_ok(), "it is free again");
}
