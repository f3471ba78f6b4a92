//! What the accesses of many CPUs to shared cache lines cost: a plain value, which knows no thread and no clock.
//!
//! A line is in memory only, or one CPU has it, or several CPUs share it. A CPU that has the line in the way that it
//! needs pays next to nothing for an access. Any other access moves the line, which takes as long as the
//! [distance](Distances) between the two CPUs.
//!
//! | access | the line | takes | the line afterwards |
//! |---|---|---|---|
//! | load | the CPU has it | [`Costs::hit`] | as it was |
//! | load | one other CPU has it | the distance | both share it |
//! | load | others share it | the distance of the nearest | the CPU shares it too |
//! | store, update | the CPU alone has it | [`Costs::store`], [`Costs::update`] | as it was |
//! | store, update | others have it | the distance of the farthest, which hears of it last | the CPU alone has it |
//! | any | it is in memory only | [`Costs::memory`] | the CPU alone has it |
//!
//! - **A line serves one access at a time.** While the line moves, other accesses wait. A load from CPUs that share the
//!   line keeps other accesses waiting only for [`Costs::share`]. Each time that the line becomes free, chance chooses
//!   which of the waiting CPUs is served ([`Cache::ask`], [`Cache::serve`]). Accesses of CPUs that do not ask first are
//!   served in the order of the calls.
//! - **Stores are posted.** The CPU goes on after [`Costs::store`], and the line moves meanwhile. The stores of a CPU
//!   end in their order, and at most [`Costs::buffer`] of them are under way. Updates and fences of the CPU wait for
//!   all its stores. When a store is posted, chance gives the store a place among the CPUs that wait for the line. CPUs
//!   that come later go behind the store.
//! - **Independent loads overlap**, [`Costs::width`] of them at a time ([`Cache::load_all`]). Lines that a CPU
//!   [fetches](Cache::fetch) ahead come while the CPU goes on, at most as many at a time.
//!
//! The caches have room for everything: no line ever goes back to memory.
//!
//! ```
//! use blkmq_vcpu::cache::{Access, Cache, Costs, Distances};
//!
//! let mut cache = Cache::new(Distances::new(2, |_, _| 70_000), Costs::default());
//! let first = cache.access(0, 0, Access::Update, 0);
//! let second = cache.access(1, 0, Access::Update, first.done);
//! assert_eq!((second.done - first.done, second.moved), (70_000, 1));
//! ```

mod distances;
mod holders;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;

pub use distances::Distances;
use holders::Holders;
pub use waiting::{Asked, Wants};
use waiting::{Turns, Waiter};

/// A time, or a length of time, in picoseconds, because some accesses take only a fraction of a nanosecond.
pub type Picoseconds = u64;

/// What a CPU does to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The CPU reads.
    Load,
    /// The CPU writes, and does not wait until the line is there.
    Store,
    /// The CPU reads and writes in one operation, as with a compare-exchange.
    Update,
}

/// What accesses cost, apart from the distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// A load of a line that the CPU has.
    pub hit: Picoseconds,
    /// An update of a line that the CPU alone has.
    pub update: Picoseconds,
    /// A store, until the CPU goes on.
    pub store: Picoseconds,
    /// A fence, if no store is under way.
    pub fence: Picoseconds,
    /// An access to a line that no CPU has.
    pub memory: Picoseconds,
    /// For how long a load of a line that others share keeps further accesses waiting.
    pub share: Picoseconds,
    /// How many independent loads of a CPU are under way at most, and how many lines that the CPU fetches ahead; at
    /// least 1.
    pub width: usize,
    /// How many stores of a CPU are under way at most; at least 1.
    pub buffer: usize,
}

impl Default for Costs {
    /// The costs of a common x86 core.
    fn default() -> Self {
        Self {
            hit: 1_000,
            update: 5_000,
            store: 300,
            fence: 5_000,
            memory: 90_000,
            share: 10_000,
            width: 8,
            buffer: 48,
        }
    }
}

