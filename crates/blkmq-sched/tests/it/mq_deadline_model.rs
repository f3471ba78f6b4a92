//! The scheduler against a naive model, operation by operation. Red too if the scheduler relies on times that never
//! step back: threads read the clock in another order than they take the scheduler.
//!
//! The long run prints its seed, takes another from `BLKMQ_SEED`, and takes its length from `BLKMQ_OPERATIONS`.

use crate::bench::TIGHT as LIMITS;
use crate::model::Model;
use crate::random::{Random, from_env};
use blkmq_sched::{
    FastRequest, Feedback, FeedbackKind, Info, InsertAt, IoPriority, MAX_FAST_BATCH, MergeLevel, MergeLimits, Op,
    Replay, RqId, Setting, Tally, Time, replay,
};

/// One step of a run. Numbers are taken modulo the range that makes sense.
#[derive(Debug, Clone)]
enum Step {
    Insert {
        info: Info,
        at: InsertAt,
    },
    Merge {
        info: Info,
    },
    /// What a submitter does: merge the request, or insert it if it cannot merge.
    Submit {
        info: Info,
    },
    Dispatch,
    /// Other requests have bypassed the scheduler.
    Resume,
    /// Dispatch the requests that may go. Then hand these requests through, or submit them if the scheduler declines.
    Through {
        infos: Vec<Info>,
    },
    Complete {
        which: usize,
    },
    /// Fold in what has completed, or (`lag`) only what had completed at the previous fold.
    Fold {
        lag: bool,
    },
    Pass {
        time: u64,
    },
    /// The next call comes from a thread that has read the clock so much earlier.
    Back {
        time: u64,
    },
    Knob {
        which: usize,
        value: u64,
    },
    Limits {
        which: usize,
    },
    Force {
        which: usize,
    },
    /// The model chooses by a clock that is so far behind, and the scheduler is made to choose alike.
    Follow {
        behind: u64,
    },
    Reserve {
        capacity: usize,
    },
}

/// The scheduler, the model, and the driver that completes what they dispatch.
struct Run {
    scheduler: Box<dyn Replay>,
    model: Model,
    now: Time,
    next_id: u64,
    in_driver: Vec<(RqId, Info)>,
    completed: Tally,
    completed_at_last_fold: Tally,
    dispatched: usize,
    merged: usize,
    handed_through: usize,
}

impl Run {
    fn new() -> Self {
        let mut scheduler = replay("mq-deadline").expect("there is a scheduler of this name");
        scheduler.configure(Setting::MergeLimits(LIMITS));
        Self {
            scheduler,
            model: Model::new(LIMITS),
            now: Time(0),
            next_id: 0,
            in_driver: Vec::new(),
            completed: Tally::default(),
            completed_at_last_fold: Tally::default(),
            dispatched: 0,
            merged: 0,
            handed_through: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { info, at } => self.insert(&info, at),
            Step::Merge { info } => {
                self.merge(&info);
            }
            Step::Submit { info } => self.submit(&info),
            Step::Dispatch => {
                self.dispatch();
            }
            Step::Resume => {
                self.scheduler.observe(Feedback::BypassEnded);
                self.model.resume();
            }
            Step::Through { ref infos } => self.dispatch_fast(infos),
            Step::Complete { which } if !self.in_driver.is_empty() => {
                let (_, info) = self.in_driver.swap_remove(which % self.in_driver.len());
                self.completed.completed[info.priority.class.index()] += 1;
            }
            Step::Fold { lag } => {
                let tally = if lag { self.completed_at_last_fold } else { self.completed };
                self.completed_at_last_fold = self.completed;
                self.scheduler.observe(Feedback::Sums(&tally));
                self.model.fold(&tally);
            }
            Step::Pass { time } => self.now = self.now.after(time),
            Step::Back { time } => self.now = self.now.before(time),
            Step::Knob { which, value } => self.set_knob(which, value),
            Step::Limits { which } => self.set_limits(which),
            Step::Force { which } => self.force(which),
            Step::Follow { behind } => self.follow(behind),
            Step::Reserve { capacity } => self.scheduler.reserve(capacity),
            Step::Complete { .. } => {}
        }
        assert_eq!(self.scheduler.len(), self.model.len());
        assert_eq!(self.scheduler.feedback() == FeedbackKind::Sums, self.model.wants_tally());
    }

