//! Replays of traces that the naive model of mq-deadline made. Now and then the model chooses otherwise than its trace
//! says, as Linux does: by a clock that is a tick behind, or with an insertion that the trace has on the other side of
//! the choice.

use std::collections::VecDeque;
use std::mem;

use blkmq_sched::{Class, Info, InsertAt, IoPriority, MergeLevel, MergeLimits, Op, RqId, Tally, Time};
use blkmq_workbench::{Classes, Settings};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::model::{Knobs, Model};
use crate::whole;
use crate::written::Trace;

/// Microseconds of a tick of Linux's timer.
const TICK: u64 = 4_000;
/// How long the device takes for a request, in microseconds.
const SERVICE: u64 = 507;
/// How many choices of each load may be disturbed.
const CHOICES: usize = 4_000;
/// Where the sectors of each class and direction lie.
const CLASSES: &str = "0 2000000 rt\n2000000 4000000 be\n4000000 6000000 idle\n";

/// What a recording is of.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// In milliseconds.
    read_expire: u64,
    write_expire: u64,
    fifo_batch: i64,
    writes_starved: i64,
    /// How many requests the device takes at once.
    tags: usize,
    /// How many requests of each class are outstanding all the time, half of them reads: rt, be, idle.
    outstanding: [usize; 3],
}

/// Expiries about as long as requests wait, shorter, and longer.
#[rustfmt::skip]
const LOADS: [Load; 10] = [
    Load { read_expire: 24, write_expire: 60, fifo_batch: 4, writes_starved: 1, tags: 1, outstanding: [0, 48, 0] },
    Load { read_expire: 20, write_expire: 28, fifo_batch: 1, writes_starved: 1, tags: 1, outstanding: [0, 48, 0] },
    Load { read_expire: 16, write_expire: 32, fifo_batch: 2, writes_starved: 2, tags: 1, outstanding: [0, 48, 0] },
    Load { read_expire: 12, write_expire: 40, fifo_batch: 16, writes_starved: 3, tags: 1, outstanding: [0, 48, 0] },
    Load { read_expire: 16, write_expire: 24, fifo_batch: 3, writes_starved: 2, tags: 2, outstanding: [0, 32, 0] },
    Load { read_expire: 20, write_expire: 12, fifo_batch: 8, writes_starved: 1, tags: 4, outstanding: [0, 48, 0] },
    Load { read_expire: 0, write_expire: 0, fifo_batch: 6, writes_starved: 1, tags: 1, outstanding: [0, 24, 0] },
    Load { read_expire: 28, write_expire: 24, fifo_batch: 5, writes_starved: 4, tags: 4, outstanding: [0, 60, 0] },
    Load { read_expire: 500, write_expire: 5000, fifo_batch: 16, writes_starved: 2, tags: 1, outstanding: [0, 48, 0] },
    Load { read_expire: 20, write_expire: 40, fifo_batch: 5, writes_starved: 2, tags: 1, outstanding: [16, 8, 6] },
];

/// In milliseconds: on the load of three classes, lower ones go now and then.
const PRIO_AGING_EXPIRE: u64 = 60;

/// Of so many choices one is disturbed in this way; 0: none.
#[derive(Debug, Clone, Copy, Default)]
struct Disturbance {
    late_tick: u64,
    misplaced: u64,
}

/// Linux: the model behind a device, and the trace of both.
struct Recorder {
    model: Model,
    disturbance: Disturbance,
    random: SmallRng,
    /// In microseconds.
    now: u64,
    trace: Trace,
    /// What was inserted, by number.
    infos: Vec<Info>,
    /// What was chosen and waits for a tag.
    kept: Option<RqId>,
    /// When each request in the device completes, and what it is.
    driver: VecDeque<(u64, Info)>,
    completed: Tally,
    /// How many choices are not what the model chooses by what the trace says.
    changed: usize,
}