/// What an access cost, and what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// When the CPU goes on.
    pub done: Picoseconds,
    /// How long lines were busy with other CPUs before they served this access.
    pub waited: Picoseconds,
    /// How long an update waited for the CPU's own stores to end.
    pub drained: Picoseconds,
    /// How many lines moved from one CPU to another, or became invalid in other CPUs' caches.
    pub moved: u32,
    /// How many lines came from memory.
    pub fetched: u32,
}

impl Outcome {
    /// The CPU goes on at `done`, and waited for nothing.
    pub(crate) const fn at_once(done: Picoseconds) -> Self {
        Self { done, waited: 0, drained: 0, moved: 0, fetched: 0 }
    }
}

#[derive(Debug, Clone, Default)]
struct Line {
    /// The CPUs that have the line. A CPU that alone has the line may write without asking.
    holders: Holders,
    /// Until when the line serves earlier accesses.
    busy: Picoseconds,
    /// The CPUs that wait until the line is free.
    waiters: Vec<Waiter>,
}

/// How a line came to a CPU.
struct Transfer {
    begun: Picoseconds,
    ended: Picoseconds,
    is_from_memory: bool,
}

/// The lines and CPUs of a machine.
#[derive(Debug, Clone)]
pub struct Cache {
    distances: Distances,
    costs: Costs,
    lines: Vec<Line>,
    /// For each CPU, the ends of its stores that may still be under way, the oldest first.
    stores: Vec<VecDeque<Picoseconds>>,
    /// For each CPU, the lines that it fetched ahead and that may still be under way, and when each line is there.
    fetches: Vec<Vec<(usize, Picoseconds)>>,
    /// For each CPU, when it goes on after its last call.
    done: Vec<Picoseconds>,
    /// The ends of the loads under way, empty between two calls. The vector is kept so that no call has to allocate
    /// one.
    loads: Vec<Picoseconds>,
    last_call: Picoseconds,
    turns: Turns,
}

impl Cache {
    /// A machine whose CPUs have these distances from each other, with every line in memory.
    ///
    /// # Panics
    /// If no load, or no store, may be under way.
    #[must_use]
    pub fn new(distances: Distances, costs: Costs) -> Self {
        assert!(costs.width > 0 && costs.buffer > 0, "a load and a store are under way at least");
        let stores = (0..distances.nr_cpus()).map(|_| VecDeque::with_capacity(costs.buffer)).collect();
        let fetches = (0..distances.nr_cpus()).map(|_| Vec::with_capacity(costs.width)).collect();
        let (done, loads) = (vec![0; distances.nr_cpus()], Vec::with_capacity(costs.width));
        let turns = Turns::new(distances.nr_cpus());
        Self { distances, costs, lines: Vec::new(), stores, fetches, done, loads, last_call: 0, turns }
    }

    /// `cpu` accesses `line` at `now`. Lines are numbers, best without gaps.
    ///
    /// # Panics
    /// If there is no such CPU, if the CPU has not gone on after its last call yet, or if `now` is before the `now` of
    /// an earlier call.
    pub fn access(&mut self, cpu: usize, line: usize, access: Access, now: Picoseconds) -> Outcome {
        self.arrive(cpu, now);
        let served = self.turns.take_served(cpu);
        let outcome = served.unwrap_or_else(|| match access {
            Access::Load => self.load(cpu, line, now),
            Access::Store => self.store(cpu, line, now),
            Access::Update => self.update(cpu, line, now),
        });
        self.done[cpu] = outcome.done;
        Outcome { drained: outcome.drained + self.turns.take_drained(cpu), ..outcome }
    }

    /// `cpu` reads plain data on `line` at `now`, or `changes` the data. A CPU that does not have the line waits for
    /// the line. If the CPU has the line, the access is a part of the CPU's own work and costs nothing here, with one
    /// exception: if other CPUs share the line, a change is posted as a store, because the CPU has the data already.
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn data(&mut self, cpu: usize, line: usize, changes: bool, now: Picoseconds) -> Outcome {
        self.arrive(cpu, now);
        let holders = self.line(line).holders;
        let served = self.turns.take_served(cpu);
        let outcome = served.unwrap_or_else(|| match (holders.has(cpu), changes) {
            (true, true) if !holders.is_only(cpu) => self.store(cpu, line, now),
            (true, _) => Outcome::at_once(self.is_there(cpu, line, now)),
            (false, false) => self.load(cpu, line, now),
            (false, true) => self.take(cpu, line, now, 0),
        });
        self.done[cpu] = outcome.done;
        outcome
    }

