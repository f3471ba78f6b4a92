//! One run: clients on a queue of their own, in one thread. On a virtual clock the outcome depends on nothing but the
//! load, the device and the scheduler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::sched::GroupId;
use blkmq::{Client, Clock, IoPriority, QueueError, RequestQueue, Time};

use super::client::{ClientResult, Window, Worker};
use super::error::JudgeError;
use super::load::{End, Group, Load};
use crate::buffers::BufferPool;

/// If this many rounds happen at one moment, the device is taken for one that needs no time.
const TIMELESS_ROUNDS: u64 = 1_000_000;

/// Nanoseconds. The queue itself looks for overdue requests only later than this. What it plans to do earlier, the
/// scheduler asked for.
const PLANNED_NS: u64 = 20_000_000_000;

/// Milliseconds after which a request of a model is overdue, and the queue looks for it: later than any run ends.
pub(super) const IO_TIMEOUT_MS: u32 = 10_000_000;

/// How often a scheduler that holds back what waits is asked again at the end of a run.
const MOST_NUDGES: u32 = 100_000;

/// Nanoseconds between two of these.
const NUDGE_NS: u64 = 10_000_000;

/// What a run found.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// In the order of the load's clients.
    pub(super) clients: Vec<ClientResult>,
    /// Nanoseconds that were counted.
    pub(super) counted_ns: u64,
    /// Nanoseconds of these in which the device had nothing and requests waited, though the scheduler had not asked for
    /// it.
    pub(super) idle_ns: u64,
    /// The same, when the scheduler had named a time until which it holds requests back.
    pub(super) asked_ns: u64,
}

impl Outcome {
    /// Bytes a second of the clients with these places.
    pub(super) fn rate(&self, clients: std::ops::Range<usize>) -> f64 {
        let bytes: u64 = self.clients[clients].iter().map(|client| client.bytes).sum();
        bytes as f64 * 1e9 / self.counted_ns.max(1) as f64
    }

    /// Operations a second of all clients.
    pub(super) fn iops(&self) -> f64 {
        let operations: u64 = self.clients.iter().map(|client| client.operations).sum();
        operations as f64 * 1e9 / self.counted_ns.max(1) as f64
    }
}

/// Runs `load` on queues that nobody else uses, which have one clock. Each client takes the queues in turn.
///
/// # Errors
/// An operation failed, `stop` was set, or time does not pass.
pub(super) fn run(
    queues: &[RequestQueue],
    load: &Load,
    pool: &mut BufferPool,
    stop: &AtomicBool,
) -> Result<Outcome, JudgeError> {
    assert!(!load.clients.is_empty() && !queues.is_empty(), "a load has clients, and they have a queue");
    let clock = queues[0].clock().clone();
    let start = clock.now();
    let groups = queues.iter().map(|q| add_groups(q, &load.groups)).collect::<Result<Vec<_>, _>>()?;
    let mut workers = Vec::new();
    for (number, plan) in load.clients.iter().enumerate() {
        let priority = IoPriority { class: plan.class, level: plan.level };
        let submitters = queues.iter().zip(&groups).map(|(q, groups)| {
            let group = groups[plan.group];
            let client = Client { weight: plan.weight, group, ..Client::new(plan.name.clone()) };
            q.submitter(&client.with_priority(priority)).map_err(refused(q))
        });
        let submitters = submitters.collect::<Result<_, _>>()?;
        workers.push(Worker::new(plan.clone(), submitters, load.journal.clone(), start, number));
    }
    let shares_all = |q: &RequestQueue| {
        let topology = q.driver().topology();
        topology.default_queues == 1 && topology.read_queues == 0
    };
    let mut run = Run {
        clock,
        queues,
        shares_all: queues.iter().all(shares_all),
        has_script: workers.iter().any(|worker| worker.script_is_over().is_some()),
        workers,
        pollers: vec![0; queues.len()],
        outcome: Outcome::default(),
        counted: 0,
        all: 0,
        idle: None,
        nudges: 0,
    };
    if let Err(error) = run.go(load.end, start, pool, stop) {
        if run.nudges > MOST_NUDGES {
            // A submitter that is dropped would wait for requests that the scheduler never dispatches.
            std::mem::forget(run.workers);
        }
        return Err(error);
    }
    let Run { workers, mut outcome, .. } = run;
    outcome.clients = workers.into_iter().map(|worker| worker.result).collect();
    Ok(outcome)
}

fn refused(q: &RequestQueue) -> impl Fn(QueueError) -> JudgeError {
    |error| JudgeError::Queue(q.scheduler().to_owned(), error)
}

/// Makes the groups of a load. The root is among those that are returned, under the empty name.
fn add_groups(q: &RequestQueue, groups: &[Group]) -> Result<HashMap<&'static str, GroupId>, JudgeError> {
    let mut ids = HashMap::from([("", GroupId::ROOT)]);
    for Group { name, parent, weight } in groups {
        let id = q.tenants().add_group(name, ids[parent], *weight).map_err(refused(q))?;
        ids.insert(*name, id);
    }
    Ok(ids)
}

struct Run<'q> {
    clock: Clock,
    queues: &'q [RequestQueue],
    workers: Vec<Worker>,
    /// All submitters of a queue use the same hardware queue, so one of them polls for all.
    shares_all: bool,
    /// The run ends with the last script.
    has_script: bool,
    /// The worker that polled last, for each queue.
    pollers: Vec<usize>,
    outcome: Outcome,
    /// Completed operations: those that were counted, and all.
    counted: u64,
    all: u64,
    /// Since when the device has had nothing while requests wait, and whether the scheduler asked for that.
    idle: Option<(Time, bool)>,
    /// How often the scheduler had to be asked again by a request more.
    nudges: u32,
}

