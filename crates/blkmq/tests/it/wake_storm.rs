//! Which threads are woken while a scheduler holds requests back and the device finishes nothing. A thread with a
//! reason to look is woken once, and threads do not wake each other without end. The torture rig found these cases.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

use crate::common::ways::{Way, whole};
use crate::device::{Notified, ONE_QUEUE, Recorder, join, open, read, reap, virtual_queue, write};
use blkmq::future::{AsyncSubmitter, Operation};
use blkmq::{Class, Client, Clock, IoPriority, Limits, Locking, RequestQueue, Status, Submitter, Time, VirtualClock};

/// A queue in which a read and a write of the idle class wait for a real-time read that the device keeps. All three
/// belong to the first submitter, which is told. The second submitter has nothing to do.
struct HeldBack {
    clock: VirtualClock,
    device: Arc<Recorder>,
    waits: Submitter,
    polls: Submitter,
    told: Arc<Notified>,
}

fn held_back() -> HeldBack {
    held_back_under(whole().find(|way| way.locking == Locking::default()).expect("the default is one of them"))
}

fn held_back_under(way: Way) -> HeldBack {
    let clock = VirtualClock::new();
    let device = Recorder::of_depth(64);
    let q = way.builder(device.clone()).clock(Clock::Virtual(clock.clone())).build().expect("the queue is good");
    let (mut waits, polls) = (join(&q), join(&q));
    let told = Notified::set(&mut waits);
    let idle = IoPriority { class: Class::Idle, level: 0 };
    // The sweep over the idle class stands behind the requests that will wait, so that each ask begins a new batch.
    for bio in [read(5000, 8), write(5000, 8)] {
        waits.submit(bio.with_priority(idle)).expect("there are slots");
        waits.poll();
        device.finish_oldest(Status::Ok);
        waits.poll();
        assert!(waits.reap().is_some());
    }
    let bios = [
        read(0, 8).with_priority(IoPriority { class: Class::RealTime, level: 0 }),
        read(100, 8).with_priority(idle),
        write(200, 8).with_priority(idle),
    ];
    for bio in bios {
        waits.submit(bio).expect("there are slots");
        waits.poll();
        clock.advance(1_000_000);
    }
    assert_eq!(device.nr_held(), 1);
    HeldBack { clock, device, waits, polls, told }
}

impl HeldBack {
    /// Submits more than the queue takes, so that something stays in the plug.
    fn fill(&mut self) {
        for sector in 0..150 {
            self.waits.submit(read(1000 + sector * 100, 8)).expect("there are more slots than room");
        }
        // Polls twice: the first look plans for the retry.
        self.waits.poll();
        self.polls.poll();
        self.waits.poll();
        self.told.since_last();
    }

    /// Lets the device finish, so that the submitters can leave.
    fn end(mut self) {
        while self.waits.nr_outstanding() > 0 {
            self.device.finish_all(Status::Ok);
            reap(&mut self.waits);
        }
    }
}

/// Red if each change to an earlier time wakes the sleepers: each time that mq-deadline is asked in vain it names the
/// time of its read and that of its write in turn.
#[test]
fn a_scheduler_that_is_asked_in_vain_again_and_again_tells_of_its_plan_once() {
    let mut world = held_back();
    world.told.since_last();
    (0..20).for_each(|_| _ = world.polls.poll());
    assert!(world.told.since_last() <= 1);
    world.end();
}

/// Red if tags that were taken for a choice, and put back because there was none, count as room. A thread that is told
/// of such room tries in vain, asks the scheduler, and tells other threads.
#[test]
fn a_choice_that_comes_to_nothing_makes_no_room() {
    for way in whole() {
        let mut world = held_back_under(way);
        world.fill();
        (0..20).for_each(|_| {
            world.waits.poll();
            world.polls.poll();
        });
        assert_eq!(world.told.since_last(), 0, "{way}");
        world.end();
    }
}

/// Red if only the thread that asked the device about an overdue request plans anew: the device may now name another
/// time.
#[test]
fn when_the_device_is_asked_about_a_request_others_plan_anew() {
    let HeldBack { clock, device, mut waits, mut polls, told } = held_back();
    while waits.nr_outstanding() > 0 {
        device.finish_oldest(Status::Ok);
        reap(&mut waits);
    }
    waits.submit(read(0, 8)).expect("there are slots");
    waits.poll();
    clock.advance(31_000_000_000);
    told.since_last();
    polls.poll();
    assert_eq!(told.since_last(), 1);
    device.finish_oldest(Status::Ok);
}

