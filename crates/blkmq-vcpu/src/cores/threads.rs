//! Which thread each CPU runs, and when each goes on: a plain value, which knows no fiber and no line.
//!
//! A CPU runs one thread at a time. The others that could run on it wait in its queue. A thread has its CPU until it
//! sleeps or ends, or until its slice is over and another one waits; then the next of the queue gets the CPU, after the
//! time of a switch. Nothing is interrupted in the middle of an access or a call of the system; private work and
//! spinning are. A thread stays on its CPU for life.
//!
//! Time goes on by **events**. Each thread has one at most: the next moment at which something happens to it by itself.
//! The thread that runs in the program has none. [`Threads::happen`] takes the earliest event; of two at the same time
//! that of the thread with the lower number.

use std::collections::{BTreeSet, VecDeque};

use super::{Cores, Smt};
use crate::cache::Picoseconds;
use crate::hot::CpuId;
use crate::kernel::Kernel;

/// What a thread does after it has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It goes on as soon as it may.
    GoesOn,
    /// It goes on after private work that takes this long if nothing slows it down.
    Works(Picoseconds),
    /// It goes on when it is told, or at this time, and keeps its CPU busy meanwhile.
    Spins(Option<Picoseconds>),
    /// It leaves its CPU, and can go on when it is woken, or at this time.
    Sleeps(Option<Picoseconds>),
    /// It waits for a line, and keeps its CPU: nothing happens to it until it is told.
    Waits,
    /// It leaves its CPU for ever.
    Ends,
}

/// What a thread is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It could go on.
    GoesOn,
    /// It has private work left, as of a certain time if it has its CPU.
    Works { left: Picoseconds, since: Picoseconds },
    /// It spins until it is told or until this time. Once it is told, it could go on.
    Spins(Option<Picoseconds>),
    /// It is in the middle of an access. Once it is told, it goes on at this time.
    Waits(Option<Picoseconds>),
    /// It is about to leave its CPU. `None`: for ever. Otherwise when it can go on again, if that is known.
    Leaves(Option<Option<Picoseconds>>),
    /// It sleeps.
    Sleeps,
}

#[derive(Debug)]
struct Thread {
    cpu: usize,
    /// Not before then does anything happen to it.
    shows: Picoseconds,
    doing: Doing,
    event: Option<Picoseconds>,
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    /// The thread that it runs.
    runs: Option<CpuId>,
    /// Those that could run.
    queue: VecDeque<CpuId>,
    /// When the slice of the thread that it runs is over.
    slice_ends: Picoseconds,
}

/// The next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) at: Picoseconds,
    pub(crate) thread: CpuId,
    /// The thread sleeps, and its time has come.
    pub(crate) is_timer: bool,
}

/// The threads and the CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The CPUs that threads get as they begin, in turn.
    fill: Vec<usize>,
    smt: Option<Smt>,
    switch: Picoseconds,
    slice: Picoseconds,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    events: BTreeSet<(Picoseconds, CpuId)>,
}

impl Threads {
    pub(crate) fn new(cores: &Cores) -> Self {
        let Cores { distances, kernel: Kernel { switch, slice, .. }, fill, smt, .. } = cores;
        assert!(*slice > 0, "a slice takes time");
        assert!(smt.is_none_or(|smt| smt.apart > 0 && smt.percent >= 100), "a core has two CPUs, none faster than one");
        let (nr_cpus, fill) = (distances.nr_cpus(), fill.clone());
        assert!(!fill.is_empty() && fill.iter().all(|cpu| *cpu < nr_cpus), "there are CPUs, and all are there");
        let (cpus, threads, events) = (vec![Cpu::default(); nr_cpus], Vec::new(), BTreeSet::new());
        Self { fill, smt: *smt, switch: *switch, slice: *slice, cpus, threads, events }
    }

    /// The CPU of a thread.
    pub(crate) fn cpu(&self, thread: CpuId) -> usize {
        self.threads[usize::from(thread)].cpu
    }

    /// A thread begins, which can run from `now` on.
    pub(crate) fn begin(&mut self, now: Picoseconds) {
        let number = self.threads.len();
        let cpu = self.fill[number % self.fill.len()];
        self.threads.push(Thread { cpu, shows: now, doing: Doing::Sleeps, event: None });
        self.plan(number as CpuId, Some(now));
    }

