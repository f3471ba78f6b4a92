//! CPUs that each have a clock of their own, and on which accesses to shared lines cost time.
//!
//! Of all threads that can go on, the one whose CPU has the earliest clock runs. If two clocks show the same time, the
//! thread with the lower number runs. So changes of shared data take effect in the order of the clocks. A load or an
//! update waits until its line serves it, and takes effect then. After that the CPU's clock moves on by the cost of the
//! operation. A store takes effect when the CPU makes it. A thread that sleeps until a certain time counts as a thread
//! whose clock shows that time.

mod threads;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::{Access, Asked, Cache, Costs, Distances, Outcome, Picoseconds, Wants};
use crate::hot::CpuId;
use crate::kernel::{Kernel, LockKind};
use crate::places;
use threads::Threads;
pub(crate) use threads::{Due, Then};

/// The CPUs of a machine on which time passes by what each CPU does. A thread gets the next CPU of [`fill`](Self::fill)
/// as it begins, and stays on that CPU. The threads of one CPU take turns: a thread goes on until it sleeps, or until
/// it has had the CPU for a slice ([`Kernel::slice`]) and another thread waits.
#[derive(Debug, Clone)]
pub struct Cores {
    /// How far apart the CPUs are.
    pub distances: Distances,
    /// What accesses cost, apart from the distances.
    pub costs: Costs,
    /// The kind of lock as which every lock of the run behaves.
    pub locks: LockKind,
    /// What system calls cost, and what it costs threads to share a CPU.
    pub kernel: Kernel,
    /// The CPUs that threads get as they begin: the first thread gets the first CPU of the list. After the last CPU of
    /// the list the first one is next again.
    pub fill: Vec<usize>,
    /// Which two CPUs are one core. `None`: each CPU is a core of its own.
    pub smt: Option<Smt>,
    /// The seed of the random numbers that choose which waiting CPU a line serves next.
    pub seed: u64,
}

/// Cores of two CPUs each. While both CPUs of a core have a thread, even one that only spins, private work takes
/// longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smt {
    /// The difference between the numbers of a core's two CPUs. With 1, the cores are CPUs 0 and 1, 2 and 3, and so on.
    /// With 2, the cores are CPUs 0 and 2, 1 and 3, 4 and 6, and so on.
    pub apart: usize,
    /// How long private work takes while both CPUs have a thread, in percent of how long the work takes while only one
    /// has. The same holds for accesses that need no line from elsewhere. 165 if two threads together do 1.2 times as
    /// much as one.
    pub percent: u64,
}

impl Smt {
    /// The other CPU of the core.
    const fn sibling(self, cpu: usize) -> usize {
        if (cpu / self.apart).is_multiple_of(2) { cpu + self.apart } else { cpu - self.apart }
    }
}

impl Cores {
    /// CPUs at these distances, with defaults for everything else: each CPU is a core of its own, and threads get all
    /// the CPUs, in the order of the CPUs' numbers.
    #[must_use]
    pub fn new(distances: Distances) -> Self {
        let (costs, locks, kernel) = (Costs::default(), LockKind::default(), Kernel::default());
        let fill = (0..distances.nr_cpus()).collect();
        Self { distances, costs, locks, kernel, fill, smt: None, seed: 1 }
    }
}