/// Red if no thread is told that a knob has made room.
#[test]
fn a_knob_that_makes_room_says_so() {
    for way in whole() {
        let device = Recorder::of_depth(64);
        let q = way.builder(device.clone()).build().expect("the queue is good");
        q.change_knob("iosched/async_depth", "1").expect("there is such a knob").wait().expect("it is set at once");
        let mut submitter = join(&q);
        let told = Notified::set(&mut submitter);
        for sector in [0, 100, 200] {
            submitter.submit(write(sector, 8)).expect("there are slots");
        }
        (0..3).for_each(|_| _ = submitter.poll());
        assert_eq!(device.nr_held(), 1, "{way}");
        told.since_last();
        q.change_knob("iosched/async_depth", "3").expect("there is such a knob").wait().expect("it is set at once");
        assert_eq!(told.since_last(), 1, "{way}");
        submitter.poll();
        assert_eq!(device.nr_held(), 3, "{way}");
        device.finish_all(Status::Ok);
        assert!(submitter.wait(1, None).is_ready(), "{way}");
        assert_eq!(submitter.reap_all(|_| ()), 3, "{way}");
    }
}

/// Red if a scan wakes the sleepers only when it has asked the device. A thread that goes to sleep while the scan runs
/// plans for one timeout later, and would find the request half a second overdue.
#[test]
fn who_planned_while_a_scan_ran_is_told_that_something_expires_earlier() {
    let device = Recorder::of_depth(64);
    let (q, clock) = virtual_queue(device.clone(), |q| q.io_timeout_ms(1000));
    let (mut waits, mut polls) = (join(&q), join(&q));
    let told = Notified::set(&mut waits);
    clock.advance(500_000_000);
    waits.submit(read(0, 8)).expect("there are slots");
    waits.poll();
    told.since_last();
    for (advance, expected) in [(499_000_000, 0), (1_000_000, 1)] {
        clock.advance(advance);
        polls.poll();
        assert_eq!(told.since_last(), expected);
    }
    // The device was not asked about the request, and will be asked when the request's timeout is over.
    assert_eq!(waits.next_wakeup(), Some(Time(1_500_000_000)));
    device.finish_oldest(Status::Ok);
    waits.poll();
}

/// Red if the next time at which the scheduler lets something go is told only if it is earlier than the time that has
/// come. A thread that looks at the time that has come, and finds another thread at the scheduler, sleeps without a
/// plan, and the other thread may leave the queue.
#[test]
fn who_found_another_at_the_scheduler_is_told_of_the_next_time() {
    const AGED: u64 = 10_000_000_000;
    let device = Recorder::of_depth(64);
    let (q, clock) = virtual_queue(device.clone(), |q| q.scheduler("mq-deadline"));
    let join = |class| {
        let client = Client::new("test").with_priority(IoPriority { class, level: 0 });
        q.submitter(&client).expect("there is room for three threads")
    };
    let [mut urgent, mut first, mut second] = [Class::RealTime, Class::Idle, Class::Idle].map(join);
    for (submitter, sector) in [(&mut urgent, 0), (&mut first, 100), (&mut second, 200)] {
        submitter.submit(read(sector, 8)).expect("there are slots");
        submitter.poll();
        clock.advance(1_000_000);
    }
    assert_eq!(device.nr_held(), 1, "the idle class waits");
    let told = Notified::set(&mut second);
    clock.advance(AGED - 2_000_000);
    first.poll();
    assert_eq!(device.nr_held(), 2, "one has waited so long that it goes, and the other one not yet");
    assert_eq!(told.since_last(), 1);
    first.poll();
    assert_eq!(told.since_last(), 0, "no thread is woken for what it knows");
    clock.advance(1_000_000);
    second.poll();
    assert_eq!(device.nr_held(), 3);
    device.finish_all(Status::Ok);
    urgent.poll();
}

/// Red if sleepers are woken for a scan that is not earlier than they have planned.
#[test]
fn a_longer_io_timeout_wakes_nobody() {
    let world = held_back();
    world.told.since_last();
    for (ms, expected) in [("60000", 0), ("1000", 1), ("1000", 0)] {
        world.polls.queue().set_knob("io_timeout", ms).expect("there is such a knob");
        assert_eq!(world.told.since_last(), expected, "{ms} ms");
    }
    world.end();
}

