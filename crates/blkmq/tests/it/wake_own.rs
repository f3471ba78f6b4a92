//! A submitter sleeps until its own next completion where the device tells all its times, and stands guard over the
//! device's next event where anything of it depends on others.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::front::Front;
use crate::device::{Drive, ONE_QUEUE, Recorder, join, open, read, reap, virtual_queue, write};
use blkmq::driver::{TimeoutAction, Topology};
use blkmq::{Flags, Limits, RequestQueue, RqId, Status, Submitter, Time, Waited};

#[derive(Debug, Default)]
struct Kept {
    held: Vec<(RqId, Time)>,
    /// Requests that the timeout scan ended. The device goes on telling times of them.
    given_up: Vec<(RqId, Time)>,
    ends: bool,
}

/// A device whose request for sector N is over N seconds after the queue's clock began, or when the device is told to
/// end everything.
type Timed = Front<Mutex<Kept>>;

impl Timed {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// From now on each request is over at the next poll.
    fn end(&self) {
        self.kept().ends = true;
    }
}

fn timed(topology: Topology) -> Arc<Timed> {
    let limits = Limits { capacity_sectors: 1 << 20, write_cache: true, ..Limits::default() };
    Arc::new(Front {
        queue_rqs: |front, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                let due = Time(rq.sector() * 1_000_000_000);
                front.kept().held.push((batch.start(rq), due));
            }
        },
        poll: |front, _, done, now| {
            let mut kept = front.kept();
            let ends = kept.ends || std::thread::panicking();
            for (id, _) in kept.held.extract_if(.., |(_, due)| ends || *due <= now) {
                done.complete(id, Status::Ok).expect("each request is over once");
            }
        },
        next_event: |front, _| front.kept().held.iter().map(|(_, due)| *due).min().into(),
        due_times: |front, _, due| {
            let kept = front.kept();
            kept.held.iter().chain(&kept.given_up).for_each(|&(id, time)| due.add(id, time));
        },
        timeout: |front, _, id, _| {
            let mut kept = front.kept();
            let given_up: Vec<_> = kept.held.extract_if(.., |held| held.0 == id).collect();
            kept.given_up.extend(given_up);
            TimeoutAction::Done
        },
        ..Front::new(Recorder::new(limits, topology), Mutex::default())
    })
}

/// A queue in front of a [`Timed`] device with so many tags, on the machine's clock. Two submitters.
struct World {
    device: Arc<Timed>,
    q: RequestQueue,
    own: Submitter,
    other: Submitter,
}

fn world(scheduler: &str, depth: u16) -> World {
    world_of(scheduler, Topology { depth, ..ONE_QUEUE })
}

fn world_of(scheduler: &str, topology: Topology) -> World {
    let device = timed(topology);
    let q = RequestQueue::builder(device.clone()).scheduler(scheduler).build().expect("the queue is good");
    let (mut own, other) = (join(&q), join(&q));
    put_off_scans(&mut own);
    World { device, q, own, other }
}

/// Makes a scan for overdue requests, which plans the next one so late that no submitter plans for it.
fn put_off_scans(submitter: &mut Submitter) {
    let q = submitter.queue().clone();
    for ms in [1, u32::MAX] {
        q.set_knob("io_timeout", &ms.to_string()).expect("it is a knob");
    }
    let due = q.clock().now().after(1_000_000);
    while q.clock().now() < due {
        std::thread::yield_now();
    }
    submitter.poll();
}

const fn seconds(seconds: u64) -> Option<Time> {
    Some(Time(seconds * 1_000_000_000))
}

/// Red if a submitter plans for the events of others although it waits for its own requests only.
#[test]
fn a_submitter_plans_for_the_first_of_its_own_completions() {
    for scheduler in blkmq::scheduler_names() {
        let World { device, q: _q, mut own, mut other } = world(scheduler, 64);
        for sector in [2000, 4000] {
            other.submit(read(sector, 1)).expect("there is a slot");
        }
        other.flush_plug();
        for sector in [5000, 3000] {
            own.submit(read(sector, 1)).expect("there is a slot");
        }
        own.flush_plug();
        assert_eq!([own.next_wakeup(), other.next_wakeup()], [seconds(3000), seconds(2000)], "{scheduler}");
        device.end();
        assert_eq!([reap(&mut own).len(), reap(&mut other).len()], [2, 2], "a poll completes for all");
    }
}

/// Red if a submitter that wants all its operations sleeps until the first of them.
#[test]
fn a_submitter_that_wants_all_sleeps_until_its_last_completion() {
    let World { device, q: _q, mut own, mut other } = world("mq-deadline", 64);
    other.submit_now(read(3000, 1));
    for sector in [2, 1] {
        own.submit_now(read(sector, 1));
    }
    assert_eq!(own.wait(2, None), Waited::Ready);
    let completed: Vec<_> = std::iter::from_fn(|| own.reap()).map(|done| Some(done.completed)).collect();
    device.end();
    assert!(completed.len() == 2 && completed.iter().all(|time| *time >= seconds(2)), "{completed:?}");
}