    fn insert(&mut self, info: &Info, at: InsertAt) {
        let rq = RqId(self.next_id);
        self.next_id += 1;
        self.scheduler.insert(rq, info, at, self.now);
        self.model.insert(rq, info, at, self.now);
    }

    fn submit(&mut self, info: &Info) {
        if !self.merge(info) {
            self.insert(info, InsertAt::Sorted);
        }
    }

    /// Red if the choices, or the state that they leave behind (the place on the disk, the running batch, the counts),
    /// are not those of insertion and dispatch, one by one. Also red if something changes although the scheduler
    /// declines.
    fn dispatch_fast(&mut self, infos: &[Info]) {
        while self.dispatch() {}
        if infos.len().is_multiple_of(2) {
            // So that no other class is queued.
            self.complete_all();
        }
        let request = |(id, info): (u64, &Info)| FastRequest { rq: RqId(id), info: *info };
        let batch: Vec<FastRequest> = (self.next_id..).zip(infos).map(request).collect();
        let mut order = vec![u8::MAX; infos.len()];
        let Some(like) = infos.first() else { return };
        assert!(infos.iter().all(|info| (info.op, info.priority.class) == (like.op, like.priority.class)));
        if !self.scheduler.dispatch_fast(&batch, self.now, &mut order) {
            infos.iter().for_each(|info| self.submit(info));
            return;
        }
        assert_eq!(self.model.len(), 0, "something waited");
        self.next_id += infos.len() as u64;
        for FastRequest { rq, info } in &batch {
            assert_eq!(self.model.merge(info), None);
            self.model.insert(*rq, info, InsertAt::Sorted, self.now);
        }
        for place in order.into_iter().map(usize::from) {
            let FastRequest { rq, info } = batch[place];
            assert_eq!(self.model.dispatch(self.now), Some(rq));
            self.in_driver.push((rq, info));
        }
        self.dispatched += infos.len();
        self.handed_through += infos.len();
    }

    fn merge(&mut self, info: &Info) -> bool {
        let merge = self.scheduler.merge(info);
        assert_eq!(merge, self.model.merge(info));
        self.merged += usize::from(merge.is_some());
        merge.is_some()
    }

    fn dispatch(&mut self) -> bool {
        let waiting: Vec<(RqId, Info)> = self.model.waiting().collect();
        let peeked = self.scheduler.peek(&mut (), self.now);
        let chosen = self.scheduler.dispatch(&mut (), self.now);
        assert_eq!(peeked, chosen);
        assert_eq!(chosen, self.model.dispatch(self.now));
        let Some(rq) = chosen else {
            let wakeup = self.scheduler.next_wakeup().map(|time| time.max(self.now));
            assert_eq!(wakeup, self.model.next_wakeup(self.now));
            return false;
        };
        let info = waiting.iter().find(|(id, _)| *id == rq).expect("only what waits is chosen").1;
        self.in_driver.push((rq, info));
        self.dispatched += 1;
        true
    }

    fn force(&mut self, which: usize) {
        let waiting: Vec<(RqId, Info)> = self.model.waiting().collect();
        let unknown = (RqId(u64::MAX), info(0, 0, 0, 0));
        let (rq, info) = *waiting.get(which % (waiting.len() + 1)).unwrap_or(&unknown);
        let found = self.scheduler.force(rq, self.now);
        assert_eq!(found, self.model.force(rq, self.now));
        if found {
            self.in_driver.push((rq, info));
        }
    }

    /// Red if a scheduler that chose otherwise is not brought to the model's state: later choices would differ. With
    /// two classes queued the model may have chosen for either of two reasons, so the state is not certain.
    fn follow(&mut self, behind: u64) {
        if self.model.wants_tally() {
            return;
        }
        let waiting: Vec<(RqId, Info)> = self.model.waiting().collect();
        let Some(rq) = self.model.dispatch(self.now.before(behind)) else { return };
        assert!(self.scheduler.force(rq, self.now));
        self.in_driver.extend(waiting.iter().find(|(id, _)| *id == rq));
    }