/// Red if each future drives the queue when all are polled because one is over.
#[test]
fn of_tasks_that_are_woken_together_one_drives_the_queue() {
    let device = Recorder::of_depth(64);
    let q = RequestQueue::builder(device.clone()).build().expect("the queue is good");
    let (submitter, mut other) = (AsyncSubmitter::new(join(&q)), join(&q));
    let mut operations: Vec<_> =
        (0..32).map(|number| submitter.submit(read(number * 100, 8)).expect("there are slots")).collect();
    let look = |operations: &mut Vec<Operation>| {
        let mut context = Context::from_waker(Waker::noop());
        operations.retain_mut(|operation| Pin::new(operation).poll(&mut context).is_pending());
        device.take_polls()
    };
    assert_eq!(look(&mut operations), 1);
    assert_eq!(device.nr_held(), 32);
    for left in (16..32).rev() {
        device.finish_oldest(Status::Ok);
        other.poll();
        device.take_polls();
        // The task that is over need not drive. Another one drives, because more may have completed.
        assert!(look(&mut operations) <= 2);
        assert_eq!(operations.len(), left);
    }
    // A future that is polled again without being woken, as by a timer, drives.
    for left in (0..16).rev() {
        device.finish_oldest(Status::Ok);
        assert!(look(&mut operations) <= 2);
        look(&mut operations);
        assert_eq!(operations.len(), left);
    }
}

/// Counts how often a task was woken.
#[derive(Debug, Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls an operation for its task. Returns whether it is over.
fn poll((operation, woken): &mut (Operation, Arc<Woken>)) -> bool {
    let waker = Waker::from(woken.clone());
    Pin::new(operation).poll(&mut Context::from_waker(&waker)).is_ready()
}

/// Red if a task that reaps an operation wakes other tasks than the one that waits for it, or does not wake that one,
/// or wakes the task of an earlier operation with the same slot.
#[test]
fn what_one_task_reaps_wakes_only_the_tasks_that_wait_for_it() {
    let device = Recorder::of_depth(64);
    let q = RequestQueue::builder(device.clone()).slots(32).build().expect("the queue is good");
    let submitter = AsyncSubmitter::new(join(&q));
    let submit = |sector| (submitter.submit(read(sector, 8)).expect("there are slots"), Arc::new(Woken::default()));
    // The first task drives, and waits for the last operation, which is never over here.
    let mut drives = submit(100_000);
    assert!(!poll(&mut drives));
    let mut others: Vec<_> = (0..31).map(|number| submit(number * 100)).collect();
    others.iter_mut().for_each(|other| assert!(!poll(other)));
    assert!(!poll(&mut drives) && device.nr_held() == 32);
    let mut held = std::collections::VecDeque::new();
    let count =
        |tasks: &[(Operation, Arc<Woken>)]| tasks.iter().map(|task| task.1.0.load(Ordering::Relaxed)).sum::<u32>();
    for round in 0..200 {
        // A future of an operation in flight is dropped now and then, and its slot is used again.
        if round % 7 == 6 {
            drop(others.swap_remove(0));
        }
        let before = count(&others);
        held.extend(device.take_seen().into_iter().filter(|seen| seen.sector != 100_000));
        device.finish(&held.pop_front().expect("the device has 31 others"), Status::Ok);
        // A future that is polled again without being woken drives, whether another one drove before or not.
        assert!(!poll(&mut drives) && !poll(&mut drives));
        let woken = count(&others) - before;
        let over = others.iter().position(|task| task.1.0.load(Ordering::Relaxed) > 0);
        assert_eq!(woken, u32::from(over.is_some()), "round {round}");
        if let Some(over) = over {
            assert!(poll(&mut others[over]), "the task that was woken has something to see");
            drop(others.swap_remove(over));
        }
        let mut fresh = submit(round * 100);
        assert!(!poll(&mut fresh));
        others.push(fresh);
    }
    device.finish_all(Status::Ok);
    assert!(poll(&mut drives) || poll(&mut drives));
    assert!(others.iter_mut().all(poll));
}