/// Red if a submitter that wants all its operations sleeps until the last of them although others poll other hardware
/// queues. An operation of these others may be a part of a request of this submitter, and they do not look for it.
#[test]
fn a_submitter_that_others_depend_on_sleeps_until_its_first_completion() {
    let topology = Topology { default_queues: 2, ..ONE_QUEUE };
    let World { device, q: _q, mut own, mut other } = world_of("mq-deadline", topology);
    for sector in [9, 1] {
        own.submit_now(read(sector, 1));
    }
    other.submit_now(read(3000, 1));
    assert_eq!(own.wait(2, seconds(4)), Waited::TimedOut);
    let completed: Vec<_> = std::iter::from_fn(|| own.reap()).map(|done| Some(done.completed)).collect();
    device.end();
    assert!(completed.len() == 1 && completed[0] < seconds(4), "{completed:?}");
    assert_eq!([reap(&mut own).len(), reap(&mut other).len()], [1, 1]);
}

/// Red if a submitter whose request waits for a tag plans for its own completions only: the submitter whose request
/// has the tag may not poll for long.
#[test]
fn a_submitter_whose_request_lacks_a_tag_plans_for_each_event() {
    for scheduler in blkmq::scheduler_names() {
        let World { device, q: _q, mut own, mut other } = world(scheduler, 2);
        other.submit_now(read(2000, 1));
        own.submit_now(read(3000, 1));
        assert_eq!(own.next_wakeup(), seconds(3000), "{scheduler}");
        own.submit_now(read(4000, 1));
        assert_eq!(own.next_wakeup(), seconds(2000), "{scheduler}");
        device.end();
    }
}

/// Red if operations that merged into another submitter's request count as being with the device under this one's name,
/// or do not count.
#[test]
fn a_submitter_whose_operation_is_part_of_anothers_request_plans_for_each_event() {
    let World { device, q, mut own, mut other } = world("mq-deadline", 64);
    let quiesce = q.quiesce();
    other.submit_now(write(2000, 1));
    for sector in [2001, 3000] {
        own.submit_now(write(sector, 1));
    }
    drop(quiesce);
    own.poll();
    assert_eq!(q.counters().merges_insert, 1);
    assert_eq!(own.next_wakeup(), seconds(2000));
    device.end();
}

/// Red if a submitter forgets what is in its plug.
#[test]
fn a_submitter_whose_plug_is_held_back_plans_for_each_event() {
    let World { device, q, mut own, mut other } = world("none", 64);
    other.submit_now(read(2000, 1));
    own.submit_now(read(3000, 1));
    let freeze = q.freeze();
    own.submit_now(read(4000, 1));
    assert_eq!(own.next_wakeup(), seconds(2000));
    device.end();
    drop(freeze);
}

/// Red if a submitter that waits for a flush plans for its other requests only: the flush is the queue's own request,
/// and another submitter may have started it.
#[test]
fn a_submitter_that_waits_for_a_flush_plans_for_each_event() {
    let World { device, q: _q, mut own, mut other } = world("none", 64);
    other.submit_now(read(2000, 1));
    own.submit(read(3000, 1)).expect("there is a slot");
    own.submit_now(write(4000, 1).with_flags(Flags { preflush: true, ..Flags::default() }));
    assert_eq!(own.next_wakeup(), seconds(0), "a flush is for sector 0");
    device.end();
}

/// Red if a request counts that the device should have forgotten: the submitter has another operation in its place by
/// now, which waits for a tag.
#[test]
fn an_id_that_the_device_keeps_too_long_does_not_count() {
    let World { device, q, mut own, mut other } = world("none", 1);
    q.set_knob("io_timeout", "1").expect("it is a knob");
    own.submit_now(read(3000, 1));
    while own.reap().is_none() {
        own.wait(1, None);
    }
    put_off_scans(&mut own);
    assert_eq!(device.kept().given_up.len(), 1);
    other.submit_now(read(2000, 1));
    own.submit_now(read(3000, 1));
    assert_eq!(own.next_wakeup(), seconds(2000));
    device.end();
}

/// Red (does not end) if a submitter with nothing at the device plans for no event: the submitter whose request has the
/// tag does not poll before the first one is served.
#[test]
fn a_tag_comes_back_although_its_submitter_is_busy_elsewhere() {
    for device in ["null,irqmode=2,completion_nsec=1ms", "ssd", "hdd", "cloud"] {
        for scheduler in blkmq::scheduler_names() {
            let q = RequestQueue::builder(open(&format!("{device},hw_queue_depth=1")))
                .scheduler(scheduler)
                .build()
                .expect("the queue is good");
            let (mut own, mut busy) = (join(&q), join(&q));
            put_off_scans(&mut own);
            busy.submit_now(read(0, 8));
            own.submit(read(800, 8)).expect("there is a slot");
            assert!(own.wait(1, None).is_ready());
            assert!(own.reap().is_some_and(|done| done.status.is_ok()));
            assert!(busy.reap().is_some_and(|done| done.status.is_ok()), "it is there without a poll");
        }
    }
}

/// Red if a submitter moves a virtual clock past the event of another one: that one's request would seem to have taken
/// longer than it did.
#[test]
fn a_virtual_clock_stops_at_each_event() {
    let device = timed(ONE_QUEUE);
    let (q, _) = virtual_queue(device, |q| q);
    let (mut own, mut other) = (join(&q), join(&q));
    other.submit_now(read(2, 1));
    own.submit(read(3, 1)).expect("there is a slot");
    assert!(own.wait(1, None).is_ready());
    assert_eq!(own.reap().map(|done| done.completed), seconds(3));
    assert_eq!(other.reap().map(|done| done.completed), seconds(2));
}