    /// A thread that ran in the program stops at `now`.
    pub(crate) fn stop(&mut self, thread: CpuId, now: Picoseconds, then: Then) {
        let stopped = &mut self.threads[usize::from(thread)];
        stopped.shows = now;
        stopped.doing = match then {
            Then::GoesOn => Doing::GoesOn,
            Then::Works(left) => Doing::Works { left, since: now },
            Then::Spins(until) => Doing::Spins(until),
            Then::Sleeps(until) => Doing::Leaves(Some(until)),
            Then::Waits => Doing::Waits(None),
            Then::Ends => Doing::Leaves(None),
        };
        self.plan_on_cpu(thread);
    }

    /// A thread that sleeps can go on from `at` on.
    pub(crate) fn wake(&mut self, thread: CpuId, at: Picoseconds) {
        let sleeper = &mut self.threads[usize::from(thread)];
        match &mut sleeper.doing {
            Doing::Leaves(Some(wakes)) => *wakes = Some(wakes.map_or(at, |wakes| wakes.min(at))),
            Doing::Sleeps => {
                let at = sleeper.event.map_or(at, |event| event.min(at)).max(sleeper.shows);
                self.plan(thread, Some(at));
            }
            _ => {}
        }
    }

    /// A thread that spins is told at `now` that it can go on.
    pub(crate) fn tell(&mut self, thread: CpuId, now: Picoseconds) {
        let told = &mut self.threads[usize::from(thread)];
        if matches!(told.doing, Doing::Spins(_)) {
            told.doing = Doing::GoesOn;
            told.shows = told.shows.max(now);
            if self.has_cpu(thread) {
                self.plan_on_cpu(thread);
            }
        }
    }

    /// The thread that a CPU runs, and that waits for a line, goes on at `at`.
    pub(crate) fn serve(&mut self, cpu: usize, at: Picoseconds) {
        let Some(thread) = self.cpus[cpu].runs else { return };
        let served = &mut self.threads[usize::from(thread)];
        if served.doing == Doing::Waits(None) {
            (served.doing, served.shows) = (Doing::Waits(Some(at)), at);
            self.plan_on_cpu(thread);
        }
    }

    /// What happens next.
    pub(crate) fn due(&self) -> Option<Due> {
        let (at, thread) = *self.events.first()?;
        Some(Due { at, thread, is_timer: self.threads[usize::from(thread)].doing == Doing::Sleeps })
    }

    /// What the clock of a thread that runs in the program must show for something to happen first.
    pub(crate) fn limit(&self, thread: CpuId) -> Picoseconds {
        let other =
            self.events.first().map_or(Picoseconds::MAX, |(at, other)| at.saturating_add(u64::from(*other > thread)));
        let cpu = &self.cpus[self.cpu(thread)];
        if cpu.queue.is_empty() { other } else { other.min(cpu.slice_ends) }
    }

    /// Lets the next event happen. Returns what the clock shows of the thread that goes on by it, if one does.
    pub(crate) fn happen(&mut self) -> Option<Picoseconds> {
        let (now, thread) = self.events.pop_first()?;
        self.threads[usize::from(thread)].event = None;
        let Thread { cpu, doing, .. } = self.threads[usize::from(thread)];
        match doing {
            Doing::Sleeps => self.wait_for_cpu(thread, now),
            Doing::Leaves(wakes) => {
                self.threads[usize::from(thread)].doing = Doing::Sleeps;
                self.leave(cpu, now);
                if let Some(at) = wakes.flatten() {
                    self.plan(thread, Some(at.max(now)));
                }
            }
            _ if self.slice_ends(thread).is_some_and(|ends| ends <= now) => {
                self.settle(thread, now);
                self.cpus[cpu].queue.push_back(thread);
                self.leave(cpu, now);
            }
            _ => return Some(now),
        }
        None
    }

    /// Whether nothing will ever happen but that threads spin in turns.
    pub(crate) fn spin_in_vain(&self) -> bool {
        self.threads.iter().all(|thread| match thread.doing {
            Doing::Spins(until) => until.is_none(),
            Doing::Sleeps => thread.event.is_none(),
            _ => false,
        })
    }

    /// A thread that runs in the program yields at `now`: if others wait, its slice is over.
    pub(crate) fn yields(&mut self, thread: CpuId, now: Picoseconds) {
        let cpu = self.cpu(thread);
        if !self.cpus[cpu].queue.is_empty() {
            self.cpus[cpu].slice_ends = now;
        }
    }

    fn has_cpu(&self, thread: CpuId) -> bool {
        self.cpus[self.cpu(thread)].runs == Some(thread)
    }

