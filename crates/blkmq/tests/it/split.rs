//! A queue whose scheduler orders each hardware queue by itself.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::device::{Drive, Recorder, join, open, read, write};
use blkmq::driver::Topology;
use blkmq::{Flags, Locking, Measures, QueueError, RequestQueue, Submitter, WeakRequestQueue};
use blkmq_sched::{
    Class, ClientId, DispatchContext, Info, InsertAt, Knob, KnobError, Passing, PerHctx, RqId, Scheduler, Time, Unit,
};

const LOCKINGS: [Locking; 3] = [Locking::Single, Locking::Batch, Locking::Combining];

const KNOBS: &[Knob] =
    &[Knob { name: "number", unit: Unit::Count, default: Some(0), min: 0, max: 9, about: "Means nothing." }];

/// A scheduler for one hardware queue that chooses its latest request first. The number is a knob.
#[derive(Debug, Default)]
struct LatestFirst(Vec<RqId>, i64);

impl Scheduler for LatestFirst {
    fn name(&self) -> &'static str {
        "latest-first"
    }

    fn reserve(&mut self, capacity: usize) {
        self.0.reserve(capacity.saturating_sub(self.0.len()));
    }

    fn insert(&mut self, rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        self.0.push(rq);
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.0.pop()
    }

    fn init_hctx(&self) -> Option<PerHctx> {
        Some(PerHctx { scheduler: Box::new(Self(Vec::new(), self.1)), throttle: None })
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn may_pass(&self, class: Class, _client: ClientId) -> Passing {
        // One number means that it does not let each class pass.
        if self.1 != 7 || class == Class::BestEffort { Passing::All } else { Passing::Nobody }
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn knob(&self, name: &str) -> Option<i64> {
        (name == "number").then_some(self.1)
    }

    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        let knob = KNOBS.iter().find(|knob| knob.name == name).ok_or(KnobError::Unknown)?;
        self.1 = knob.check(value)?;
        Ok(())
    }

    fn show(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        writeln!(out, "number {}", self.1)
    }
}

fn device(default_queues: u16, read_queues: u16, poll_queues: u16) -> Arc<Recorder> {
    let topology = Topology { default_queues, read_queues, poll_queues, depth: 4 };
    Recorder::with(topology)
}

/// Sectors that the device got, by hardware queue.
fn seen(device: &Recorder, nr_hctxs: u16) -> Vec<Vec<u64>> {
    let seen = device.take_seen();
    (0..nr_hctxs).map(|hctx| seen.iter().filter(|seen| seen.hctx == hctx).map(|seen| seen.sector).collect()).collect()
}

/// Red if requests for one hardware queue go to the domain of another one, or wait behind it.
#[test]
fn each_hardware_queue_has_an_order_of_its_own() {
    for locking in LOCKINGS {
        let device = device(2, 0, 0);
        let builder = RequestQueue::builder(device.clone()).scheduler(Box::<LatestFirst>::default());
        let q = builder.locking(locking).bypass(false).build().unwrap();
        let mut both = [join(&q), join(&q)];
        let quiesce = q.quiesce();
        for sector in [0, 100, 200] {
            both[0].submit(read(sector, 8)).unwrap();
            both[1].submit(read(1000 + sector, 8)).unwrap();
        }
        both.iter_mut().for_each(Submitter::flush_plug);
        let dump = q.dump();
        for hctx in 0..2 {
            let line = format!("scheduler latest-first of hctx {hctx} holds 3 queued per hctx [3]");
            assert!(dump.contains(&line), "{locking}: {dump}");
        }
        drop(quiesce);
        // Both were left by a quiescence, so WAITING is set. One thread alone finds both.
        both[0].poll();
        assert_eq!(seen(&device, 2), [[200, 100, 0], [1200, 1100, 1000]], "{locking}");
        device.drain(&mut both.each_mut());
        assert_eq!((q.busy_tags(), q.counters().completed), (0, 6));
    }
}

