//! Requests for which the scheduler has no room: whatever the locking, they come into it once each, in the order of
//! their submitter and kind, and as soon as there is room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::ways::{Way, every, whole};
use crate::device::{ONE_QUEUE, Recorder, join, read, reap};
use blkmq::driver::{Driver, Topology, spec};
use blkmq::{Bio, Buffer, Flags, Limits, RequestQueue, Status};
use blkmq_sched::{
    Admission, Class, ClientId, DispatchContext, Info, InsertAt, Op, Outstanding, Passing, PerHctx, RqId, Scheduler,
    Time,
};

/// Requests that were inserted: their sector and operation, in order.
type Log = Arc<Mutex<Vec<(u64, Op)>>>;

/// First in, first out, with a log of what came in. For each hardware queue one, if it is split. The depth bounds
/// requests other than reads, and a test changes it.
#[derive(Debug)]
struct Logged {
    waiting: VecDeque<RqId>,
    log: Log,
    depth: Arc<AtomicU32>,
    is_split: bool,
}

impl Scheduler for Logged {
    fn name(&self) -> &'static str {
        "logged"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
    }

    fn insert(&mut self, rq: RqId, info: &Info, _at: InsertAt, _now: Time) {
        self.waiting.push_back(rq);
        self.log.lock().expect("no test panicked").push((info.sector, info.op));
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.waiting.pop_front()
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn init_hctx(&self) -> Option<PerHctx> {
        let (log, depth) = (Arc::clone(&self.log), Arc::clone(&self.depth));
        let scheduler = Box::new(Self { waiting: VecDeque::new(), log, depth, is_split: true });
        self.is_split.then_some(PerHctx { scheduler, throttle: None })
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let depth = self.depth.load(Ordering::Relaxed);
        Admission::fitting(newcomer.op.is_read() || outstanding.is_below(depth))
    }

    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        Passing::Nobody
    }
}

/// Sectors of one submitter.
const SECTORS: u64 = 1 << 20;

/// A device that keeps what it gets.
fn device(topology: Topology) -> Arc<Recorder> {
    Recorder::new(Limits { capacity_sectors: 16 * SECTORS, ..Limits::default() }, topology)
}

/// A queue with room for so many requests in a scheduler that logs them.
fn queue(way: Way, device: Arc<dyn Driver>, nr_requests: u32) -> (RequestQueue, Log) {
    queue_with(way, device, nr_requests, Arc::new(AtomicU32::new(u32::MAX)))
}

fn queue_with(way: Way, device: Arc<dyn Driver>, nr: u32, depth: Arc<AtomicU32>) -> (RequestQueue, Log) {
    let log = Log::default();
    let waiting = VecDeque::new();
    let scheduler = Box::new(Logged { waiting, log: Arc::clone(&log), depth, is_split: way.is_split });
    let builder = way.builder(device).scheduler(scheduler).nr_requests(nr);
    (builder.build().expect("the queue is good"), log)
}

/// Operation `number` of submitter `by`: reads and writes, which are of different kinds.
fn operation(by: u64, number: u64) -> Bio {
    let sector = by * SECTORS + number * 16;
    if number.is_multiple_of(3) {
        Bio::write(sector, Buffer::zeroed(512))
    } else {
        Bio::read(sector, Buffer::zeroed(512))
    }
}

/// Asserts that `each` operations of every submitter came in, each once, and those of one kind in their order.
fn assert_in_order(log: &Log, nr_submitters: u64, each: u64, what: &str) {
    let log = log.lock().expect("no test panicked");
    for by in 0..nr_submitters {
        for op in [Op::Read, Op::Write] {
            let came = log.iter().filter(|(sector, of)| sector / SECTORS == by && *of == op).map(|(sector, _)| *sector);
            let bios = (0..each).map(|number| operation(by, number)).filter(|bio| bio.op == op);
            let expected = bios.map(|bio| bio.sector);
            assert!(came.eq(expected), "{what}: the {op:?}s of submitter {by} came as {log:?}");
        }
    }
}

/// Red if a request without room is forgotten, comes in twice or behind a later one, or waits until its own submitter
/// polls: under `single`, `batch` and `staged` without the look at the backlog in `dispatch_ordered`, or if an
/// insertion that finds no room does not set WAITING; and under `combining` without the look in `serve`.
#[test]
fn who_completes_lets_in_what_found_no_room_one_by_one_and_in_order() {
    for way in every() {
        let device = device(Topology { depth: 2, ..ONE_QUEUE });
        let (q, log) = queue(way, device.clone(), 2);
        let (mut polls, mut idle) = (join(&q), join(&q));
        for number in 0..12 {
            for (by, submitter) in [(0, &mut polls), (1, &mut idle)] {
                submitter.submit(operation(by, number)).expect("there are slots");
                if number % 3 == 2 {
                    submitter.flush_plug();
                }
            }
        }
        // What was staged goes on when a thread polls.
        polls.poll();
        for left in (1..=24).rev() {
            if device.nr_held() != 2.min(left) {
                // The submitters would wait forever.
                std::mem::forget((polls, idle));
                panic!("{way}: of {left} requests the device has {}: {}", device.nr_held(), q.dump());
            }
            device.finish_oldest(Status::Ok);
            polls.poll();
        }
        assert_eq!([&mut polls, &mut idle].map(|submitter| reap(submitter).len()), [12, 12], "{way}");
        assert_in_order(&log, 2, 12, &way.to_string());
    }
}

