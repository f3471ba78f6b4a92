//! What is counted of a run: by the threads of the load, by the block layer's own counters, and by the model.
//!
//! All virtual CPUs of a run are on one thread of the machine, which counts here. Nothing here costs virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blkmq_sync_virtual::Stage;
use blkmq_vcpu::cache::{Access, Picoseconds};
use blkmq_vcpu::{Accessed, CpuId, cpu, time, uninterrupted};
use blkmq_virtual::{HoldStep, QueueCounters, RequestQueue, Wait, WeakRequestQueue, watch_holds};

/// What happened to the lines of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moves {
    /// How many lines moved from one CPU to another, or were made void elsewhere.
    pub(crate) moved: u64,
    /// For how long CPUs waited because a line was busy with other CPUs, in picoseconds.
    pub(crate) waited: Picoseconds,
}

/// When a run is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Operations to be completed before the measurement begins.
    pub(crate) warm: u64,
    /// The virtual time before which the measurement does not begin, in nanoseconds.
    pub(crate) warm_ns: u64,
    /// Operations to be completed in the measurement.
    pub(crate) wanted: u64,
}

/// What one thread does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Thread {
    waits_for_lock: bool,
    waits_for_completions: bool,
    /// Requests that other threads left, and that this one took over: in all, and since the measurement began.
    taken_over: u64,
    measured: u64,
    /// Requests that it has inserted since it took the scheduler's lock.
    in_hold: u64,
    /// When it got the scheduler's lock, while it has the lock.
    holds_since: Option<u64>,
    /// How long its measured operations took, in nanoseconds, and whether it took over other threads' requests
    /// meanwhile.
    pub(crate) latencies: Vec<(u64, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Before,
    Measuring,
    Over,
}

/// What was counted of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    plan: Plan,
    phase: Phase,
    completed: u64,
    /// Operations that are completed when the measurement ends.
    end: u64,
    began_ns: u64,
    began_stats: QueueCounters,
    /// The queues of the run, whose statistics are added up.
    queues: Vec<WeakRequestQueue>,
    /// Why an operation failed, which ends the run.
    pub(crate) failed: Option<String>,
    pub(crate) ns: u64,
    pub(crate) stats: QueueCounters,
    pub(crate) lines: BTreeMap<&'static str, Moves>,
    pub(crate) threads: Vec<Thread>,
    /// For how long CPUs waited for lines while they waited for no lock.
    pub(crate) waited: Picoseconds,
    /// For how long threads waited for completions, and how much private work they did meanwhile, because they looked
    /// whether something had completed.
    pub(crate) in_wait_ns: u64,
    pub(crate) work_in_wait: Picoseconds,
    /// Requests inserted in one hold of the scheduler's lock, for each hold that inserted any.
    pub(crate) batches: Vec<u64>,
    /// How long threads had the scheduler's lock, in nanoseconds.
    pub(crate) hold_ns: Vec<u64>,
    /// How long each request that was left waited for the thread that took it over.
    pub(crate) staged_ns: Vec<u64>,
}

thread_local! {
    static TALLY: RefCell<Tally> = RefCell::default();
}

fn with<R>(act: impl FnOnce(&mut Tally) -> R) -> R {
    TALLY.with_borrow_mut(act)
}

/// Begins to count for a run of so many threads.
pub(crate) fn begin(threads: usize, plan: Plan) {
    watch_holds(Some(held));
    with(|tally| *tally = Tally { plan, threads: vec![Thread::default(); threads], ..Tally::default() });
}

/// The run goes through these queues.
pub(crate) fn runs_through(queues: &[RequestQueue]) {
    with(|tally| tally.queues = queues.iter().map(RequestQueue::downgrade).collect());
}

/// What was counted. `None`: the run ended before enough operations were over.
pub(crate) fn take() -> Option<Tally> {
    watch_holds(None);
    Some(with(std::mem::take)).filter(|tally| tally.phase == Phase::Over)
}

/// An operation has failed. That ends the run.
pub(crate) fn fail(why: String) {
    with(|tally| {
        tally.phase = Phase::Over;
        _ = tally.failed.get_or_insert(why);
    });
}

pub(crate) fn is_over() -> bool {
    with(|tally| tally.phase == Phase::Over)
}

/// Counts an operation on something shared.
pub(crate) fn accessed(accessed: &Accessed) {
    let Accessed { cpu, line: Some(line), access, cost: Some(cost), .. } = *accessed else { return };
    if cost.moved == 0 && cost.waited == 0 {
        return;
    }
    with(|tally| {
        if tally.phase != Phase::Measuring {
            return;
        }
        let moves = tally.lines.entry(line.name).or_default();
        moves.moved += u64::from(cost.moved);
        // A CPU does not wait for a store.
        if access != Access::Store {
            moves.waited += cost.waited;
            if !tally.threads[usize::from(cpu)].waits_for_lock {
                tally.waited += cost.waited;
            }
        }
    });
}