    /// Sets a thread's event.
    fn plan(&mut self, thread: CpuId, at: Option<Picoseconds>) {
        let event = std::mem::replace(&mut self.threads[usize::from(thread)].event, at);
        if let Some(event) = event {
            self.events.remove(&(event, thread));
        }
        self.events.extend(at.map(|at| (at, thread)));
    }

    /// Sets the event of a thread that has its CPU and does not run in the program.
    fn plan_on_cpu(&mut self, thread: CpuId) {
        let Thread { cpu, shows, doing, .. } = self.threads[usize::from(thread)];
        let goes_on = match doing {
            Doing::Works { left, since } => Some(since + self.on(cpu, left)),
            Doing::Spins(until) => until.map(|until| until.max(shows)),
            Doing::Waits(at) => at,
            _ => Some(shows),
        };
        let at = goes_on.into_iter().chain(self.slice_ends(thread)).min();
        self.plan(thread, at);
    }

    /// When the slice of a thread that has its CPU is over, if another one waits.
    fn slice_ends(&self, thread: CpuId) -> Option<Picoseconds> {
        let Thread { cpu, shows, doing, .. } = self.threads[usize::from(thread)];
        let Cpu { queue, slice_ends, .. } = &self.cpus[cpu];
        let may_end = !queue.is_empty() && !matches!(doing, Doing::Leaves(_) | Doing::Waits(_));
        may_end.then(|| (*slice_ends).max(shows))
    }

    /// How long private work takes on a CPU as things are.
    fn on(&self, cpu: usize, work: Picoseconds) -> Picoseconds {
        work * self.percent(cpu) / 100
    }

    fn percent(&self, cpu: usize) -> u64 {
        match (self.smt, self.beside(cpu)) {
            (Some(smt), Some(_)) => smt.percent,
            _ => 100,
        }
    }

    /// The thread that the other CPU of the core runs.
    fn beside(&self, cpu: usize) -> Option<CpuId> {
        self.cpus.get(self.smt?.sibling(cpu))?.runs
    }

    /// How long private work of a thread that runs in the program takes as things are.
    pub(crate) fn takes(&self, thread: CpuId, work: Picoseconds) -> Picoseconds {
        self.on(self.cpu(thread), work)
    }

    /// Takes the private work that a thread has done off what it has left.
    fn settle(&mut self, thread: CpuId, now: Picoseconds) {
        let percent = self.percent(self.cpu(thread));
        if let Doing::Works { left, since } = &mut self.threads[usize::from(thread)].doing {
            let done = now.saturating_sub(*since) * 100 / percent;
            (*left, *since) = (left.saturating_sub(done), now.max(*since));
        }
    }

    /// A thread can run from `now` on.
    fn wait_for_cpu(&mut self, thread: CpuId, now: Picoseconds) {
        let woken = &mut self.threads[usize::from(thread)];
        (woken.doing, woken.shows) = (Doing::GoesOn, now);
        let cpu = woken.cpu;
        self.cpus[cpu].queue.push_back(thread);
        match self.cpus[cpu].runs {
            // It may have had its slice.
            Some(runs) => self.plan_on_cpu(runs),
            None => self.run_first(cpu, now, now),
        }
    }

    /// The thread that a CPU runs leaves it at `now`: the first of the queue gets it after a switch, if one waits.
    fn leave(&mut self, cpu: usize, now: Picoseconds) {
        self.run_first(cpu, now, now + self.switch);
    }

    /// From `now` on a CPU belongs to the first thread of its queue, if there is one, which goes on at `begin`.
    fn run_first(&mut self, cpu: usize, now: Picoseconds, begin: Picoseconds) {
        let runs = self.cpus[cpu].queue.pop_front();
        let is_turned = self.cpus[cpu].runs.is_some() != runs.is_some();
        let sibling = self.beside(cpu).filter(|_| is_turned);
        sibling.into_iter().for_each(|sibling| self.settle(sibling, now));
        self.cpus[cpu].runs = runs;
        sibling.into_iter().for_each(|sibling| self.plan_on_cpu(sibling));
        let Some(thread) = runs else { return };
        self.cpus[cpu].slice_ends = begin + self.slice;
        let Thread { shows, doing, .. } = &mut self.threads[usize::from(thread)];
        *shows = begin.max(*shows);
        if let Doing::Works { since, .. } = doing {
            *since = *shows;
        }
        self.plan_on_cpu(thread);
    }
}