/// Red if a plug with requests for several hardware queues goes to one domain, or loses its order there.
#[test]
fn the_requests_of_a_plug_go_to_the_domains_of_their_hardware_queues() {
    for locking in LOCKINGS {
        let device = device(1, 1, 1);
        let q = RequestQueue::builder(device.clone()).scheduler("kyber").locking(locking).bypass(false);
        let q = q.build().unwrap();
        let mut one = join(&q);
        let quiesce = q.quiesce();
        let polled = Flags { polled: true, ..Flags::NONE };
        for sector in [0, 100] {
            one.submit(write(sector, 8)).unwrap();
            one.submit(read(1000 + sector, 8)).unwrap();
            one.submit(read(2000 + sector, 8).with_flags(polled)).unwrap();
        }
        one.flush_plug();
        let dump = q.dump();
        for hctx in 0..3 {
            let line = format!("scheduler kyber of hctx {hctx} holds 2 queued per hctx [2]");
            assert!(dump.contains(&line), "{locking}: {dump}");
        }
        drop(quiesce);
        one.poll();
        assert_eq!(seen(&device, 3), [[0, 100], [1000, 1100], [2000, 2100]], "{locking}");
        device.drain(&mut [&mut one]);
    }
}

/// Red if the locking `staged` gets a scheduler whose requests its buckets would mix, or if it is refused without the
/// names.
#[test]
fn staged_is_refused_wherever_it_would_meet_several_orders() {
    let text = "the locking staged has one order for all hardware queues, and kyber orders each of them by itself; with \
                kyber the locking is single, batch or combining";
    let staged = Locking::Staged(Measures::ALL);
    let refused = RequestQueue::builder(device(2, 0, 0)).scheduler("kyber").locking(staged).build().unwrap_err();
    assert_eq!(refused, QueueError::OrdersWhole { locking: "staged", scheduler: "kyber" });
    assert_eq!(refused.to_string(), text);
    let q = RequestQueue::builder(device(2, 0, 0)).scheduler("kyber").build().unwrap();
    assert_eq!(q.change_knob("locking", staged.name()).unwrap().wait().unwrap_err().to_string(), text);
    assert_eq!((q.locking(), q.scheduler()), (Locking::Combining, "kyber"));
    q.change_scheduler("none").unwrap().wait().unwrap();
    q.change_knob("locking", staged.name()).unwrap().wait().unwrap();
    assert_eq!(q.change_scheduler("kyber").unwrap().wait().unwrap_err().to_string(), text);
    assert_eq!((q.locking(), q.scheduler()), (staged, "none"));
    q.change_scheduler("mq-deadline").unwrap().wait().unwrap();
    q.change_knob("locking", Locking::Batch.name()).unwrap().wait().unwrap();
    q.change_scheduler("kyber").unwrap().wait().unwrap();
}

/// Red if a hardware queue that comes gets no scheduler, one with other knobs, or one that went before.
#[test]
fn hardware_queues_that_come_have_the_knobs_of_the_others() {
    let device = open("null,irqmode=0,submit_queues=2,poll_queues=0");
    let q = RequestQueue::builder(device).scheduler(Box::<LatestFirst>::default()).build().unwrap();
    let change = |default_queues| {
        let topology = Topology::new(default_queues, 1);
        q.change_topology(topology).unwrap().wait().unwrap();
    };
    let numbers = || {
        let dump = q.dump();
        dump.lines().filter_map(|line| Some(line.strip_prefix("number ")?.to_owned())).collect::<Vec<_>>()
    };
    q.set_knob("iosched/number", "5").unwrap();
    assert_eq!(numbers(), ["5", "5"]);
    change(4);
    assert_eq!(numbers(), ["5"; 4]);
    change(1);
    q.set_knob("iosched/number", "6").unwrap();
    change(3);
    assert_eq!((numbers(), q.knob("iosched/number")), (vec!["6".to_owned(); 3], Ok("6".to_owned())));
    let mut submitters: Vec<_> = (0..5).map(|_| join(&q)).collect();
    for one in &mut submitters {
        one.submit(read(0, 8)).unwrap();
        assert!(one.wait(1, None).is_ready() && one.reap().is_some());
    }
}

