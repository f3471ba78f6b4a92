//! A thread polls again before it sleeps on its device's descriptor, if the device was quick.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::Notify;
use blkmq::driver::{Batch, Done, Driver, NextEvent, RqId, Topology};
use blkmq::event::EventFd;
use blkmq::{Bio, Buffer, Client, Limits, RequestQueue, Status, Submitter, Time};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// When a request completes.
#[derive(Debug, Clone, Copy)]
enum Pace {
    /// At this many polls.
    Polls(u32),
    /// After this many nanoseconds.
    Ns(u64),
}

/// A request that the device has: its id, since when, and how often the device was polled since.
#[derive(Debug)]
struct Held {
    id: RqId,
    since: Time,
    polls: u32,
}

/// A device with a descriptor. The device does requests for the first sector one at a time, and requests for other
/// sectors beside that, with the next poll and in 200 us. The device counts polls, and how often a thread asked for the
/// descriptor: a thread does that before it sleeps.
#[derive(Debug)]
struct Device {
    pace: Mutex<Pace>,
    fd: EventFd,
    held: Mutex<Option<Held>>,
    others: Mutex<Vec<RqId>>,
    polls: AtomicU32,
    sleeps: AtomicU32,
}

impl Device {
    fn pace(&self) -> Pace {
        *self.pace.lock().expect("no test panics with the lock")
    }