    /// `cpu` loads lines at `now`, none of which tells where another one is. Returns when all lines are there. `each`
    /// is told the outcome of each load.
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn load_all(
        &mut self,
        cpu: usize,
        lines: impl IntoIterator<Item = usize>,
        now: Picoseconds,
        mut each: impl FnMut(Outcome),
    ) -> Picoseconds {
        self.arrive(cpu, now);
        let mut all = now;
        let mut loads = std::mem::take(&mut self.loads);
        for line in lines {
            let begin = begin_next(&mut loads, self.costs.width, now, |there| *there);
            let outcome = self.load(cpu, line, begin);
            loads.push(outcome.done);
            all = all.max(outcome.done);
            each(outcome);
        }
        loads.clear();
        self.loads = loads;
        self.done[cpu] = all;
        all
    }

    /// `cpu` asks at `now` for `line`, which it will change, and goes on after [`Costs::store`]. If the CPU accesses
    /// the line before it is there, the access waits.
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn fetch(&mut self, cpu: usize, line: usize, now: Picoseconds) -> Outcome {
        self.arrive(cpu, now);
        let outcome = if self.line(line).holders.is_only(cpu) {
            // The line is there, or an earlier fetch of this CPU brings it. What is known of that fetch stays.
            Outcome::at_once(now + self.costs.store)
        } else {
            let fetches = &mut self.fetches[cpu];
            // If this line was under way to this CPU and another CPU has taken the line away, it comes anew.
            fetches.retain(|(fetched, there)| *there > now && *fetched != line);
            let begin = begin_next(fetches, self.costs.width, now, |(_, there)| *there);
            let transfer = self.own(cpu, line, begin).expect("this CPU is not the only one that has the line");
            self.fetches[cpu].push((line, transfer.ended));
            self.came(begin, &transfer, begin + self.costs.store)
        };
        self.done[cpu] = outcome.done;
        outcome
    }

    /// When `cpu`, which has `line`, can use the line: at once, unless the line was fetched ahead and is under way.
    fn is_there(&self, cpu: usize, line: usize, now: Picoseconds) -> Picoseconds {
        let fetch = self.fetches[cpu].iter().find(|(fetched, _)| *fetched == line);
        fetch.map_or(now, |(_, there)| now.max(*there))
    }

    /// `cpu` waits at `now` until its stores have ended. Returns when the CPU goes on.
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn fence(&mut self, cpu: usize, now: Picoseconds) -> Picoseconds {
        self.arrive(cpu, now);
        self.done[cpu] = self.drain(cpu, now).max(now + self.costs.fence);
        self.done[cpu]
    }

    fn arrive(&mut self, cpu: usize, now: Picoseconds) {
        assert!(now >= self.last_call, "a call at {now} ps comes after one at {} ps", self.last_call);
        assert!(now >= self.done[cpu], "CPU {cpu} goes on at {} ps, and calls at {now} ps", self.done[cpu]);
        self.last_call = now;
    }

    fn line(&mut self, line: usize) -> &mut Line {
        if line >= self.lines.len() {
            self.lines.resize(line + 1, Line::default());
        }
        &mut self.lines[line]
    }

    fn load(&mut self, cpu: usize, line: usize, now: Picoseconds) -> Outcome {
        // A CPU that has posted a store to the line reads what it stored, and does not wait for the line.
        if self.line(line).holders.has(cpu) {
            return Outcome::at_once(self.is_there(cpu, line, now) + self.costs.hit);
        }
        let share = self.costs.share;
        let (holders, begun) = self.begin(line, now);
        let ended = begun + holders.nearest(cpu, &self.distances).unwrap_or(self.costs.memory);
        let at = self.line(line);
        let busy = if holders.len() > 1 { begun + share } else { ended };
        let was = std::mem::replace(&mut at.busy, busy);
        at.holders.add(cpu);
        self.stays_busy(line, was);
        self.came(now, &Transfer { begun, ended, is_from_memory: holders.len() == 0 }, ended)
    }

