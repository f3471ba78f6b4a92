//! Which requests may pass a scheduler by, under every locking.

use std::sync::Arc;

use crate::device::{Drive, Recorder, open, read, reap, virtual_queue, write};
use blkmq::{
    Client, Clock, GateCounts, IoPriority, Locking, QueueCounters, RequestQueue, Status, Submitter, VirtualClock,
};
use blkmq_sched::Class;

/// How many requests of one class must come in a row until the gate opens for that class: the product's 8, and one
/// before them, which does not count.
const STEADY: u64 = 9;

fn queue(locking: Locking, depth: u16) -> (Arc<Recorder>, RequestQueue) {
    queue_on(Clock::real(), locking, depth)
}

fn queue_on(clock: Clock, locking: Locking, depth: u16) -> (Arc<Recorder>, RequestQueue) {
    let device = Recorder::of_depth(depth);
    let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline").locking(locking).bypass(true).clock(clock);
    (device, q.build().expect("the queue is good"))
}

fn submitter(q: &RequestQueue, class: Class) -> Submitter {
    let priority = IoPriority { class, level: 4 };
    let client = Client { priority, ..Client::new("test") };
    q.submitter(&client).expect("there is a place")
}

fn submit(submitter: &mut Submitter, sector: u64) {
    submitter.submit_now(read(sector, 8));
}

/// Opens the gate for the submitter's class.
fn steady(device: &Recorder, submitter: &mut Submitter) {
    for number in 0..STEADY {
        submit(submitter, 1000 + 100 * number);
        device.finish_oldest(Status::Ok);
        assert_eq!(reap(submitter).len(), 1);
    }
}

fn for_all(test: impl Fn(Locking)) {
    for locking in Locking::ALL {
        eprintln!("{locking}");
        test(locking);
    }
}

#[test]
fn requests_pass_while_nothing_waits_and_only_with_bypass() {
    for_all(|locking| {
        let (device, q) = queue(locking, 4);
        let mut submitter = submitter(&q, Class::BestEffort);
        for (bypass, passed) in [(true, 4), (false, 4), (true, 8)] {
            q.change_knob("bypass", if bypass { "1" } else { "0" }).unwrap().wait().expect("nothing is in flight");
            assert_eq!(q.knob("bypass").as_deref(), Ok(if bypass { "1" } else { "0" }));
            for number in 0..4 {
                submit(&mut submitter, 100 * number);
            }
            assert_eq!((device.nr_held(), q.counters().bypassed), (4, passed));
            (0..4).for_each(|_| device.finish_oldest(Status::Ok));
            assert_eq!(reap(&mut submitter).len(), 4);
        }
    });
}

/// Red if a request passes although another one waits for a tag, or in the scheduler.
#[test]
fn what_waits_is_not_passed() {
    for_all(|locking| {
        let (device, q) = queue(locking, 2);
        let mut submitter = submitter(&q, Class::BestEffort);
        for sector in [0, 100, 300, 200, 500, 400] {
            submit(&mut submitter, sector);
        }
        assert_eq!((device.nr_held(), q.counters().bypassed), (2, 2));
        for _ in 0..4 {
            device.finish_oldest(Status::Ok);
            reap(&mut submitter);
            submit(&mut submitter, 800);
        }
        let seen: Vec<_> = device.take_seen().iter().map(|seen| seen.sector).collect();
        assert_eq!((seen, q.counters().bypassed), (vec![0, 100, 200, 300, 400, 500], 2), "{locking}");
        device.drain(&mut [&mut submitter]);
    });
}

/// Red if the gate stays shut for some time: then many threads come to the scheduler, more slowly than requests come,
/// and something always waits.
#[test]
fn requests_pass_again_as_soon_as_nothing_waits() {
    for_all(|locking| {
        let (device, q) = queue(locking, 2);
        let mut submitter = submitter(&q, Class::BestEffort);
        (0..3).for_each(|number| submit(&mut submitter, 100 * number));
        device.drain(&mut [&mut submitter]);
        assert_eq!(q.counters().bypassed, 2, "{locking}: the third waited");
        submit(&mut submitter, 1000);
        device.finish_oldest(Status::Ok);
        assert_eq!(reap(&mut submitter).len(), 1);
        assert_eq!(q.counters().bypassed, 3, "{locking}");
    });
}

