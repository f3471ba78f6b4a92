//! A scheduler that panics ends the process, with a reason.

use std::env;
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::device::{Recorder, join, read, reap};
use blkmq::{Locking, RequestQueue, Status};
use blkmq_sched::{
    Class, ClientId, DispatchContext, Fairness, Feedback, FeedbackKind, Info, InsertAt, Passing, RqId, Scheduler,
    Ticket, Time,
};

/// First come, first served; panics at the first insertion, at the first choice, or when a thread whose ring is full
/// tells it what has happened, outside of each hold.
#[derive(Debug)]
struct Stumbles {
    waiting: Vec<RqId>,
    at: String,
}

impl Scheduler for Stumbles {
    fn name(&self) -> &'static str {
        "stumbles"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
    }

    fn insert(&mut self, rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        assert!(!self.at.ends_with("insertion"), "this panic is the test's own");
        self.waiting.push(rq);
    }

    fn dispatch(&mut self, context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        assert!(self.waiting.is_empty() || self.feedback() == FeedbackKind::Events, "this panic is the test's own");
        let rq = self.waiting.pop()?;
        context.set_ticket(Ticket(NonZeroU32::MIN));
        Some(rq)
    }

    fn feedback(&self) -> FeedbackKind {
        if self.at.ends_with("report") { FeedbackKind::Events } else { FeedbackKind::None }
    }

    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        if let Feedback::Events(reports, _) = feedback {
            assert!(reports.len() < RING, "this panic is the test's own");
        }
        Fairness::Unknown
    }

    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        if self.waiting.is_empty() && self.feedback() == FeedbackKind::Events { Passing::All } else { Passing::Nobody }
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// How many records the ring of a thread holds.
const RING: usize = 256;

/// Says in the process that ends where its scheduler panics: a locking, and insertion or choice.
const PANICS_AT: &str = "BLKMQ_TEST_SCHEDULER_PANICS_AT";

/// Red if the process goes on: the thread had the requests of other threads in its hands, and they would wait forever,
/// under some lockings at once (then the test does not end).
#[test]
fn a_scheduler_that_panics_ends_the_process() {
    if let Ok(at) = env::var(PANICS_AT) {
        return stumble(at);
    }
    for locking in Locking::ALL {
        for what in ["insertion", "choice", "report"] {
            let mut child = Command::new(env::current_exe().expect("the test's program is known"));
            child.args([
                "--exact",
                "scheduler_panic::a_scheduler_that_panics_ends_the_process",
                "--nocapture",
                "--test-threads=1",
            ]);
            let output = child.env(PANICS_AT, format!("{locking} {what}")).output().expect("the program runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(6), "{locking}, {what}: it aborts: {output:?}");
            let (panic, reason) = ("this panic is the test's own", "blkmq: the process ends, because its scheduler");
            assert!(said.contains(panic) && said.contains(reason), "{locking}, {what}: {said}");
        }
    }
}

fn stumble(at: String) {
    let locking: Locking = at.split(' ').next().expect("it names a locking").parse().expect("there is such a locking");
    let device = Recorder::of_depth(64);
    let scheduler = Box::new(Stumbles { waiting: Vec::new(), at });
    let q = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking).bypass(true);
    let q = q.build().expect("the queue is good");
    let mut submitter = join(&q);
    // Each request that passes takes two records.
    for _ in 0..RING {
        submitter.submit(read(0, 8)).expect("there are slots");
        submitter.poll();
        device.finish_oldest(Status::Ok);
        let _ = reap(&mut submitter);
    }
}