/// Red if room that has come goes to a request that comes now, and not to one that waited for it: without the retry
/// before the plug in `insert_in_turn`, and without that in `serve` under `combining`.
#[test]
fn room_that_has_come_is_for_who_waited_for_it() {
    for way in every() {
        let (device, depth) = (device(ONE_QUEUE), Arc::new(AtomicU32::new(1)));
        let (q, log) = queue_with(way, device.clone(), 64, Arc::clone(&depth));
        let (mut first, mut second) = (join(&q), join(&q));
        let write = |sector| Bio::write(sector, Buffer::zeroed(512));
        for sector in [0, 100] {
            first.submit(write(sector)).expect("there are slots");
            first.poll();
        }
        depth.store(2, Ordering::Relaxed);
        second.submit(write(200)).expect("there are slots");
        second.poll();
        let came = || log.lock().expect("no test panicked").iter().map(|(sector, _)| *sector).collect::<Vec<_>>();
        let before = came();
        device.drain(&mut [&mut first, &mut second]);
        assert_eq!((before, came()), (vec![0, 100], vec![0, 100, 200]), "{way}");
    }
}

/// Red if a request passes an earlier one of its submitter and kind that found no room, because its own hardware queue
/// has some. In a split queue the two wait behind different schedulers.
#[test]
fn who_has_room_elsewhere_waits_behind_who_has_none() {
    for way in whole() {
        let device = device(Topology { read_queues: 1, depth: 1, ..ONE_QUEUE });
        let (q, log) = queue(way, device.clone(), 1);
        let mut submitter = join(&q);
        let sync = Flags { sync: true, ..Flags::NONE };
        for sector in [0, 100] {
            submitter.submit(Bio::write(sector, Buffer::zeroed(512)).with_flags(sync)).expect("there are slots");
            submitter.poll();
        }
        submitter.submit(read(200, 1)).expect("there are slots");
        submitter.poll();
        assert_eq!(device.nr_held(), 1, "{way}");
        device.drain(&mut [&mut submitter]);
        let order: Vec<_> = log.lock().expect("no test panicked").iter().map(|(sector, _)| *sector).collect();
        assert_eq!(order, [0, 100, 200], "{way}");
    }
}

/// Red if an operation that must not wait waits for room, also behind one that does.
#[test]
fn nowait_behind_one_without_room_does_not_wait() {
    for way in every() {
        let device = device(ONE_QUEUE);
        let q = way.builder(device.clone()).nr_requests(1).build().expect("the queue is good");
        let mut submitter = join(&q);
        submitter.submit(read(0, 1)).expect("there are slots");
        submitter.submit(read(100, 1)).expect("there are slots");
        let nowait = Flags { nowait: true, ..Flags::default() };
        submitter.submit(read(200, 1).with_flags(nowait)).expect("there are slots");
        let done = reap(&mut submitter);
        let refused: Vec<_> = done.iter().map(|done| (done.bio.sector, done.status)).collect();
        assert_eq!(refused, [(200, Status::Again)], "{way}");
        device.drain(&mut [&mut submitter]);
    }
}

/// Red if a request for which a scheduler has no room keeps its submitter from leaving, or is handed back although it
/// has entered the queue.
#[test]
fn a_submitter_that_leaves_waits_for_what_found_no_room() {
    for way in every() {
        let device = spec::open("null,irqmode=2,completion_nsec=1ms,hw_queue_depth=4,poll_queues=0");
        let q = way.builder(device.expect("the spec is good")).nr_requests(1).build().expect("the queue is good");
        let mut submitter = join(&q);
        for sector in [0, 100, 200] {
            submitter.submit(read(sector, 1)).expect("there are slots");
        }
        submitter.flush_plug();
        assert_eq!((q.counters().entered, q.counters().completed), (3, 0), "{way}");
        let issued = q.counters().issued;
        assert!(issued == 1 || way.stages_all && issued == 0, "{way}: there is room for one");
        assert_eq!(submitter.leave().len(), 0, "{way}");
        assert_eq!(q.counters().completed, 3, "{way}");
    }
}