#[test]
fn with_a_bound_on_writes_only_reads_pass() {
    for_all(|locking| {
        let (device, q) = queue(locking, 8);
        q.set_knob("iosched/async_depth", "1").expect("it is in range");
        let mut submitter = submitter(&q, Class::BestEffort);
        submit(&mut submitter, 0);
        for sector in [100, 200] {
            submitter.submit_now(write(sector, 8));
        }
        assert_eq!((q.counters().bypassed, device.nr_held()), (1, 2), "{locking}: one write at a time");
        device.drain(&mut [&mut submitter]);
        // A write that passed is not counted twice when the bound comes later.
        q.set_knob("iosched/async_depth", "65536").expect("it is in range");
        for sector in [300, 400, 500] {
            submitter.submit_now(write(sector, 8));
        }
        assert_eq!((q.counters().bypassed, device.nr_held()), (4, 3), "{locking}");
        q.set_knob("iosched/async_depth", "3").expect("it is in range");
        submitter.submit_now(write(600, 8));
        assert_eq!(device.nr_held(), 3, "{locking}: three are with the device");
        device.drain(&mut [&mut submitter]);
    });
}

/// Red if requests that pass come to the scheduler, or if those that do not pass are not counted there.
#[test]
fn a_request_that_passes_needs_no_hold() {
    for_all(|locking| {
        let (device, q) = queue(locking, 2);
        let mut submitter = submitter(&q, Class::BestEffort);
        (0..2).for_each(|number| submit(&mut submitter, 100 * number));
        let QueueCounters { holds, dispatched, dispatched_fast, bypassed, .. } = q.counters();
        assert_eq!((holds, dispatched + dispatched_fast, bypassed), (0, 0, 2), "{locking}");
        submit(&mut submitter, 200);
        device.drain(&mut [&mut submitter]);
        let QueueCounters { holds, dispatched, dispatched_fast, .. } = q.counters();
        assert!(holds >= 1, "{locking}");
        assert_eq!((dispatched, dispatched_fast), (1, 0), "{locking}: it waited for a tag");
    });
}

/// Red if a gate that a request of another class shuts is not counted once when it is shut and once when it opens, or
/// if the time between is not the queue's.
#[test]
fn a_gate_that_another_class_shuts_is_counted() {
    for_all(|locking| {
        let clock = VirtualClock::new();
        let (device, q) = queue_on(Clock::Virtual(clock.clone()), locking, 4);
        let [mut usual, mut urgent] = [Class::BestEffort, Class::RealTime].map(|class| submitter(&q, class));
        let before = q.counters().gate;
        let since = || q.counters().gate - before;
        let finish = |submitter: &mut Submitter| {
            device.finish_oldest(Status::Ok);
            assert_eq!(reap(submitter).len(), 1);
        };
        clock.advance(100);
        submit(&mut usual, 0);
        finish(&mut usual);
        assert_eq!((q.counters().bypassed, since()), (1, GateCounts::default()), "{locking}: the gate is open");
        submit(&mut urgent, 100);
        finish(&mut urgent);
        clock.advance(1000);
        assert_eq!(since(), GateCounts { opened: 0, shut: 1, shut_ns: 1000 }, "{locking}");
        steady(&device, &mut urgent);
        clock.advance(500);
        assert_eq!(since(), GateCounts { opened: 1, shut: 1, shut_ns: 1000 }, "{locking}");
    });
}

/// Red if time counts in which no request could pass whatever the gate: without bypass, or without a scheduler.
#[test]
fn no_time_counts_where_nothing_may_pass() {
    for (scheduler, spec) in [("mq-deadline", "null"), ("kyber", "null,submit_queues=2,poll_queues=0")] {
        let (q, clock) = virtual_queue(open(spec), |q| q.scheduler(scheduler).bypass(true));
        let begun = q.counters().gate;
        assert!(begun.opened > 0, "{scheduler}: the gate opens with the queue");
        q.change_knob("bypass", "0").unwrap().wait().expect("nothing is in flight");
        clock.advance(1000);
        assert_eq!(q.counters().gate, GateCounts { shut: begun.shut + 1, ..begun }, "{scheduler}");
        q.change_knob("bypass", "1").unwrap().wait().expect("nothing is in flight");
        q.change_scheduler("none").expect("it is known").wait().expect("nothing is in flight");
        let without = q.counters().gate;
        assert_eq!((without.shut, without.shut_ns), (begun.shut + 2, 0), "{scheduler}");
        clock.advance(1000);
        assert_eq!(q.counters().gate, without, "{scheduler}");
    }
}
