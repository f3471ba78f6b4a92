//! As block/017 of blktests: `inflight` counts the requests that the device has, reads and others apart. In addition
//! the statistics also count requests that wait.

use std::sync::{Arc, Mutex};

use crate::device::{Drive, join, open, read, reap, virtual_queue, write};
use blkmq::{Accounting, DiskStats, Notify, RequestQueue, Time};

const MS: u64 = 1_000_000;

/// Device, scheduler, accounting, and how many requests the device takes.
const CASES: [(&str, &str, Accounting, u32); 4] = [
    ("null,irqmode=2,completion_nsec=500ms", "none", Accounting::PerThread, 64),
    ("null,irqmode=2,completion_nsec=500ms", "mq-deadline", Accounting::Shared, 64),
    ("null,irqmode=2,completion_nsec=500ms,hw_queue_depth=2", "none", Accounting::Shared, 2),
    ("null,irqmode=2,completion_nsec=500ms,hw_queue_depth=2", "mq-deadline", Accounting::PerThread, 2),
];

#[test]
fn inflight_is_what_the_device_has_and_field_9_what_the_queue_has() {
    for (device, scheduler, accounting, depth) in CASES {
        let (q, clock) = virtual_queue(open(device), |q| q.scheduler(scheduler).accounting(accounting));
        let mut submitter = join(&q);
        let check = |inflight: [u32; 2], what: &str| {
            assert_eq!(q.inflight(), inflight, "{device} {scheduler} {accounting:?}: {what}");
            assert_eq!(q.busy_tags(), inflight.iter().sum::<u32>(), "{device} {scheduler}: {what}");
        };
        check([0, 0], "nothing was submitted");
        submitter.submit(read(0, 8)).expect("there is a slot");
        assert_eq!(q.disk_stats().in_flight, 0, "what is plugged has not entered");
        submitter.flush_plug();
        check([1, 0], "one read");
        submitter.submit_now(write(100, 8));
        check([1, 1], "a read and a write");
        submitter.submit_now(read(200, 8));
        submitter.submit_now(write(300, 8));
        check(if depth == 2 { [1, 1] } else { [2, 2] }, "two reads and two writes, as far as there are tags");
        assert_eq!(q.disk_stats().in_flight, 4, "what waits counts");

        clock.advance_to(Time(499 * MS));
        assert_eq!(reap(&mut submitter).len(), 0);
        clock.advance_to(Time(500 * MS));
        assert_eq!(reap(&mut submitter).len(), depth.min(4) as usize);
        check(if depth == 2 { [1, 1] } else { [0, 0] }, "the device is through with the first");
        assert_eq!(q.disk_stats().in_flight, u64::from(4 - depth.min(4)));
        clock.advance_to(Time(1000 * MS));
        reap(&mut submitter);
        check([0, 0], "all are through");
        assert_eq!(q.disk_stats().in_flight, 0);
    }
}

/// Notes what the statistics say when its submitter is told of a completion. The statistics take no lock, so they may
/// be read here.
struct Look(RequestQueue, Mutex<Vec<DiskStats>>);

impl Notify for Look {
    fn notify(&self) {
        self.1.lock().expect("no test goes on after a panic").push(self.0.disk_stats());
    }
}

/// Red if `Delivery::send` delivers first and counts then: a submitter that is told of a completion must find it
/// counted.
#[test]
fn what_another_thread_completed_is_counted_before_it_is_delivered() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=1ms"), |q| q);
    let mut submitters = [0; 3].map(|_| join(&q));
    let [first, second, other] = &mut submitters;
    let look = Arc::new(Look(q.clone(), Mutex::default()));
    first.set_notify(Some(look.clone()));
    second.set_notify(Some(look.clone()));
    first.submit_now(read(0, 8));
    second.submit_now(write(100, 8));
    clock.advance(MS);
    look.1.lock().expect("no test goes on after a panic").clear();
    other.poll();
    let seen = std::mem::take(&mut *look.1.lock().expect("no test goes on after a panic"));
    assert_eq!(seen.len(), 2, "each of the two is told once");
    assert_eq!((seen[0].read_ios, seen[1].write_ios), (1, 1), "{seen:?}");
    for submitter in &mut submitters {
        submitter.set_notify(None);
        reap(submitter);
    }
}
