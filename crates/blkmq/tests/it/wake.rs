//! Being told of completions: background threads, eventfd, futures.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::device::front::Front;
use crate::device::{Recorder, join, open, virtual_queue};
use blkmq::future::AsyncSubmitter;
use blkmq::{Bio, Buffer, Client, RejectReason, RequestQueue, RqId, Status, Submitter, Time};

fn queue(device: &str) -> RequestQueue {
    RequestQueue::builder(open(device)).build().expect("the queue is good")
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Sleeps between polls until it is woken. There is no timer, so it hangs if no thread wakes it.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

const DEVICES: [&str; 5] = [
    "null,irqmode=0,hw_queue_depth=2",
    "null,irqmode=1,hw_queue_depth=2",
    "null,irqmode=2,completion_nsec=50000,hw_queue_depth=2",
    "null,irqmode=2,completion_nsec=50000,submit_queues=3,hw_queue_depth=1",
    "ram,size=64M",
];

#[test]
fn background_threads_complete_for_a_submitter_that_only_sleeps() {
    for device in DEVICES {
        for nr_threads in [1, 2] {
            let q = queue(device);
            let background = q.start_threads(nr_threads).unwrap();
            let mut submitter = q.submitter(&Client::new("sleeper")).unwrap();
            for round in 0..50_u64 {
                for block in 0..20 {
                    submitter.submit(Bio::read((round + block) * 100, Buffer::zeroed(512))).unwrap();
                }
                let mut reaped = 0;
                while reaped < 20 {
                    assert!(submitter.wait(1, None).is_ready(), "something is outstanding");
                    reaped += std::iter::from_fn(|| submitter.reap()).count();
                }
            }
            drop(submitter);
            drop(background);
            assert_eq!(q.counters().completed, 1000, "{device}");
        }
    }
}

#[test]
fn futures_resolve_on_an_executor_that_knows_no_timer() {
    for device in DEVICES {
        let q = queue(device);
        let _background = q.start_threads(1).unwrap();
        let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tasks")).unwrap());
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let submitter = submitter.clone();
                thread::spawn(move || {
                    block_on(async move {
                        for round in 0..50_u64 {
                            let bio = Bio::read((task * 50 + round) * 8, Buffer::zeroed(512)).with_user_data(round);
                            let completion = submitter.submit(bio).unwrap().await.unwrap();
                            assert_eq!((completion.status, completion.bio.user_data), (Status::Ok, round));
                        }
                    });
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(q.counters().completed, 200, "{device}");
    }
}

#[test]
fn an_operation_outlives_its_dropped_future() {
    let q = queue("null,irqmode=2,completion_nsec=1000,memory_backed=1,size=1M");
    let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tasks")).unwrap());
    drop(submitter.submit(Bio::write(0, Buffer::from(&[7; 512][..]))).unwrap());
    drop(submitter);
    assert_eq!(
        (q.counters().entered, q.counters().completed),
        (0, 0),
        "it was in the plug, undone, when its submitter left"
    );
    let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tasks")).unwrap());
    let _background = q.start_threads(1).unwrap();
    drop(submitter.submit(Bio::write(0, Buffer::from(&[7; 512][..]))).unwrap());
    block_on(submitter.submit(Bio::read(8, Buffer::zeroed(512))).unwrap()).unwrap();
    drop(submitter);
    assert_eq!(q.counters().completed, 2);
}

/// Red (hangs) if submitting does not drive the queue: no task polls a future that was dropped, so its slot would never
/// be free again.
#[test]
fn operations_whose_futures_were_dropped_make_room() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=1000,size=1M"), |q| q.slots(4));
    let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tasks")).unwrap());
    let read = |sector| submitter.submit(Bio::read(sector, Buffer::zeroed(512)));
    for sector in 0..4 {
        drop(read(sector * 8).unwrap());
    }
    let rejected = read(32).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Full);
    clock.advance_to(submitter.next_wakeup().unwrap());
    drop(read(32).unwrap());
    drop(read(40).unwrap());
}

#[test]
fn an_eventfd_becomes_readable_when_something_completes() {
    for device in DEVICES {
        let q = queue(device);
        let _background = q.start_threads(1).unwrap();
        let mut submitter = q.submitter(&Client::new("loop")).unwrap();
        let event = submitter.eventfd().unwrap();
        for round in 0..20 {
            submitter.submit(Bio::read(round * 8, Buffer::zeroed(512))).unwrap();
            let mut reaped = 0;
            while reaped == 0 {
                event.drain();
                submitter.poll();
                reaped = std::iter::from_fn(|| submitter.reap()).count();
                if reaped == 0 {
                    // Sleeps with no timeout: only the descriptor ends it.
                    let mut fds = [rustix::event::PollFd::new(&*event, rustix::event::PollFlags::IN)];
                    rustix::event::poll(&mut fds, None).unwrap();
                }
            }
        }
        assert_eq!(q.counters().completed, 20);
    }
}

#[derive(Default)]
struct Behind {
    started: Mutex<Vec<RqId>>,
    wants_poll: AtomicBool,
    /// How often a thread has planned for the time that the device says.
    plans: AtomicU64,
}

/// A device that finishes a request at the second poll after all its requests have come. After the first poll it asks
/// for the second one at once.
fn behind() -> Arc<Front<Behind>> {
    Arc::new(Front {
        queue_rqs: |front, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                front.state.started.lock().expect("no call panics").push(batch.start(rq));
            }
        },
        poll: |Front { state, .. }, _, done, _| {
            let mut started = state.started.lock().expect("no call panics");
            if state.wants_poll.swap(false, Ordering::Relaxed) || started.len() == 2 {
                // The newest request first: that of the thread which polls now.
                if let Some(id) = started.pop() {
                    done.complete(id, Status::Ok).expect("each request is over once");
                }
                if !started.is_empty() {
                    state.wants_poll.store(true, Ordering::Relaxed);
                    done.plan_anew();
                }
            }
        },
        next_event: |Front { state, .. }, _| {
            state.plans.fetch_add(1, Ordering::Relaxed);
            state.wants_poll.load(Ordering::Relaxed).then_some(Time(0)).into()
        },
        ..Front::new(Recorder::of_depth(8), Behind::default())
    })
}

/// Red (hangs) if `Done::plan_anew` wakes no thread: the thread that polled has what it wanted and does not come again,
/// and the other thread sleeps with an old plan.
#[test]
fn an_event_that_a_poll_brings_nearer_is_known_to_those_who_sleep() {
    for _ in 0..100 {
        let device = behind();
        let q = RequestQueue::builder(device.clone()).build().expect("the queue is good");
        // Without this, a scan for overdue requests would wake the thread.
        q.set_knob("io_timeout", &u32::MAX.to_string()).expect("it is a knob");
        let join = || join(&q);
        let run = |mut submitter: Submitter| {
            submitter.submit(Bio::write(0, Buffer::zeroed(512))).expect("there is a slot");
            submitter.wait(1, None);
            submitter.reap().expect("it is over").status
        };
        thread::scope(|scope| {
            let (sleeper, passer) = (join(), join());
            let sleeper = scope.spawn(move || run(sleeper));
            // The thread plans when it has said that it sleeps.
            while device.state.plans.load(Ordering::Relaxed) < 1 {
                thread::yield_now();
            }
            assert_eq!(run(passer), Status::Ok);
            assert_eq!(sleeper.join().unwrap(), Status::Ok);
        });
    }
}