    fn set_knob(&mut self, which: usize, value: u64) {
        let knobs = &mut self.model.knobs;
        let name = ["read_expire", "write_expire", "writes_starved", "front_merges", "fifo_batch", "prio_aging_expire"]
            [which % 6];
        let value = match name {
            "writes_starved" => value as i64 % 5 - 1,
            "front_merges" => value as i64 % 2,
            "fifo_batch" => value as i64 % 6,
            _ => value as i64 % 30,
        };
        match name {
            "read_expire" => knobs.read_expire = value as u64,
            "write_expire" => knobs.write_expire = value as u64,
            "writes_starved" => knobs.writes_starved = value,
            "front_merges" => knobs.front_merges = value == 1,
            "fifo_batch" => knobs.fifo_batch = value,
            _ => knobs.prio_aging_expire = value as u64,
        }
        self.scheduler.set_knob(name, value).expect("the value is within the range");
        assert_eq!(self.scheduler.knob(name), Some(value));
    }

    fn set_limits(&mut self, which: usize) {
        let limits = match which % 4 {
            0 => MergeLimits { boundary_sectors: 16, ..LIMITS },
            1 => MergeLimits { max_discard_segments: 1, max_segments: 3, ..LIMITS },
            2 => MergeLimits { max_sectors: 7, max_discard_sectors: 0, max_write_zeroes_sectors: 0, ..LIMITS },
            _ => LIMITS,
        };
        self.scheduler.configure(Setting::MergeLimits(limits));
        self.model.limits = limits;
    }

    fn complete_all(&mut self) {
        for (_, info) in self.in_driver.drain(..) {
            self.completed.completed[info.priority.class.index()] += 1;
        }
        self.scheduler.observe(Feedback::Sums(&self.completed));
        self.model.fold(&self.completed);
    }

    /// Dispatches every request. No request may be lost, and once all have completed no state may be left.
    fn drain(&mut self) {
        while self.scheduler.len() > 0 {
            while self.dispatch() {}
            self.complete_all();
        }
        self.complete_all();
        let mut shown = String::new();
        self.scheduler.show(&mut shown).expect("a string takes everything");
        assert!(shown.contains("\nqueued: 0 0 0\n") && shown.contains("\nowned_by_driver: 0 0 0\n"), "{shown}");
        assert!(!shown.contains("rq "), "{shown}");
    }
}

fn info(shape: u64, sector: u64, nr_sectors: u64, class: u64) -> Info {
    let op = match shape % 16 {
        0..8 => Op::Read,
        8..13 => Op::Write,
        13..15 => Op::Discard,
        _ => Op::WriteZeroes,
    };
    let merge = match shape / 16 % 8 {
        0 => MergeLevel::Never,
        1 => MergeLevel::LastOnly,
        _ => MergeLevel::Full,
    };
    Info {
        sector,
        nr_sectors: nr_sectors as u32,
        nr_segments: 1 + (shape / 128 % 4 / 3) as u16,
        op,
        sync: op == Op::Read,
        priority: IoPriority { class: crate::model::class(class), level: 4 },
        merge,
        merge_key: u64::from((shape / 512).is_multiple_of(8)),
        ..Info::default()
    }
}

/// Random steps.
impl Random {
    /// A newcomer that touches `near` at its beginning or end. Most newcomers may merge with `near`.
    fn neighbor(&mut self, near: &Info, length: u64) -> Info {
        let sector = if self.below(2) == 0 { near.end() } else { near.sector.saturating_sub(length) };
        let newcomer = info(self.next(), sector, length, 0);
        if self.below(10) == 0 {
            return newcomer;
        }
        Info { op: near.op, priority: near.priority, merge_key: near.merge_key, ..newcomer }
    }

    /// Requests of one class and operation. In some sets no two touch, in others two do.
    fn fast_batch(&mut self, class: u64) -> Vec<Info> {
        let most = if self.below(4) == 0 { MAX_FAST_BATCH as u64 + 1 } else { 6 };
        let (shape, number) = (self.next(), 1 + self.below(most));
        let room = number * (8 << self.below(6));
        (0..number).map(|_| info(shape, self.below(room), self.below(6), class)).collect()
    }

