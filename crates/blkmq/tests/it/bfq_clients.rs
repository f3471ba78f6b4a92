//! bfq in a queue whose clients come and go: what a change lets go goes at once, and what bypasses bfq is bounded.

use std::sync::Arc;

use crate::device::{Drive, Notified, ONE_QUEUE, Recorder, read, reap, virtual_queue, write};
use blkmq::{Client, Limits, Locking, RequestQueue, Status, Submitter, VirtualClock};

fn queue(locking: Locking, bypass: bool, nr_requests: u32) -> (Arc<Recorder>, RequestQueue, VirtualClock) {
    let limits = Limits { capacity_sectors: 1 << 20, rotational: true, ..Limits::default() };
    let device = Recorder::new(limits, ONE_QUEUE);
    let (q, clock) =
        virtual_queue(device.clone(), |q| q.scheduler("bfq").locking(locking).bypass(bypass).nr_requests(nr_requests));
    // Only shares count.
    q.set_knob("iosched/low_latency", "0").expect("it is there");
    (device, q, clock)
}

fn submitter(q: &RequestQueue, name: &str) -> Submitter {
    q.submitter(&Client::new(name)).expect("there is a place")
}

fn finish(device: &Recorder, submitter: &mut Submitter) {
    device.finish_oldest(Status::Ok);
    assert_eq!(reap(submitter).len(), 1);
}

/// Red if others wait for the next request of a client that has left: then they wait until bfq has waited long enough.
#[test]
fn no_request_waits_for_a_client_that_has_left() {
    for locking in Locking::ALL {
        let (device, q, clock) = queue(locking, false, 256);
        let (mut first, mut second) = (submitter(&q, "a"), submitter(&q, "b"));
        for sector in 0..8 {
            // It reads on and thinks shortly, so it is worth waiting for.
            clock.advance(10_000);
            first.submit_now(read(8 * sector, 8));
            clock.advance(1_000_000);
            finish(&device, &mut first);
        }
        second.submit_now(read(1 << 19, 8));
        second.poll();
        assert_eq!(device.nr_held(), 0, "{locking}: bfq waits for the next request of the first");
        let told = Notified::set(&mut second);
        let _ = told.since_last();
        drop(first);
        assert!(told.since_last() > 0, "{locking}: the second has to look");
        second.poll();
        assert_eq!(device.nr_held(), 1, "{locking}: its request goes");
        finish(&device, &mut second);
    }
}

/// Red if writes that bypass bfq take more room than bfq admits, and leave none for others.
#[test]
fn writes_do_not_pass_beyond_what_bfq_admits() {
    for locking in Locking::ALL {
        let (device, q, _) = queue(locking, true, 64);
        let (mut first, mut second) = (submitter(&q, "a"), submitter(&q, "b"));
        for number in 0..20 {
            first.submit_now(write(100 * number, 8));
            finish(&device, &mut first);
        }
        // The gate is opened anew while the first has nothing outstanding.
        q.set_knob("iosched/slice_idle", "7").expect("it is there");
        for number in 0..64 {
            first.submit_now(write(100 * number, 8));
        }
        assert!(device.nr_held() <= 32, "{locking}: the device has {} writes", device.nr_held());
        second.submit_now(read(1 << 19, 8));
        let seen = device.take_seen();
        assert!(seen.iter().any(|seen| seen.sector == 1 << 19), "{locking}: there is room for a read");
        device.drain(&mut [&mut first, &mut second]);
    }
}
