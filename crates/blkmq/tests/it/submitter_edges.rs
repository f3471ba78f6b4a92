//! What a submitter promises at the edges: late plugs, full queues, closed queues.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::device::front::Front;
use crate::device::{Drive, ONE_QUEUE, Recorder, join, open, reap, virtual_queue, write};
use blkmq::driver::TimeoutAction;
use blkmq::{Limits, Op, RequestQueue, RqId, Status, Submitter, Time, Waited};

/// A device that takes eight sectors at a time, and a submitter of a queue in front of it.
fn of_eight_sectors(scheduler: &str) -> (Arc<Recorder>, Submitter) {
    let device = Recorder::new(Limits { max_sectors: 8, capacity_sectors: 1 << 20, ..Limits::default() }, ONE_QUEUE);
    let q = RequestQueue::builder(device.clone()).scheduler(scheduler).build().expect("the queue is good");
    (device, join(&q))
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn time_in_the_plug_does_not_count_as_the_devices() {
    // Gives a request up when the queue asks about it, and otherwise completes it in the 41st second.
    let driver = Front::<Mutex<Vec<RqId>>> {
        queue_rqs: |front, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                front.state.lock().expect("nobody panicked").push(batch.start(rq));
            }
        },
        poll: |front, _, done, now| {
            if now >= Time(41 * SECOND) {
                for id in front.state.lock().expect("nobody panicked").drain(..) {
                    done.complete(id, Status::Ok).expect("it was given up");
                }
            }
        },
        timeout: |front, _, id, _| {
            front.state.lock().expect("nobody panicked").retain(|held| *held != id);
            TimeoutAction::Done
        },
        ..Front::new(Recorder::of_depth(64), Mutex::default())
    };
    let (q, clock) = virtual_queue(Arc::new(driver), |q| q);
    let mut submitter = join(&q);
    submitter.submit(write(0, 1)).unwrap();
    clock.advance(40 * SECOND);
    submitter.flush_plug();
    assert!(reap(&mut submitter).is_empty());
    clock.advance(2 * SECOND);
    let done = reap(&mut submitter);
    assert_eq!(done[0].status, Status::Ok, "the device had it for two seconds");
    assert_eq!((done[0].submitted, done[0].issued), (Time(0), Time(40 * SECOND)));
}

/// When each operation was submitted and issued, in seconds.
fn times(done: &[blkmq::Completion]) -> Vec<(u64, u64)> {
    done.iter().map(|done| (done.submitted.0 / SECOND, done.issued.0 / SECOND)).collect()
}

/// Red if `submit_batch` uses the time of a plug that was begun before it, or if `flush_batch` uses the time of a plug
/// that could not be passed on.
#[test]
fn a_batch_is_issued_when_it_was_begun_unless_it_was_held_up() {
    let (q, clock) = virtual_queue(open("null,size=64M,irqmode=0"), |q| q.scheduler("none"));
    let mut submitter = join(&q);
    let mut batch = std::collections::VecDeque::from([write(0, 1), write(100, 1)]);
    clock.advance(SECOND);
    assert_eq!(submitter.submit_batch(&mut batch).unwrap(), 2);
    assert_eq!(times(&reap(&mut submitter)), [(1, 1), (1, 1)]);
    submitter.submit(write(0, 1)).unwrap();
    clock.advance(SECOND);
    batch.push_back(write(100, 1));
    assert_eq!(submitter.submit_batch(&mut batch).unwrap(), 1);
    assert_eq!(times(&reap(&mut submitter)), [(1, 2), (1, 2)]);
    submitter.submit(write(0, 1)).unwrap();
    clock.advance(SECOND);
    submitter.flush_batch();
    assert_eq!(times(&reap(&mut submitter)), [(2, 2)]);
    let freeze = q.freeze();
    submitter.submit(write(0, 1)).unwrap();
    submitter.flush_batch();
    drop(freeze);
    clock.advance(SECOND);
    submitter.flush_batch();
    assert_eq!(times(&reap(&mut submitter)), [(3, 4)]);
}

