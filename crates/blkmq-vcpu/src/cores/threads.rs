//! Which thread each CPU runs, and when each thread goes on: a plain value, which knows no fiber and no line.
//!
//! A CPU runs one thread at a time. The other threads that could run on the CPU wait in its queue. A thread has its CPU
//! until it sleeps or ends, or until its slice is over and another thread waits. Then the first thread of the queue
//! gets the CPU, after the time of a switch. The end of a slice interrupts private work and spinning, but no access and
//! no system call. A thread stays on its CPU for life.
//!
//! Time goes on by **events**. Each thread has at most one event: the next moment at which something happens to the
//! thread without the help of another one. The thread whose code the machine executes, which **runs in the program**,
//! has no event. [`Threads::happen`] takes the earliest event. Of two events at the same time, it takes that of the
//! thread with the lower number.

use std::collections::{BTreeSet, VecDeque};

use super::{Cores, Smt};
use crate::cache::Picoseconds;
use crate::hot::CpuId;
use crate::kernel::Kernel;

/// What a thread does after it has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The thread goes on as soon as it may.
    GoesOn,
    /// The thread goes on after private work, which takes this long if nothing slows it down.
    Works(Picoseconds),
    /// The thread goes on when it is told to, or at this time, and keeps its CPU busy meanwhile.
    Spins(Option<Picoseconds>),
    /// The thread leaves its CPU, and can go on when it is woken, or at this time.
    Sleeps(Option<Picoseconds>),
    /// The thread waits for a line, and keeps its CPU. Nothing happens to the thread until the line serves it.
    Waits,
    /// The thread leaves its CPU forever.
    Ends,
}

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// The thread could go on.
    GoesOn,
    /// The thread has private work left: this much at the time `since`, which counts only while the thread has its CPU.
    Works { left: Picoseconds, since: Picoseconds },
    /// The thread spins until it is told to go on, or until this time. A thread that was told is in state `GoesOn`.
    Spins(Option<Picoseconds>),
    /// The thread is in the middle of an access, and waits for a line. Once the line has chosen the thread, this is the
    /// time at which the thread goes on.
    Waits(Option<Picoseconds>),
    /// The thread is about to leave its CPU. `None`: forever. Otherwise the time at which the thread can go on again,
    /// if that is known.
    Leaves(Option<Option<Picoseconds>>),
    /// The thread sleeps.
    Sleeps,
}

#[derive(Debug)]
struct Thread {
    cpu: usize,
    /// Nothing happens to the thread before this time.
    shows: Picoseconds,
    doing: Doing,
    event: Option<Picoseconds>,
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    /// The thread that the CPU runs.
    runs: Option<CpuId>,
    /// The threads that could run, the next one first.
    queue: VecDeque<CpuId>,
    /// When the slice of the thread that the CPU runs is over.
    slice_ends: Picoseconds,
}

/// The next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) at: Picoseconds,
    pub(crate) thread: CpuId,
    /// The thread sleeps, and the event ends its sleep.
    pub(crate) is_timer: bool,
}

/// The threads and the CPUs.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The CPUs that new threads get, in turn.
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

    /// Adds a thread, which can run from `now` on.
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

    /// A thread that sleeps, or that is about to leave its CPU to sleep, can go on from `at` on.
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

    /// A line serves a CPU: the thread that the CPU runs, if it waits for the line, goes on at `at`.
    pub(crate) fn serve(&mut self, cpu: usize, at: Picoseconds) {
        let Some(thread) = self.cpus[cpu].runs else { return };
        let served = &mut self.threads[usize::from(thread)];
        if served.doing == Doing::Waits(None) {
            (served.doing, served.shows) = (Doing::Waits(Some(at)), at);
            self.plan_on_cpu(thread);
        }
    }

    /// The next event.
    pub(crate) fn due(&self) -> Option<Due> {
        let (at, thread) = *self.events.first()?;
        Some(Due { at, thread, is_timer: self.threads[usize::from(thread)].doing == Doing::Sleeps })
    }

    /// The time until which a thread that runs in the program may go on, because something else happens then.
    pub(crate) fn limit(&self, thread: CpuId) -> Picoseconds {
        let other =
            self.events.first().map_or(Picoseconds::MAX, |(at, other)| at.saturating_add(u64::from(*other > thread)));
        let cpu = &self.cpus[self.cpu(thread)];
        if cpu.queue.is_empty() { other } else { other.min(cpu.slice_ends) }
    }

    /// Lets the next event happen. If a thread goes on by this event, returns what the thread's clock shows.
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

    /// Whether nothing will ever happen except that threads that spin take turns.
    pub(crate) fn only_spin(&self) -> bool {
        self.threads.iter().all(|thread| match thread.doing {
            Doing::Spins(until) => until.is_none(),
            Doing::Sleeps => thread.event.is_none(),
            _ => false,
        })
    }

    /// A thread that runs in the program yields at `now`: if other threads wait for its CPU, the thread's slice is
    /// over.
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

    /// When the slice of a thread that has its CPU is over, if another thread waits for the CPU.
    fn slice_ends(&self, thread: CpuId) -> Option<Picoseconds> {
        let Thread { cpu, shows, doing, .. } = self.threads[usize::from(thread)];
        let Cpu { queue, slice_ends, .. } = &self.cpus[cpu];
        let may_end = !queue.is_empty() && !matches!(doing, Doing::Leaves(_) | Doing::Waits(_));
        may_end.then(|| (*slice_ends).max(shows))
    }

    /// How long private work takes on a CPU, if the other CPU of the core stays as busy as it is.
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

    /// How long private work of a thread that runs in the program takes, if the other CPU of the core stays as busy as
    /// it is.
    pub(crate) fn takes(&self, thread: CpuId, work: Picoseconds) -> Picoseconds {
        self.on(self.cpu(thread), work)
    }

    /// Subtracts the private work that a thread has done until `now` from what the thread has left.
    fn settle(&mut self, thread: CpuId, now: Picoseconds) {
        let percent = self.percent(self.cpu(thread));
        if let Doing::Works { left, since } = &mut self.threads[usize::from(thread)].doing {
            let done = now.saturating_sub(*since) * 100 / percent;
            (*left, *since) = (left.saturating_sub(done), now.max(*since));
        }
    }

    /// Puts a thread that can run from `now` on into the queue of its CPU.
    fn wait_for_cpu(&mut self, thread: CpuId, now: Picoseconds) {
        let woken = &mut self.threads[usize::from(thread)];
        (woken.doing, woken.shows) = (Doing::GoesOn, now);
        let cpu = woken.cpu;
        self.cpus[cpu].queue.push_back(thread);
        match self.cpus[cpu].runs {
            // A slice ends only while another thread waits. So the slice of the thread that runs may be over now.
            Some(runs) => self.plan_on_cpu(runs),
            None => self.run_first(cpu, now, now),
        }
    }

    /// The thread that a CPU runs leaves the CPU at `now`. The first thread of the queue, if there is one, gets the CPU
    /// after a switch.
    fn leave(&mut self, cpu: usize, now: Picoseconds) {
        self.run_first(cpu, now, now + self.switch);
    }

    /// From `now` on a CPU belongs to the first thread of its queue, if there is one. That thread goes on at `begin`.
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