impl Run<'_> {
    fn go(&mut self, end: End, start: Time, pool: &mut BufferPool, stop: &AtomicBool) -> Result<(), JudgeError> {
        let mut window = Window { from: start.after(end.warm_ns), to: start.after(end.time_ns) };
        let (mut is_ending, mut rounds, mut first) = (false, 0_u64, 0);
        loop {
            let now = self.clock.now();
            if now < window.from && self.all >= end.warm_operations {
                window.from = now;
            }
            if !is_ending && (now >= window.to || self.counted >= end.operations || self.scripts_are_over()) {
                is_ending = true;
                window.to = window.to.min(now);
                self.outcome.counted_ns = window.to.since(window.from);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(JudgeError::Stopped);
            }
            let mut moved = self.poll(first);
            // The first worker of a round gets what is scarce, so each round begins with another worker.
            let (front, back) = self.workers.split_at_mut(first);
            for worker in back.iter_mut().chain(front) {
                let (counted, all) = worker.reap(window, pool)?;
                self.counted += counted;
                self.all += all;
                moved |= all > 0;
                if !is_ending {
                    moved |= worker.submit(now, pool)?;
                }
            }
            first = (first + 1) % self.workers.len();
            if is_ending && self.workers.iter().all(Worker::is_idle) {
                return Ok(());
            }
            if moved {
                rounds += 1;
                if rounds > TIMELESS_ROUNDS && matches!(self.clock, Clock::Virtual(_)) {
                    return Err(JudgeError::Unfit("the device takes no time; give null irqmode=2".to_owned()));
                }
                self.end_idling(now, window);
                continue;
            }
            rounds = 0;
            if self.is_waiting() && self.poll_all() {
                continue;
            }
            let is_waiting = self.is_waiting();
            let planned = self.planned();
            let is_planned = planned.is_some_and(|time| time < now.after(PLANNED_NS));
            if is_ending && is_waiting && !is_planned {
                self.nudge(now, pool)?;
                continue;
            }
            if is_waiting && self.idle.is_none() {
                self.idle = Some((now, is_planned));
            }
            match &self.clock {
                Clock::Virtual(clock) => {
                    let own = self.workers.iter().filter_map(|worker| worker.next_time(now).filter(|_| !is_ending));
                    let end = (!is_ending).then_some(window.to);
                    // The clock moves by at least 1 ns, because an event in the past that did nothing must not stop it.
                    clock.advance_to(own.chain(planned).chain(end).min().unwrap_or(now).max(now.after(1)));
                }
                // A thread that sleeps would find completions late, and their latencies would look longer.
                Clock::Real(_) => std::thread::yield_now(),
            }
        }
    }

    /// Counts the time since the device became idle, as far as it lies in the window.
    fn end_idling(&mut self, now: Time, window: Window) {
        if let Some((since, is_asked)) = self.idle.take() {
            let idle = now.min(window.to).since(since.max(window.from));
            *if is_asked { &mut self.outcome.asked_ns } else { &mut self.outcome.idle_ns } += idle;
        }
    }

    /// Lets one worker drive each queue for all, or all of them if they use different hardware queues. Returns whether
    /// anything completed.
    fn poll(&mut self, first: usize) -> bool {
        if !self.shares_all {
            return self.poll_all();
        }
        let len = self.workers.len();
        let mut any = false;
        for number in 0..self.queues.len() {
            let busy = (0..len).map(|at| (first + at) % len).find(|at| self.workers[*at].has_at(number));
            if let Some(at) = busy {
                self.pollers[number] = at;
                any |= self.workers[at].submitters[number].poll();
            }
        }
        any
    }

    /// Submits one more read at the end of a run in which the scheduler holds back all waiting requests.
    fn nudge(&mut self, now: Time, pool: &mut BufferPool) -> Result<(), JudgeError> {
        self.nudges += 1;
        if self.nudges > MOST_NUDGES {
            return Err(JudgeError::Failed(format!("scheduler {} keeps requests forever", self.queues[0].scheduler())));
        }
        if let Clock::Virtual(clock) = &self.clock {
            clock.advance(NUDGE_NS);
        }
        match self.workers.iter_mut().min_by_key(|worker| worker.outstanding()) {
            Some(worker) => worker.read_once(now.after(NUDGE_NS), pool),
            None => Ok(()),
        }
    }

    /// Whether the device has nothing while requests wait.
    fn is_waiting(&self) -> bool {
        self.queues.iter().all(|q| q.busy_tags() == 0) && !self.workers.iter().all(Worker::is_idle)
    }

    fn poll_all(&mut self) -> bool {
        let mut any = false;
        for submitter in self.workers.iter_mut().flat_map(|worker| &mut worker.submitters) {
            any |= submitter.nr_outstanding() > 0 && submitter.poll();
        }
        any
    }

    /// When a device or a scheduler does something next.
    fn planned(&self) -> Option<Time> {
        let of_queue = |number: usize| {
            let poller = &self.workers[self.pollers[number]].submitters[number];
            // The one that polled last speaks for all, as long as it waits for something itself.
            if self.shares_all && self.queues[number].busy_tags() > 0 && poller.nr_outstanding() > 0 {
                return poller.next_wakeup();
            }
            self.workers.iter().filter_map(|worker| worker.submitters[number].next_wakeup()).min()
        };
        (0..self.queues.len()).filter_map(of_queue).min()
    }

    fn scripts_are_over(&self) -> bool {
        self.has_script && self.workers.iter().filter_map(Worker::script_is_over).all(|is_over| is_over)
    }
}