/// Red if the parts of an operation are handed out as if each were an operation, or if they hold up completions behind
/// them.
#[test]
fn what_is_over_comes_whole_and_past_what_is_not() {
    let (driver, mut submitter) = of_eight_sectors("none");
    for (sector, nr_sectors) in [(0, 24), (100, 8), (200, 16)] {
        submitter.submit(write(sector, nr_sectors)).unwrap();
    }
    let mut reap_all = |nr_finished: usize| {
        submitter.poll();
        (0..nr_finished).for_each(|_| driver.finish_oldest(Status::Ok));
        submitter.poll();
        let mut sectors = Vec::new();
        let nr_reaped = submitter.reap_all(|done| sectors.push((done.bio.sector, done.bio.nr_sectors)));
        assert_eq!(nr_reaped, sectors.len());
        sectors
    };
    assert_eq!(reap_all(2), []);
    assert_eq!(reap_all(2), [(0, 24), (100, 8)]);
    assert_eq!(reap_all(1), []);
    assert_eq!(reap_all(1), [(200, 16)]);
    assert_eq!(submitter.nr_outstanding(), 0);
}

/// Red if an operation that was split is handed back in parts, or not at all.
#[test]
fn leaving_a_frozen_queue_hands_back_an_operation_that_was_split() {
    let (driver, mut submitter) = of_eight_sectors("mq-deadline");
    let freeze = submitter.queue().freeze();
    submitter.submit_now(write(0, 16));
    let bios = submitter.leave();
    assert_eq!(bios.iter().map(|bio| (bio.op, bio.sector, bio.nr_sectors)).collect::<Vec<_>>(), [(Op::Write, 0, 16)]);
    assert_eq!(driver.nr_held(), 0);
    drop(freeze);
}

#[test]
fn wait_says_that_something_is_over_only_if_it_is() {
    let (driver, mut submitter) = of_eight_sectors("none");
    submitter.submit(write(0, 16)).unwrap();
    assert!(!submitter.poll());
    driver.finish_oldest(Status::Ok);
    assert!(!submitter.poll(), "half of it is still with the device");
    driver.finish_oldest(Status::Ok);
    assert!(submitter.wait(1, None).is_ready());
    assert!(submitter.reap().is_some_and(|done| done.bio.nr_sectors == 16));
}

/// Red if a wait ends for fewer operations than it is to wait for, or if it counts the parts of an operation that were
/// put together only as one.
#[test]
fn a_wait_for_several_ends_when_so_many_have_completed() {
    let (driver, mut submitter) = of_eight_sectors("none");
    for (sector, nr_sectors) in [(0, 16), (100, 8), (200, 8)] {
        submitter.submit(write(sector, nr_sectors)).unwrap();
    }
    let past = Some(Time(0));
    assert_eq!(submitter.wait(1, past), Waited::TimedOut);
    (0..2).for_each(|_| driver.finish_oldest(Status::Ok));
    assert_eq!((submitter.nr_outstanding(), submitter.wait(2, past)), (4, Waited::Ready));
    driver.finish_oldest(Status::Ok);
    assert_eq!([1, 2, 3, usize::MAX].map(|min| submitter.wait(min, past).is_ready()), [true, true, false, false]);
    driver.finish_oldest(Status::Ok);
    assert_eq!((submitter.wait(usize::MAX, None), submitter.reap_all(drop)), (Waited::Ready, 3));
    assert_eq!(submitter.wait(0, None), Waited::Idle);
}

/// Red (does not end) if a submitter that is dropped polls its own hardware queue alone: its operation is a part of a
/// request on the hardware queue of another submitter, whose thread is this one.
#[test]
fn a_submitter_that_is_dropped_needs_no_other_one_of_its_thread() {
    let driver = open("null,irqmode=2,completion_nsec=1us,submit_queues=2,poll_queues=0");
    let q = RequestQueue::builder(driver).scheduler("mq-deadline").build().unwrap();
    let [mut first, mut second] = [0, 1].map(|_| join(&q));
    let quiesce = q.quiesce();
    for (submitter, sector) in [(&mut first, 0), (&mut second, 8)] {
        submitter.submit(write(sector, 8)).unwrap();
        submitter.flush_plug();
    }
    drop(quiesce);
    assert_eq!(q.disk_stats().write_merges, 1, "the second operation joined the first");
    drop(second);
    assert_eq!((first.wait(1, None), first.reap_all(drop)), (Waited::Ready, 1));
}