/// The node of a thread that waits in the queue of a lock. A node fills a cache line, so that threads that look at
/// other nodes do not take that line away.
#[repr(align(64))]
struct Node(#[expect(dead_code, reason = "only its address counts")] [u8; 64]);

/// The CPUs and threads of a run, and the lines that all of them share.
pub(crate) struct Clocks {
    cache: Cache,
    costs: Costs,
    pub(crate) threads: Threads,
    /// The threads that look at a line until something is written to the line, by the address at which the threads
    /// look.
    watched: BTreeMap<usize, Vec<CpuId>>,
    /// The node of each thread.
    #[expect(clippy::vec_box, reason = "a node stays where it is")]
    nodes: Vec<Box<Node>>,
    pub(crate) kernel: Kernel,
    pub(crate) locks: LockKind,
}

impl Clocks {
    pub(crate) fn new(cores: Cores) -> Self {
        let threads = Threads::new(&cores);
        let Cores { distances, costs, locks, kernel, seed, .. } = cores;
        let (watched, nodes) = (BTreeMap::new(), Vec::new());
        Self { cache: Cache::new(distances, costs).with_seed(seed), costs, threads, watched, nodes, kernel, locks }
    }

    /// Adds the next thread, which can run from `now` on.
    pub(crate) fn add(&mut self, now: Picoseconds) {
        self.nodes.push(Box::new(Node([0; 64])));
        self.threads.begin(now);
    }

    /// A thread asks whether it may act on the line of this number. A thread that has to wait stops until the line
    /// serves it.
    pub(crate) fn ask(&mut self, thread: CpuId, line: usize, wants: Wants, now: Picoseconds) -> Asked {
        let asked = self.cache.ask(self.threads.cpu(thread), line, wants, now);
        if asked == Asked::Waits {
            self.threads.stop(thread, now, Then::Waits);
        }
        asked
    }

    /// When the first of the lines for which threads wait becomes free.
    pub(crate) fn next_free(&self) -> Option<Picoseconds> {
        self.cache.next_free()
    }

    /// Lets the line that becomes free first choose one of the threads that wait for it.
    pub(crate) fn serve(&mut self) {
        self.cache.serve();
        self.tell_served();
    }

    fn tell_served(&mut self) {
        while let Some((cpu, at)) = self.cache.next_served() {
            self.threads.serve(cpu, at);
        }
    }

    /// The time until which a thread that runs in the program may go on, because something else happens then.
    pub(crate) fn limit(&self, thread: CpuId) -> Picoseconds {
        self.threads.limit(thread).min(self.next_free().unwrap_or(Picoseconds::MAX))
    }

    /// What an access to the line of this number costs, which a thread begins at `now`. An access to no line costs as
    /// much as one to a line that the thread's CPU alone has.
    pub(crate) fn access(&mut self, thread: CpuId, line: Option<usize>, access: Access, now: Picoseconds) -> Outcome {
        let outcome = match line {
            Some(line) => self.cache.access(self.threads.cpu(thread), line, access, now),
            None => {
                let Costs { hit, store, update, .. } = self.costs;
                let cost = match access {
                    Access::Load => hit,
                    Access::Store => store,
                    Access::Update => update,
                };
                Outcome::at_once(now + cost)
            }
        };
        self.tell_served();
        // While two threads use a core, what the core does by itself takes longer. A line from elsewhere takes as long
        // as always, because the core only waits for it.
        let is_own = outcome.moved + outcome.fetched == 0;
        let done = if is_own { now + self.threads.takes(thread, outcome.done - now) } else { outcome.done };
        Outcome { done, ..outcome }
    }

    /// What it costs a thread to read plain data at `now`, or to change the data. Data on no line costs nothing.
    pub(crate) fn data(&mut self, thread: CpuId, line: Option<usize>, changes: bool, now: Picoseconds) -> Outcome {
        let Some(line) = line else { return Outcome::at_once(now) };
        let outcome = self.cache.data(self.threads.cpu(thread), line, changes, now);
        self.tell_served();
        outcome
    }

    /// What it costs a thread to ask for the line of this number at `now`.
    pub(crate) fn fetch(&mut self, thread: CpuId, line: Option<usize>, now: Picoseconds) -> Outcome {
        let Some(line) = line else { return Outcome::at_once(now + self.costs.store) };
        let outcome = self.cache.fetch(self.threads.cpu(thread), line, now);
        self.tell_served();
        outcome
    }

    /// Loads these lines together for a thread at `now`. Returns when all lines are there. `each` is told the outcome
    /// of each load.
    pub(crate) fn load_all(
        &mut self,
        thread: CpuId,
        lines: impl Iterator<Item = usize>,
        now: Picoseconds,
        each: impl FnMut(Outcome),
    ) -> Picoseconds {
        let done = self.cache.load_all(self.threads.cpu(thread), lines, now, each);
        self.tell_served();
        done
    }

    /// When a fence ends that a thread begins at `now`.
    pub(crate) fn fence(&mut self, thread: CpuId, now: Picoseconds) -> Picoseconds {
        self.cache.fence(self.threads.cpu(thread), now)
    }

    /// A thread looks at this address until something is written to the address's line.
    pub(crate) fn watch(&mut self, thread: CpuId, address: usize) {
        self.watched.entry(address).or_default().push(thread);
    }

    /// A thread does not look at this address any more.
    pub(crate) fn look_away(&mut self, thread: CpuId, address: usize) {
        if let Some(watchers) = self.watched.get_mut(&address) {
            watchers.retain(|watcher| *watcher != thread);
            if watchers.is_empty() {
                self.watched.remove(&address);
            }
        }
    }

    /// Takes out the threads that look at one of these addresses.
    pub(crate) fn watchers(&mut self, addresses: Range<usize>) -> Vec<CpuId> {
        let mut all = Vec::new();
        while let Some(address) = self.watched.range(addresses.clone()).next().map(|(address, _)| *address) {
            all.extend(self.watched.remove(&address).into_iter().flatten());
        }
        all
    }

    /// Where the node of a thread lies.
    pub(crate) fn node(&mut self, thread: CpuId) -> usize {
        let node = &*self.nodes[usize::from(thread)];
        places::place_at("lock.node", node);
        std::ptr::from_ref(node).addr()
    }
}
