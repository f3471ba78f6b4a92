//! CPUs that have a clock each, and on which accesses to shared lines cost time.
//!
//! The thread that runs is always the one whose CPU's clock is earliest of all that can go on, and of two with the
//! same clock that with the lower number. So what is done to shared data takes effect in the order of the clocks. A
//! load or an update waits until its line is free and serves it, takes effect then, and the CPU's clock moves on by
//! what the operation costs. A store takes effect when the CPU makes it. A thread that sleeps until a certain time
//! counts as one whose clock shows that time.

mod threads;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::{Access, Asked, Cache, Costs, Distances, Outcome, Picoseconds, Wants};
use crate::hot::CpuId;
use crate::kernel::{Kernel, LockKind};
use crate::places;
use threads::Threads;
pub(crate) use threads::{Due, Then};

/// The CPUs of a machine on which time passes by what each CPU does. Threads get CPUs in turn as they begin, and stay
/// there. Threads of one CPU take turns: one goes on until it sleeps, or until it has had the CPU for a slice
/// ([`Kernel::slice`]) and another one waits.
#[derive(Debug, Clone)]
pub struct Cores {
    /// How far apart they are.
    pub distances: Distances,
    /// What accesses cost apart from that.
    pub costs: Costs,
    /// As which locks those of the run behave.
    pub locks: LockKind,
    /// What calls of the operating system cost.
    pub kernel: Kernel,
    /// The CPUs that threads get, the first thread the first of them. After the last one it is the turn of the first
    /// again.
    pub fill: Vec<usize>,
    /// Which CPUs are one core, if any are.
    pub smt: Option<Smt>,
    /// The number from which chance follows, which says which CPU a busy line serves next.
    pub seed: u64,
}

/// Cores of two CPUs each. While both have a thread, spinning or not, private work takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smt {
    /// How far the numbers of a core's two CPUs are apart: with 1, CPUs 0 and 1 are a core, and 2 and 3; with 2, CPUs
    /// 0 and 2 are one, 1 and 3, 4 and 6.
    pub apart: usize,
    /// What private work, and accesses to lines of the core's own, take while both have a thread, in percent of what
    /// it takes alone: 165 if two threads together do 1.2 times as much as one.
    pub percent: u64,
}

impl Smt {
    /// The other CPU of the core.
    const fn sibling(self, cpu: usize) -> usize {
        if (cpu / self.apart).is_multiple_of(2) { cpu + self.apart } else { cpu - self.apart }
    }
}

impl Cores {
    /// CPUs at these distances, with the defaults of everything else: each is a core, and all get threads, by number.
    #[must_use]
    pub fn new(distances: Distances) -> Self {
        let (costs, locks, kernel) = (Costs::default(), LockKind::default(), Kernel::default());
        let fill = (0..distances.nr_cpus()).collect();
        Self { distances, costs, locks, kernel, fill, smt: None, seed: 1 }
    }
}

/// What a thread waits by in the queue of a lock, alone on its line.
#[repr(align(64))]
struct Node(#[expect(dead_code, reason = "only its address counts")] [u8; 64]);

/// The CPUs and threads of a run, and the lines that all of them share.
pub(crate) struct Clocks {
    cache: Cache,
    costs: Costs,
    pub(crate) threads: Threads,
    /// The threads that look at a line until something is written to it, by the address that they look at.
    watched: BTreeMap<usize, Vec<CpuId>>,
    /// By thread.
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

    /// The next thread begins.
    pub(crate) fn add(&mut self, now: Picoseconds) {
        self.nodes.push(Box::new(Node([0; 64])));
        self.threads.begin(now);
    }

    /// A thread asks whether it may act on the line of this number. A thread that waits stops.
    pub(crate) fn ask(&mut self, thread: CpuId, line: usize, wants: Wants, now: Picoseconds) -> Asked {
        let asked = self.cache.ask(self.threads.cpu(thread), line, wants, now);
        if asked == Asked::Waits {
            self.threads.stop(thread, now, Then::Waits);
        }
        asked
    }

    /// When the next line is free for which a thread waits.
    pub(crate) fn next_free(&self) -> Option<Picoseconds> {
        self.cache.next_free()
    }

    /// The line that is free next chooses the thread that it serves.
    pub(crate) fn serve(&mut self) {
        self.cache.serve();
        self.tell_served();
    }

    fn tell_served(&mut self) {
        while let Some((cpu, at)) = self.cache.next_served() {
            self.threads.serve(cpu, at);
        }
    }

    /// What the clock of a thread that runs in the program must show for something to happen first.
    pub(crate) fn limit(&self, thread: CpuId) -> Picoseconds {
        self.threads.limit(thread).min(self.next_free().unwrap_or(Picoseconds::MAX))
    }

    /// What an access of a thread to the line of this number costs that begins at `now`. Without a number it costs
    /// what an access to a line of its CPU's own does.
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
        // A core that both its threads use is slower at what is its own. A line from elsewhere takes as long.
        let is_own = outcome.moved + outcome.fetched == 0;
        let done = if is_own { now + self.threads.takes(thread, outcome.done - now) } else { outcome.done };
        Outcome { done, ..outcome }
    }

    /// What it costs a thread to read plain data at `now`, or to change it. On no line it costs nothing.
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

    /// When all of these lines are there that a thread loads together at `now`; `each` is told of them one by one.
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

    /// When a fence of a thread ends that begins at `now`.
    pub(crate) fn fence(&mut self, thread: CpuId, now: Picoseconds) -> Picoseconds {
        self.cache.fence(self.threads.cpu(thread), now)
    }

    /// A thread looks at this address until something is written to its line.
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