    /// How often it was polled, and how often a thread slept.
    fn counts(&self) -> [u32; 2] {
        [&self.polls, &self.sleeps].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Driver for Device {
    fn name(&self) -> &'static str {
        "paced"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 20, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology { default_queues: 1, read_queues: 0, poll_queues: 0, depth: 64 }
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, since: Time) {
        while let Some(rq) = batch.next_request() {
            if rq.sector() > 0 {
                self.others.lock().expect("no test panics with the lock").push(batch.start(rq));
                continue;
            }
            *self.held.lock().expect("no test panics with the lock") =
                Some(Held { id: batch.start(rq), since, polls: 0 });
        }
    }

    fn poll(&self, _hctx: u16, done: &mut Done<'_>, now: Time) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.fd.drain();
        let others = std::mem::take(&mut *self.others.lock().expect("no test panics with the lock"));
        if !others.is_empty() {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(200) {}
        }
        for id in others {
            done.complete(id, Status::Ok).expect("nobody gave it up");
        }
        let mut held = self.held.lock().expect("no test panics with the lock");
        let is_over = held.as_mut().is_some_and(|held| {
            held.polls += 1;
            match self.pace() {
                Pace::Polls(polls) => held.polls > polls,
                Pace::Ns(ns) => now >= held.since.after(ns),
            }
        });
        if is_over && let Some(held) = held.take() {
            done.complete(held.id, Status::Ok).expect("nobody gave it up");
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        let Pace::Ns(ns) = self.pace() else { return NextEvent::Never };
        self.held.lock().expect("no test panics with the lock").as_ref().map(|held| held.since.after(ns)).into()
    }

    fn ready_fd(&self, _hctx: u16) -> Option<BorrowedFd<'_>> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        // A thread that waits for polls does not sleep for long. A thread that waits for a time does.
        if matches!(self.pace(), Pace::Polls(_)) {
            self.fd.notify();
        }
        Some(self.fd.as_fd())
    }
}

fn device(pace: Pace) -> (Arc<Device>, Submitter) {
    let device = Arc::new(Device {
        pace: Mutex::new(pace),
        fd: EventFd::new().expect("there are descriptors"),
        held: Mutex::default(),
        others: Mutex::default(),
        polls: AtomicU32::new(0),
        sleeps: AtomicU32::new(0),
    });
    let q = RequestQueue::builder(device.clone()).build().expect("the queue is good");
    let submitter = q.submitter(&Client::new("waits")).expect("there is room");
    (device, submitter)
}

/// Waits. Returns how often the device was polled meanwhile, and how often the thread slept.
fn wait(device: &Device, submitter: &mut Submitter, deadline: Option<Time>) -> (u32, u32) {
    let before = device.counts();
    let is_told = match deadline {
        Some(deadline) => submitter.wait_until(deadline),
        None => submitter.wait(),
    };
    assert_eq!(is_told, deadline.is_none());
    let after = device.counts();
    (after[0] - before[0], after[1] - before[1])
}

/// Submits an operation and waits for it.
fn one(device: &Device, submitter: &mut Submitter) -> (u32, u32) {
    submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("there is a slot");
    let counts = wait(device, submitter, None);
    assert!(submitter.reap().expect("it is over").status.is_ok());
    counts
}

/// Waits again and again until the thread has found the completion by polling. If other threads want the processor this
/// may take long, because the thread seldom yields then.
fn one_by_looks(device: &Device, submitter: &mut Submitter) {
    let mut waits = (0..3_000_000).map(|_| one(device, submitter));
    assert!(waits.any(|(polls, sleeps)| polls > 3 && sleeps == 0), "it was never looked for");
}

/// Red if [`Submitter::wait`] sleeps whenever it finds nothing.
#[test]
fn a_device_that_was_quick_is_looked_for() {
    let (device, mut submitter) = device(Pace::Polls(3));
    let (_, sleeps) = one(&device, &mut submitter);
    assert!(sleeps > 0, "the thread does not know yet that the device is quick");
    one_by_looks(&device, &mut submitter);
}

/// Red if a thread goes on polling when a device is slow: it would poll hundreds of times.
#[test]
fn a_device_that_was_slow_is_slept_for() {
    let (device, mut submitter) = device(Pace::Ns(2_000_000));
    let waits = [(); 20].map(|()| one(&device, &mut submitter));
    // A thread that got no processor for a while finds the request done at once, without a sleep.
    let looks = waits.iter().filter(|(polls, sleeps)| *polls > 5 || *sleeps == 0).count();
    assert!(looks < 10, "{waits:?}");
}

/// Red if a wait that ends at its deadline learns nothing about the device. A thread that waits for a moment, again and
/// again, would then never sleep.
#[test]
fn a_device_that_was_not_there_in_time_is_slept_for() {
    let (device, mut submitter) = device(Pace::Polls(3));
    one_by_looks(&device, &mut submitter);
    *device.pace.lock().expect("no test panics with the lock") = Pace::Ns(2_000_000_000);
    submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("there is a slot");
    let waits = [(); 20].map(|()| {
        let deadline = submitter.queue().clock().now().after(40_000);
        wait(&device, &mut submitter, Some(deadline))
    });
    // The first wait finds that the device is no longer quick. A wait whose deadline comes before its first poll does
    // not sleep.
    let looks = waits[1..].iter().filter(|(polls, sleeps)| *polls > 4 || *sleeps == 0).count();
    assert!(looks < 10, "{waits:?}");
    *device.pace.lock().expect("no test panics with the lock") = Pace::Polls(0);
    assert!(submitter.wait());
}

/// Red if a thread does not count what the device completes for other threads. That thread then sleeps, because the
/// other thread, which shares its processor, seems to keep the processor without bringing anything.
#[test]
fn threads_that_share_a_processor_and_a_device_take_turns() {
    let (device, mut submitter) = device(Pace::Polls(12));
    let mut other = submitter.queue().submitter(&Client::new("other")).expect("there is room");
    let is_over = AtomicBool::new(false);
    let mut only = CpuSet::new();
    only.set(sched_getcpu());
    let share = || sched_setaffinity(None, &only).expect("it may run where it runs");
    let nr_waits = thread::scope(|scope| {
        scope.spawn(|| {
            share();
            while !is_over.load(Ordering::Relaxed) {
                for index in 1..=16 {
                    // Too far from each other to be merged.
                    other.submit(Bio::read(1000 * index, Buffer::zeroed(512))).expect("there is a slot");
                }
                other.flush_plug();
                while other.nr_outstanding() > 0 {
                    other.poll();
                    other.reap_all(drop);
                }
                thread::yield_now();
            }
        });
        share();
        let mut waits = (0..300_000).map(|_| one(&device, &mut submitter));
        let nr_waits = waits.position(|(_, sleeps)| sleeps == 0);
        is_over.store(true, Ordering::Relaxed);
        nr_waits
    });
    assert!(nr_waits.is_some(), "each wait was slept through");
}