impl Recorder {
    fn new(load: Load, disturbance: Disturbance, seed: u64) -> Self {
        let Load { read_expire, write_expire, fifo_batch, writes_starved, .. } = load;
        let mut model = Model::new(MergeLimits::default());
        let prio_aging_expire = PRIO_AGING_EXPIRE;
        model.knobs = Knobs { read_expire, write_expire, writes_starved, fifo_batch, prio_aging_expire, ..model.knobs };
        Self {
            model,
            disturbance,
            random: SmallRng::seed_from_u64(seed),
            now: 1_000,
            trace: Trace::default(),
            infos: Vec::new(),
            kept: None,
            driver: VecDeque::new(),
            completed: Tally::default(),
            changed: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    /// True once in so many times.
    fn strikes(&mut self, one_of: u64) -> bool {
        one_of > 0 && self.below(one_of) == 0
    }

    fn record(&mut self, action: &str, info: &Info) {
        let what = format!("{action}{}", if info.op == Op::Read { "" } else { "w" });
        self.now += 1;
        self.trace = mem::take(&mut self.trace).at(self.now).add(1, &what, info.sector, info.nr_sectors);
    }

    /// The time as the trace tells it.
    fn ticks(&self) -> Time {
        Time((self.now - self.now % TICK) * 1000)
    }

    /// A request at sectors where none waits, so that a record tells which one it is about.
    fn newcomer(&mut self, op: Op, class: Class) -> Info {
        let base = 2_000_000 * class.index() as u64 + 1_000_000 * u64::from(op != Op::Read);
        let sector = loop {
            let sector = base + 8 * self.below(65_000);
            if self.model.waiting().all(|(_, info)| info.sector != sector) {
                break sector;
            }
        };
        let nr_sectors = if op == Op::Read { 8 } else { 8 * (1 + self.below(16) as u32) };
        Info {
            sector,
            nr_sectors,
            nr_segments: 1,
            op,
            sync: op == Op::Read,
            priority: IoPriority { class, ..IoPriority::default() },
            merge: MergeLevel::Full,
            ..Info::default()
        }
    }

    fn next_id(&self) -> RqId {
        RqId(self.infos.len() as u64)
    }

    fn insert(&mut self, info: &Info) {
        self.model.insert(self.next_id(), info, InsertAt::Sorted, self.ticks());
        self.infos.push(*info);
    }

    /// The model chooses. `told`: the model as the trace tells of it.
    fn choose(&mut self, mut told: Model) {
        told.fold(&self.completed);
        self.model.fold(&self.completed);
        let behind = if self.strikes(self.disturbance.late_tick) { TICK * 1000 } else { 0 };
        self.kept = self.model.dispatch(self.ticks().before(behind));
        self.changed += usize::from(self.kept != told.dispatch(self.ticks()));
    }

    /// The device takes the kept request.
    fn issue(&mut self) {
        let RqId(kept) = self.kept.take().expect("the model always has a request to give");
        let info = self.infos[kept as usize];
        self.record("D", &info);
        self.driver.push_back((self.now + SERVICE, info));
    }

    /// A request has completed. The next is issued, another is chosen, and the submitter brings a new one.
    fn turn(&mut self) {
        let (done, info) = self.driver.pop_front().expect("the device is never idle");
        self.now = self.now.max(done);
        // No tick falls within a turn, so that only a disturbed choice is made by another clock.
        if self.now % TICK > TICK - 20 {
            self.now += 20;
        }
        self.record("C", &info);
        self.completed.completed[info.priority.class.index()] += 1;
        let newcomer = self.newcomer(info.op, info.priority.class);
        let is_misplaced = self.strikes(self.disturbance.misplaced);
        match (is_misplaced, self.below(2)) {
            (false, _) => {
                self.issue();
                self.choose(self.model.clone());
                self.record("I", &newcomer);
                self.insert(&newcomer);
            }
            (true, 0) => {
                self.record("I", &newcomer);
                self.issue();
                let mut told = self.model.clone();
                told.insert(self.next_id(), &newcomer, InsertAt::Sorted, self.ticks());
                self.choose(told);
                self.insert(&newcomer);
            }
            (true, _) => {
                let told = self.model.clone();
                self.insert(&newcomer);
                self.issue();
                self.choose(told);
                self.record("I", &newcomer);
            }
        }
    }
}

/// A trace of the load, and how many of its choices are disturbed.
fn trace(load: Load, disturbance: Disturbance, seed: u64) -> (Vec<u8>, usize) {
    let mut recorder = Recorder::new(load, disturbance, seed);
    for class in Class::ALL {
        for number in 0..load.outstanding[class.index()] {
            let newcomer = recorder.newcomer(if number % 2 == 0 { Op::Read } else { Op::Write }, class);
            recorder.record("I", &newcomer);
            recorder.insert(&newcomer);
        }
    }
    recorder.disturbance = Disturbance::default();
    for _ in 0..load.tags {
        recorder.choose(recorder.model.clone());
        recorder.issue();
    }
    recorder.choose(recorder.model.clone());
    recorder.disturbance = disturbance;
    for _ in 0..CHOICES {
        recorder.turn();
    }
    recorder.issue();
    (recorder.trace.bytes, recorder.changed)
}

/// Replays a trace of each load, and returns how many choices disagree in all: as many as were disturbed.
fn follow(disturbance: Disturbance, loads: &[Load]) -> usize {
    let classes = Classes::parse("classes.txt", CLASSES).expect("the classes are well formed");
    let mut all = 0;
    for (seed, load) in (1..).zip(loads.iter().copied()) {
        let (bytes, changed) = trace(load, disturbance, seed);
        let Load { read_expire, write_expire, fifo_batch, writes_starved, tags, .. } = load;
        let settings = format!(
            "scheduler none [mq-deadline]\nnr_requests 64\nread_expire {read_expire}\nwrite_expire {write_expire}\n\
             fifo_batch {fifo_batch}\nwrites_starved {writes_starved}\nprio_aging_expire {PRIO_AGING_EXPIRE}\n"
        );
        let settings = Settings::parse("queue.txt", &settings).expect("the settings are well formed");
        let events = whole::events(&bytes);
        let agreement = whole::replay(&events, &settings, &classes).expect("the settings are accepted");
        assert_eq!(agreement.choices.len(), CHOICES + tags + 1);
        let disagree = agreement.choices.len() - agreement.agree();
        println!("{load:?}: {changed} disturbed, {disagree} disagree, {:.2} % agree", agreement.percent());
        assert_eq!(disagree, changed, "{load:?}");
        all += disagree;
    }
    all
}

/// Red if a rule of mq-deadline is missing from the replay, or if it chooses at another moment.
#[test]
fn an_undisturbed_trace_is_followed_choice_by_choice() {
    assert_eq!(follow(Disturbance::default(), &LOADS), 0);
}

/// Red if a choice by a late clock leaves our scheduler with another position, batch or count than Linux's: choices
/// that were not disturbed would disagree.
#[test]
fn a_choice_by_a_late_clock_costs_itself_alone() {
    let all = follow(Disturbance { late_tick: 4, misplaced: 0 }, &LOADS);
    assert!(all > 300, "only {all} disagree");
}

/// Red if what the trace has on the wrong side of a choice leaves our scheduler with another state than Linux's. With
/// three classes the look for aged requests meets what is misplaced too, and then the choice does not show it.
#[test]
fn a_misplaced_insertion_costs_itself_alone() {
    let all = follow(Disturbance { late_tick: 0, misplaced: 4 }, &LOADS[..9]);
    assert!(all > 100, "only {all} disagree");
}