/// The time, read by the block layer as a wait for the scheduler's lock begins, and as it ends.
pub(crate) fn lock_meter() -> u64 {
    with(|tally| {
        let waits = &mut tally.threads[usize::from(cpu())].waits_for_lock;
        *waits = !*waits;
    });
    time::now()
}

/// Called by the block layer as the wait of a request that was left ends.
pub(crate) fn waited(wait: Wait, ns: u64) {
    if wait == Wait::Staged {
        with(|tally| {
            let cpu = &mut tally.threads[usize::from(cpu())];
            cpu.taken_over += 1;
            if tally.phase == Phase::Measuring {
                cpu.measured += 1;
                tally.staged_ns.push(ns);
            }
        });
    }
}

/// Called by the block layer as a hold of the scheduler's lock begins, and as it ends.
fn held(step: HoldStep) {
    with(|tally| {
        let since = &mut tally.threads[usize::from(cpu())].holds_since;
        match step {
            HoldStep::Begins => *since = Some(time::now()),
            HoldStep::Ends => {
                if let Some(since) = since.take()
                    && tally.phase == Phase::Measuring
                {
                    tally.hold_ns.push(time::now() - since);
                }
            }
        }
    });
}

/// How many requests of other threads the calling thread has taken over so far.
pub(crate) fn nr_taken_over() -> u64 {
    with(|tally| tally.threads[usize::from(cpu())].taken_over)
}

/// A CPU has come to the end of a stage, with so many requests. Its private work takes this long.
pub(crate) fn stage_ended(cpu: CpuId, stage: usize, requests: usize, work: Picoseconds) {
    const INSERT: usize = Stage::Insert as usize;
    const THROUGH: usize = Stage::Through as usize;
    const CHOOSE: usize = Stage::Choose as usize;
    const READY: usize = Stage::Ready as usize;
    with(|tally| {
        if tally.phase == Phase::Measuring && tally.threads[usize::from(cpu)].waits_for_completions {
            tally.work_in_wait += work;
        }
        let in_hold = &mut tally.threads[usize::from(cpu)].in_hold;
        match stage {
            INSERT | THROUGH => *in_hold += requests as u64,
            CHOOSE | READY => {}
            // What comes next is not done at the scheduler.
            _ => {
                let in_hold = std::mem::take(in_hold);
                if in_hold > 0 && tally.phase == Phase::Measuring {
                    tally.batches.push(in_hold);
                }
            }
        }
    });
}

/// An operation is over that was submitted `since` then, when its thread had taken over so many requests.
pub(crate) fn done(since: u64, taken_over: u64) {
    let now = time::now();
    let is_due = with(|tally| {
        tally.completed += 1;
        if tally.phase == Phase::Measuring {
            let thread = &mut tally.threads[usize::from(cpu())];
            thread.latencies.push((now.saturating_sub(since), thread.taken_over > taken_over));
        }
        match tally.phase {
            Phase::Before => tally.completed >= tally.plan.warm && now >= tally.plan.warm_ns,
            Phase::Measuring => tally.completed >= tally.end,
            Phase::Over => false,
        }
    });
    if is_due {
        let queues = with(|tally| tally.queues.clone());
        let mut stats = QueueCounters::default();
        uninterrupted(|| queues.iter().filter_map(WeakRequestQueue::upgrade).for_each(|q| stats += q.counters()));
        with(|tally| tally.pass_mark(now, stats));
    }
}

/// The calling thread waits, by `wait`, for operations to complete.
pub(crate) fn in_wait(wait: impl FnOnce()) {
    let set = |waits| with(|tally| tally.threads[usize::from(cpu())].waits_for_completions = waits);
    let began = time::now();
    set(true);
    wait();
    set(false);
    with(|tally| {
        if tally.phase == Phase::Measuring {
            tally.in_wait_ns += time::now().saturating_sub(began.max(tally.began_ns));
        }
    });
}

impl Tally {
    fn pass_mark(&mut self, now: u64, stats: QueueCounters) {
        if self.phase == Phase::Before {
            (self.phase, self.began_ns, self.began_stats) = (Phase::Measuring, now, stats);
            self.end = self.completed + self.plan.wanted;
        } else {
            (self.phase, self.ns, self.stats) = (Phase::Over, now - self.began_ns, stats - self.began_stats);
        }
    }

    /// How long operations took, in nanoseconds, whose submitters took over other threads' requests meanwhile, or did
    /// not.
    pub(crate) fn latencies_ns(&self, has_combined: bool) -> Vec<u64> {
        let all = self.threads.iter().flat_map(|thread| &thread.latencies);
        all.filter(|(_, combined)| *combined == has_combined).map(|(ns, _)| *ns).collect()
    }

    /// The share of each thread in the requests that were taken over for other threads.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let all: u64 = self.threads.iter().map(|thread| thread.measured).sum();
        self.threads.iter().map(|thread| if all == 0 { 0.0 } else { thread.measured as f64 / all as f64 }).collect()
    }
}