    /// `one_class` and `load` change with the phases of a run, so that each state of the scheduler comes up.
    fn step(&mut self, one_class: bool, load: u64, near: Option<Info>) -> Step {
        let which = self.below(1 << 32) as usize;
        let class = if one_class { 1 } else { self.below(3) };
        let length = if self.below(100) == 0 { 0 } else { 1 + self.below(6) };
        let info = match near {
            Some(near) if self.below(2) == 0 => self.neighbor(&near, length),
            _ => info(self.next(), self.below(64), length, class),
        };
        match self.below(1000) {
            _ if self.below(100) == 0 => Step::Resume,
            _ if self.below(50) == 0 => Step::Through { infos: self.fast_batch(class) },
            0..60 => Step::Insert { info, at: InsertAt::Sorted },
            60..80 => Step::Insert { info, at: InsertAt::Head },
            80..200 => Step::Merge { info },
            200..400 => Step::Submit { info },
            400..440 => Step::Pass { time: self.below(3_000_000) },
            440..450 => Step::Pass { time: self.below(20_000_000) },
            450..460 => Step::Back { time: self.below(6_000_000) },
            460..466 => Step::Knob { which, value: self.next() % 1000 },
            466..467 => Step::Limits { which },
            467..474 => Step::Force { which },
            474..480 => Step::Follow { behind: self.below(20_000_000) },
            480..481 => Step::Reserve { capacity: which % 200 },
            481..520 => Step::Fold { lag: which.is_multiple_of(3) },
            roll if roll < 660 + load => Step::Complete { which },
            _ => Step::Dispatch,
        }
    }
}

#[test]
fn a_million_random_operations_agree_with_the_model() {
    let (seed, operations) = (from_env("BLKMQ_SEED", 0x5eed), from_env("BLKMQ_OPERATIONS", 1_000_000));
    println!("BLKMQ_SEED={seed} BLKMQ_OPERATIONS={operations}");
    let mut random = Random(seed);
    let mut run = Run::new();
    let (mut dispatched, mut merged, mut handed_through) = (0, 0, 0);
    for number in 0..operations {
        if number % 5_000 == 4_999 {
            run.drain();
            dispatched += run.dispatched;
            merged += run.merged;
            handed_through += run.handed_through;
            run = Run::new();
        }
        let phase = number / 1000;
        let place = random.below(64) as usize;
        let near = run.model.waiting().nth(place).map(|(_, info)| info);
        let mut step = random.step(phase % 4 == 0, phase % 5 * 50, near);
        // So few requests keep the linear scans of the model short.
        if run.scheduler.len() >= 60 {
            step = Step::Dispatch;
            run.now = run.now.after(random.below(40_000_000));
            run.scheduler.observe(Feedback::Sums(&run.completed));
            run.model.fold(&run.completed);
            if let Some((_, info)) = run.in_driver.pop() {
                run.completed.completed[info.priority.class.index()] += 1;
            }
        }
        let trail = Trail(number, step.clone());
        run.step(&step);
        std::mem::forget(trail);
    }
    println!("{dispatched} dispatched, {merged} merged, {handed_through} handed through");
    assert!(handed_through as u64 > operations / 200, "only {handed_through} handed through");
    assert!(dispatched as u64 > operations / 10, "only {dispatched} dispatched");
    assert!(merged as u64 > operations / 40, "only {merged} merged");
}

/// Prints the step that failed, when a failed check unwinds past this value.
struct Trail(u64, Step);

impl Drop for Trail {
    fn drop(&mut self) {
        println!("operation {}: {:?}", self.0, self.1);
    }
}

/// Every sequence of up to six of these steps. The steps share classes, directions, sectors that touch, and a batch of
/// two, so that each pair of rules meets.
#[test]
fn every_short_sequence_agrees_with_the_model() {
    let (read, write) = (0x20, 0x28);
    let steps = [
        Step::Submit { info: info(read, 8, 4, 1) },
        Step::Submit { info: info(read, 4, 4, 1) },
        Step::Submit { info: info(write, 0, 4, 1) },
        Step::Submit { info: info(read, 8, 4, 0) },
        Step::Insert { info: info(write, 2, 4, 2), at: InsertAt::Head },
        Step::Dispatch,
        Step::Fold { lag: false },
        Step::Pass { time: 6_000_000 },
    ];
    for length in 1..=6 {
        for code in 0..steps.len().pow(length) {
            let mut run = Run::new();
            for (which, value) in [(0, 5), (1, 11), (2, 2), (4, 2), (5, 12)] {
                run.set_knob(which, value);
            }
            for place in 0..length {
                run.step(&steps[code / steps.len().pow(place) % steps.len()]);
            }
        }
    }
}
