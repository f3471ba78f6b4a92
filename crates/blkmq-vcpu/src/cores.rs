//! CPUs that have a clock each, and on which accesses to shared lines cost time.
//!
//! The CPU that runs is always the one whose clock is earliest of all that can go on, and of two with the same clock
//! that with the lower number. So what is done to shared data takes effect in the order of the clocks: an operation
//! takes effect when it begins, and the CPU's clock then moves on by what the operation costs. A CPU that sleeps until
//! a certain time counts as one whose clock shows that time.

use std::collections::BTreeSet;

use crate::cache::{Access, Cache, Costs, Distances, Outcome, Picoseconds};
use crate::hot::CpuId;

/// The CPUs of a machine on which time passes by what each CPU does.
#[derive(Debug, Clone)]
pub struct Cores {
    /// How far apart they are. A run has no more threads than there are CPUs.
    pub distances: Distances,
    /// What accesses cost apart from that.
    pub costs: Costs,
}

/// The clocks of the CPUs that do not run now, and the lines that all of them share.
pub(crate) struct Clocks {
    cache: Cache,
    costs: Costs,
    nr_cpus: usize,
    cpus: Vec<Clock>,
    /// Those that go on by themselves, the next one first.
    next: BTreeSet<(Picoseconds, CpuId)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    /// What it showed when the CPU stopped.
    shows: Picoseconds,
    /// When the CPU goes on by itself.
    goes_on: Option<Picoseconds>,
}

impl Clocks {
    pub(crate) fn new(Cores { distances, costs }: Cores) -> Self {
        let nr_cpus = distances.nr_cpus();
        Self { cache: Cache::new(distances, costs), costs, nr_cpus, cpus: Vec::new(), next: BTreeSet::new() }
    }

    pub(crate) const fn nr_cpus(&self) -> usize {
        self.nr_cpus
    }

    /// A thread begins on CPU `cpu`, the next one.
    pub(crate) fn add(&mut self, cpu: CpuId, now: Picoseconds) {
        debug_assert_eq!(self.cpus.len(), usize::from(cpu), "threads are numbered as they begin");
        self.cpus.push(Clock::default());
        self.stop(cpu, now, Some(now));
    }

    /// `cpu` stops at `now`, and goes on by itself at `goes_on` if at all.
    pub(crate) fn stop(&mut self, cpu: CpuId, now: Picoseconds, goes_on: Option<Picoseconds>) {
        let goes_on = goes_on.map(|at| at.max(now));
        self.cpus[usize::from(cpu)] = Clock { shows: now, goes_on };
        self.next.extend(goes_on.map(|at| (at, cpu)));
    }

    /// `cpu` has stopped, and is to go on at `now`.
    pub(crate) fn wake(&mut self, cpu: CpuId, now: Picoseconds) {
        let Clock { shows, goes_on } = self.cpus[usize::from(cpu)];
        if let Some(at) = goes_on {
            self.next.remove(&(at, cpu));
        }
        self.stop(cpu, shows, Some(now));
    }

    /// The CPU that goes on next.
    pub(crate) fn first(&self) -> Option<CpuId> {
        self.next.first().map(|(_, cpu)| *cpu)
    }

    /// Takes out the CPU that goes on next. Returns what its clock shows.
    pub(crate) fn go_on(&mut self) -> Option<Picoseconds> {
        let (at, cpu) = self.next.pop_first()?;
        self.cpus[usize::from(cpu)].goes_on = None;
        Some(at)
    }

    /// What the clock of `cpu`, which runs, must show for another CPU to be the next.
    pub(crate) fn limit(&self, cpu: CpuId) -> Picoseconds {
        self.next.first().map_or(Picoseconds::MAX, |(at, other)| at.saturating_add(u64::from(*other > cpu)))
    }

    /// What an access of `cpu` to the line of this number costs that begins at `now`. Without a number it costs what an
    /// access to a line of the CPU's own does.
    pub(crate) fn access(&mut self, cpu: CpuId, line: Option<usize>, access: Access, now: Picoseconds) -> Outcome {
        match line {
            Some(line) => self.cache.access(cpu.into(), line, access, now),
            None => {
                let Costs { hit, store, update, .. } = self.costs;
                let cost = match access {
                    Access::Load => hit,
                    Access::Store => store,
                    Access::Update => update,
                };
                Outcome { done: now + cost, waited: 0, moved: 0, fetched: 0 }
            }
        }
    }

    /// When a fence of `cpu` ends that begins at `now`.
    pub(crate) fn fence(&mut self, cpu: CpuId, now: Picoseconds) -> Picoseconds {
        self.cache.fence(cpu.into(), now)
    }
}