/// Red if a completion wakes the tasks of other operations, or not the task of its own, also where the operation was
/// split, and where the slot had another operation before.
#[test]
fn a_completion_wakes_only_the_task_that_waits_for_it() {
    let limits = Limits { capacity_sectors: 1 << 20, max_sectors: 8, ..Limits::default() };
    let device = Recorder::new(limits, ONE_QUEUE);
    let q = RequestQueue::builder(device.clone()).scheduler("none").slots(64).build().expect("the queue is good");
    let (submitter, mut completer) = (AsyncSubmitter::new(join(&q)), join(&q));
    // Every fifth operation is split into two.
    let submit = |number: u64| {
        let sectors = if number.is_multiple_of(5) { 16 } else { 8 };
        (submitter.submit(read(number * 100, sectors)).expect("there are slots"), Arc::new(Woken::default()))
    };
    let count = |task: &(Operation, Arc<Woken>)| task.1.0.swap(0, Ordering::Relaxed);
    let mut tasks: std::collections::VecDeque<_> = (1..=20).map(submit).collect();
    tasks.iter_mut().for_each(|task| assert!(!poll(task)));
    for number in 21_u64..200 {
        tasks.iter().for_each(|task| _ = count(task));
        let parts = if (number - 20).is_multiple_of(5) { 2 } else { 1 };
        for part in 1..=parts {
            device.finish_oldest(Status::Ok);
            completer.poll();
            assert_eq!(count(&tasks[0]), 1, "{number}: its own task");
            assert_eq!(poll(&mut tasks[0]), part == parts, "{number}: the task that was woken has something to see");
        }
        assert_eq!(tasks.iter().map(count).sum::<u32>(), 0, "{number}: other tasks");
        tasks.pop_front();
        let mut fresh = submit(number);
        assert!(!poll(&mut fresh));
        tasks.push_back(fresh);
    }
    // More at once than a thread is told of in one go, for which there are tasks and for which there are none.
    let mut tasks: Vec<_> = tasks.into_iter().chain((200..230).map(submit)).collect();
    tasks.iter_mut().for_each(|task| assert!(!poll(task)));
    drop(tasks.drain(..10));
    tasks.iter().for_each(|task| _ = count(task));
    while device.nr_held() > 0 {
        device.finish_all(Status::Ok);
        completer.poll();
    }
    assert!(tasks.iter().all(|task| count(task) > 0), "each is told");
    assert!(tasks.iter_mut().all(poll));
}

/// A task that polls its operations as soon as it is woken.
#[derive(Debug, Default)]
struct Prompt {
    operations: std::sync::Mutex<Vec<Operation>>,
    woken: AtomicU32,
}

impl Prompt {
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut operations = self.operations.lock().expect("no look has panicked");
        operations.retain_mut(|operation| Pin::new(operation).poll(&mut Context::from_waker(&waker)).is_pending());
    }
}

impl Wake for Prompt {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        self.look();
    }
}

/// Red if news takes a waker of a task that it has woken before: the task may have looked in between, and is then not
/// woken by its next completion.
#[test]
fn a_task_that_looks_while_others_are_woken_goes_on_being_told() {
    let device = Recorder::of_depth(64);
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
    let (submitter, mut completer) = (AsyncSubmitter::new(join(&q)), join(&q));
    let task = Arc::new(Prompt::default());
    let submit = |number: u64| submitter.submit(read(number * 100, 8)).expect("there are slots");
    *task.operations.lock().unwrap() = (0..4).map(submit).collect();
    task.look();
    for (number, seen) in device.take_seen().iter().rev().enumerate() {
        // News that is no completion.
        drop(q.quiesce());
        task.woken.store(0, Ordering::Relaxed);
        device.finish(seen, Status::Ok);
        completer.poll();
        assert_eq!(task.woken.load(Ordering::Relaxed), 1, "completion {number}");
        assert_eq!(task.operations.lock().unwrap().len(), 3 - number);
    }
}

/// Red if a future drives the queue only when there is news from outside, or only when no other future drove.
#[test]
fn what_is_plugged_and_what_is_due_make_a_future_drive() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=1000,size=1M"), |q| q);
    let submitter = AsyncSubmitter::new(join(&q));
    let mut context = Context::from_waker(Waker::noop());
    let mut is_over = |operation: &mut Operation| Pin::new(operation).poll(&mut context).is_ready();
    let submit = |sector| submitter.submit(read(sector, 8)).expect("there are slots");
    let (mut first, mut second) = (submit(0), submit(100));
    assert!(!is_over(&mut first));
    // Another future drove since `second` was submitted. This one is dropped; its operation is passed on together with
    // `second`.
    drop(submit(200));
    assert!(!is_over(&mut second));
    assert_eq!(q.counters().issued, 3);

    let due = submitter.next_wakeup().expect("the device takes its time");
    assert!(!is_over(&mut first));
    clock.advance_to(due);
    // `first` was polled after `second`, which comes because it was told this time.
    assert!(is_over(&mut second) && is_over(&mut first));
}
