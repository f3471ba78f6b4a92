//! CPUs that have a clock each, and on which accesses to shared lines cost time.
//!
//! The CPU that runs is always the one whose clock is earliest of all that can go on, and of two with the same clock
//! that with the lower number. So what is done to shared data takes effect in the order of the clocks: an operation
//! takes effect when it begins, and the CPU's clock then moves on by what the operation costs. A CPU that sleeps until
//! a certain time counts as one whose clock shows that time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::cache::{Access, Cache, Costs, Distances, Outcome, Picoseconds};
use crate::hot::CpuId;
use crate::kernel::{Kernel, LockKind};
use crate::places;

/// The CPUs of a machine on which time passes by what each CPU does.
#[derive(Debug, Clone)]
pub struct Cores {
    /// How far apart they are. A run has no more threads than there are CPUs.
    pub distances: Distances,
    /// What accesses cost apart from that.
    pub costs: Costs,
    /// As which locks those of the run behave.
    pub locks: LockKind,
    /// What calls of the operating system cost.
    pub kernel: Kernel,
}

impl Cores {
    /// CPUs at these distances, with the defaults of everything else.
    #[must_use]
    pub fn new(distances: Distances) -> Self {
        let (costs, locks, kernel) = (Costs::default(), LockKind::default(), Kernel::default());
        Self { distances, costs, locks, kernel }
    }
}

/// What a CPU waits by in the queue of a lock, alone on its line.
#[repr(align(64))]
struct Node(#[expect(dead_code, reason = "only its address counts")] [u8; 64]);

/// The clocks of the CPUs that do not run now, and the lines that all of them share.
pub(crate) struct Clocks {
    cache: Cache,
    costs: Costs,
    nr_cpus: usize,
    cpus: Vec<Clock>,
    /// Those that go on by themselves, the next one first.
    next: BTreeSet<(Picoseconds, CpuId)>,
    /// The CPUs that look at a line until something is written to it, by the address that they look at.
    watched: BTreeMap<usize, Vec<CpuId>>,
    /// By CPU.
    #[expect(clippy::vec_box, reason = "a node stays where it is")]
    nodes: Vec<Box<Node>>,
    pub(crate) kernel: Kernel,
    pub(crate) locks: LockKind,
}

#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    /// What it showed when the CPU stopped.
    shows: Picoseconds,
    /// When the CPU goes on by itself.
    goes_on: Option<Picoseconds>,
}

impl Clocks {
    pub(crate) fn new(Cores { distances, costs, locks, kernel }: Cores) -> Self {
        let nr_cpus = distances.nr_cpus();
        Self {
            cache: Cache::new(distances, costs),
            costs,
            nr_cpus,
            cpus: Vec::new(),
            next: BTreeSet::new(),
            watched: BTreeMap::new(),
            nodes: Vec::new(),
            kernel,
            locks,
        }
    }

    pub(crate) const fn nr_cpus(&self) -> usize {
        self.nr_cpus
    }

    /// A thread begins on CPU `cpu`, the next one.
    pub(crate) fn add(&mut self, cpu: CpuId, now: Picoseconds) {
        debug_assert_eq!(self.cpus.len(), usize::from(cpu), "threads are numbered as they begin");
        self.cpus.push(Clock::default());
        self.nodes.push(Box::new(Node([0; 64])));
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

    /// What it costs `cpu` to read plain data at `now`, or to change it. On no line it costs nothing.
    pub(crate) fn data(&mut self, cpu: CpuId, line: Option<usize>, changes: bool, now: Picoseconds) -> Outcome {
        match line {
            Some(line) => self.cache.data(cpu.into(), line, changes, now),
            None => Outcome { done: now, waited: 0, moved: 0, fetched: 0 },
        }
    }

    /// When all of these lines are there that `cpu` loads together at `now`; `each` is told of them one by one.
    pub(crate) fn load_all(
        &mut self,
        cpu: CpuId,
        lines: impl Iterator<Item = usize>,
        now: Picoseconds,
        each: impl FnMut(Outcome),
    ) -> Picoseconds {
        self.cache.load_all(cpu.into(), lines, now, each)
    }

    /// When a fence of `cpu` ends that begins at `now`.
    pub(crate) fn fence(&mut self, cpu: CpuId, now: Picoseconds) -> Picoseconds {
        self.cache.fence(cpu.into(), now)
    }
    /// `cpu` looks at this address until something is written to its line.
    pub(crate) fn watch(&mut self, cpu: CpuId, address: usize) {
        self.watched.entry(address).or_default().push(cpu);
    }

    /// `cpu` does not look at this address any more.
    pub(crate) fn look_away(&mut self, cpu: CpuId, address: usize) {
        if let Some(watchers) = self.watched.get_mut(&address) {
            watchers.retain(|watcher| *watcher != cpu);
            if watchers.is_empty() {
                self.watched.remove(&address);
            }
        }
    }

    /// Takes out the CPUs that look at one of these addresses.
    pub(crate) fn watchers(&mut self, addresses: Range<usize>) -> Vec<CpuId> {
        let mut all = Vec::new();
        while let Some(address) = self.watched.range(addresses.clone()).next().map(|(address, _)| *address) {
            all.extend(self.watched.remove(&address).into_iter().flatten());
        }
        all
    }

    /// Where the node of `cpu` lies.
    pub(crate) fn node(&mut self, cpu: CpuId) -> usize {
        let node = &*self.nodes[usize::from(cpu)];
        places::place_at("lock.node", node);
        std::ptr::from_ref(node).addr()
    }
}