/// Red if requests pass that may not: of a scheduler with classes, or other than reads where that would exceed
/// `async_depth`; or if those do not pass that may.
#[test]
fn requests_pass_a_scheduler_without_classes() {
    for locking in LOCKINGS {
        let device = device(2, 0, 0);
        let q = RequestQueue::builder(device.clone()).scheduler(Box::<LatestFirst>::default());
        let q = q.locking(locking).bypass(true).build().unwrap();
        let mut both = [join(&q), join(&q)];
        let mut passed = |bio| {
            let before = q.counters().bypassed;
            both[1].submit_now(bio);
            device.drain(&mut both.each_mut());
            q.counters().bypassed - before
        };
        assert_eq!((passed(read(0, 8)), passed(write(0, 8))), (1, 1), "{locking}");
        q.set_knob("iosched/number", "7").unwrap();
        assert_eq!((passed(read(0, 8)), passed(write(0, 8))), (0, 0), "{locking}");
        q.set_knob("iosched/number", "0").unwrap();
        assert_eq!(passed(write(0, 8)), 1, "{locking}");
        q.change_scheduler("kyber").unwrap().wait().unwrap();
        assert_eq!((passed(read(0, 8)), passed(write(0, 8))), (1, 1), "{locking}");
        // Three quarters of 4 requests are fewer than the 4 tags.
        q.change_knob("nr_requests", "4").unwrap().wait().unwrap();
        assert_eq!((passed(read(0, 8)), passed(write(0, 8))), (1, 0), "{locking}");
        q.change_knob("bypass", "0").unwrap().wait().unwrap();
        assert_eq!(passed(read(0, 8)), 0, "{locking}");
    }
}

/// Red if a request passes what waits in its own domain, or in another one for want of something.
#[test]
fn requests_do_not_pass_what_waits() {
    for locking in LOCKINGS {
        let device = device(2, 0, 0);
        let q = RequestQueue::builder(device.clone()).scheduler("kyber").locking(locking).bypass(true);
        let q = q.build().unwrap();
        let mut both = [join(&q), join(&q)];
        for sector in 0..4 {
            both[0].submit(read(sector * 100, 8)).unwrap();
        }
        both[0].flush_plug();
        // All four tags are out, so this one waits.
        both[0].submit_now(read(1000, 8));
        assert_eq!((q.counters().bypassed, device.nr_held()), (4, 4), "{locking}");
        both[1].submit_now(read(2000, 8));
        assert_eq!((q.counters().bypassed, device.nr_held()), (4, 5), "{locking}: something waits");
        device.drain(&mut both.each_mut());
        both[1].submit_now(read(2000, 8));
        assert_eq!(q.counters().bypassed, 5, "{locking}: nothing waits");
        device.drain(&mut both.each_mut());
    }
}

/// A scheduler in which nothing ever waits. While it is taken out, another thread asks the queue about its scheduler.
#[derive(Debug)]
struct AsksAtItsEnd {
    q: Arc<Mutex<Option<WeakRequestQueue>>>,
    answer: Arc<Mutex<Option<String>>>,
}

impl Scheduler for AsksAtItsEnd {
    fn name(&self) -> &'static str {
        "asks-at-its-end"
    }

    fn reserve(&mut self, _capacity: usize) {}

    fn insert(&mut self, _rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        unreachable!("nothing is submitted");
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        None
    }

    fn len(&self) -> usize {
        0
    }
}

impl Drop for AsksAtItsEnd {
    fn drop(&mut self) {
        let q = self.q.lock().expect("no thread has panicked with it").as_ref().and_then(WeakRequestQueue::upgrade);
        let ask = move || q.map(|q| q.scheduler().to_owned());
        let answer = thread::spawn(ask).join().unwrap_or_else(|_| Some("panicked".to_owned()));
        *self.answer.lock().expect("no thread has panicked with it") = answer;
    }
}

/// Red if the queue is split for other threads before its hardware queues have domains: the thread that asks panics.
#[test]
fn a_queue_can_be_asked_while_it_becomes_split() {
    let (of_q, answer) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let scheduler = AsksAtItsEnd { q: of_q.clone(), answer: answer.clone() };
    let q = RequestQueue::builder(device(2, 0, 0)).scheduler(Box::new(scheduler)).build().unwrap();
    *of_q.lock().unwrap() = Some(q.downgrade());
    q.change_scheduler("kyber").unwrap().wait().unwrap();
    assert_eq!((answer.lock().unwrap().as_deref(), q.scheduler()), (Some("none"), "kyber"));
}