    fn store(&mut self, cpu: usize, line: usize, now: Picoseconds) -> Outcome {
        let now = self.wait_for_room(cpu, now);
        let done = now + self.costs.store;
        let (ended, outcome) = match self.own(cpu, line, now) {
            Ok(transfer) => (transfer.ended, self.came(now, &transfer, done)),
            Err(is_there) => (is_there, Outcome::at_once(done)),
        };
        let stores = &mut self.stores[cpu];
        let ended = stores.back().map_or(ended, |last| ended.max(*last));
        if ended > done {
            stores.push_back(ended);
        }
        outcome
    }

    fn update(&mut self, cpu: usize, line: usize, now: Picoseconds) -> Outcome {
        let begun = self.drain(cpu, now);
        Outcome { drained: begun - now, ..self.take(cpu, line, begun, self.costs.update) }
    }

    /// Makes `cpu` the only CPU that has `line`. The CPU goes on when the line is there, or `more` later if the CPU was
    /// the only one already.
    fn take(&mut self, cpu: usize, line: usize, now: Picoseconds, more: Picoseconds) -> Outcome {
        match self.own(cpu, line, now) {
            Ok(transfer) => self.came(now, &transfer, transfer.ended),
            Err(is_there) => Outcome::at_once(now.max(is_there) + more),
        }
    }

    /// Makes `cpu` the only CPU that has `line`. `Err`: `cpu` was the only one already, and can use the line from then
    /// on.
    fn own(&mut self, cpu: usize, line: usize, now: Picoseconds) -> Result<Transfer, Picoseconds> {
        if self.line(line).holders.is_only(cpu) {
            return Err(self.line(line).busy);
        }
        let (holders, begun) = self.begin(line, now);
        let ended = begun + holders.farthest(cpu, &self.distances).unwrap_or(self.costs.memory);
        let at = self.line(line);
        at.holders = Holders::only(cpu);
        let was = std::mem::replace(&mut at.busy, ended);
        self.stays_busy(line, was);
        Ok(Transfer { begun, ended, is_from_memory: holders.len() == 0 })
    }

    /// The CPUs that have `line`, and when the line begins to serve an access that comes at `now`.
    fn begin(&mut self, line: usize, now: Picoseconds) -> (Holders, Picoseconds) {
        self.let_some_go_first(line);
        let Line { holders, busy, .. } = self.line(line);
        (*holders, now.max(*busy))
    }

    fn came(&self, now: Picoseconds, transfer: &Transfer, done: Picoseconds) -> Outcome {
        let fetched = u32::from(transfer.is_from_memory);
        Outcome { done, waited: transfer.begun - now, drained: 0, moved: 1 - fetched, fetched }
    }

    /// When all stores of `cpu` have ended.
    fn drain(&mut self, cpu: usize, now: Picoseconds) -> Picoseconds {
        let last = self.stores[cpu].back().copied();
        self.stores[cpu].clear();
        last.map_or(now, |last| last.max(now))
    }

    /// When `cpu` has room for one more store under way.
    fn wait_for_room(&mut self, cpu: usize, now: Picoseconds) -> Picoseconds {
        let stores = &mut self.stores[cpu];
        while stores.front().is_some_and(|ended| *ended <= now) {
            stores.pop_front();
        }
        if stores.len() < self.costs.buffer {
            return now;
        }
        stores.pop_front().map_or(now, |oldest| oldest.max(now))
    }
}

/// When a CPU begins one more load: at once if fewer than `width` loads are under way, and otherwise when the first of
/// these loads ends. That load is then taken out. `end` says when a load ends.
fn begin_next<T>(
    under_way: &mut Vec<T>,
    width: usize,
    now: Picoseconds,
    end: impl Fn(&T) -> Picoseconds,
) -> Picoseconds {
    if under_way.len() < width {
        return now;
    }
    let first = (0..under_way.len()).min_by_key(|at| end(&under_way[*at])).expect("a load is under way");
    end(&under_way.swap_remove(first))
}