/// Red if the duration is taken for a time on the clock, which may have passed already.
#[test]
fn a_wait_for_a_duration_begins_now() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=5000"), |q| q);
    clock.advance_to(Time(1_000_000));
    let mut submitter = join(&q);
    assert_eq!(submitter.wait(1, Some(q.clock().after(Duration::MAX))), Waited::Idle);
    submitter.submit(write(0, 1)).unwrap();
    assert_eq!(submitter.wait(1, Some(q.clock().after(Duration::from_nanos(4000)))), Waited::TimedOut);
    assert_eq!(q.clock().now(), Time(1_004_000));
    assert_eq!(submitter.wait(1, Some(q.clock().after(Duration::from_nanos(4000)))), Waited::Ready);
    assert_eq!(q.clock().now(), Time(1_005_000));
    assert!(submitter.reap().is_some());
}

#[test]
fn a_wait_with_a_deadline_ends_though_the_queue_is_quiesced() {
    let (q, _) = virtual_queue(open("null,irqmode=2,completion_nsec=1000"), |q| q);
    let mut submitter = join(&q);
    submitter.submit_now(write(0, 1));
    let quiesce = q.quiesce();
    assert_eq!(submitter.wait(1, Some(Time(5000))), Waited::TimedOut);
    drop(quiesce);
    assert!(submitter.wait(1, None).is_ready());
    assert!(submitter.reap().is_some());
}

#[test]
fn what_the_scheduler_lets_go_between_a_poll_and_the_sleep_is_not_slept_over() {
    use blkmq::{Class, IoPriority};
    let driver = Recorder::of_depth(4);
    let (q, clock) = virtual_queue(driver.clone(), |q| q.scheduler("mq-deadline"));
    let mut submitter = join(&q);
    let of = |class| IoPriority { class, level: 4 };
    submitter.submit(write(0, 1).with_priority(of(Class::RealTime))).unwrap();
    submitter.submit(write(100, 1).with_priority(of(Class::Idle))).unwrap();
    assert!(!submitter.poll());
    assert_eq!(driver.nr_held(), 1, "the idle one is held back");
    let lets_go = submitter.next_wakeup().expect("something is outstanding");
    assert!(lets_go <= Time(10 * SECOND), "{lets_go:?}");
    clock.advance_to(lets_go);
    assert!(
        submitter.next_wakeup().is_some_and(|next| next <= lets_go),
        "it may go now: {:?}",
        submitter.next_wakeup()
    );
    submitter.poll();
    assert_eq!(driver.nr_held(), 2);
    driver.drain(&mut [&mut submitter]);
}

/// Red if a poll takes what other threads completed only when this thread's own completions are all taken.
#[test]
fn what_others_completed_is_not_put_off_by_ones_own() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=1000"), |q| q.scheduler("none"));
    let mut submitter = join(&q);
    let mut other = join(&q);
    let submit = |submitter: &mut Submitter, number: u64| {
        submitter.submit_now(write(number * 8, 1).with_user_data(number));
    };
    submit(&mut submitter, 0);
    clock.advance(1000);
    other.poll();
    submit(&mut submitter, 1);
    submit(&mut submitter, 2);
    let mut order = Vec::new();
    for number in 3..6 {
        clock.advance(1000);
        assert!(submitter.poll());
        order.push(submitter.reap().unwrap().bio.user_data);
        submit(&mut submitter, number);
    }
    assert!(order.contains(&0), "{order:?}");
}

/// Red if a limit is not kept, or if a closure that panics takes more operations with it than the one it was given.
#[test]
fn as_many_operations_are_reaped_as_are_asked_for() {
    let q = RequestQueue::builder(open("null,irqmode=0,hw_queue_depth=8"))
        .scheduler("none")
        .build()
        .expect("the device is good");
    let mut submitter = join(&q);
    for sector in 0..5 {
        submitter.submit(write(64 * sector, 1)).expect("there is room");
    }
    submitter.flush_plug();
    assert_eq!((submitter.reap_up_to(0, |_| panic!("none was asked for")), submitter.nr_outstanding()), (0, 5));
    let mut sectors = Vec::new();
    assert_eq!(submitter.reap_up_to(2, |done| sectors.push(done.bio.sector)), 2);
    let panicking = std::panic::AssertUnwindSafe(|| submitter.reap_up_to(9, |_| panic!("this one is lost")));
    assert!(std::panic::catch_unwind(panicking).is_err());
    assert_eq!(submitter.nr_outstanding(), 2);
    assert_eq!(submitter.reap_up_to(9, |done| sectors.push(done.bio.sector)), 2);
    assert_eq!((sectors, submitter.nr_outstanding()), (vec![0, 64, 3 * 64, 4 * 64], 0));
}
