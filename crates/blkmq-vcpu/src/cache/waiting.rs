//! CPUs that wait for a busy line, and which of them the line serves next.

use std::collections::BTreeSet;

use super::{Access, Cache, Outcome, Picoseconds};
use crate::Random;

/// What a CPU asks a line for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// To make this access ([`Cache::access`]).
    Access(Access),
    /// To read plain data ([`Cache::data`]).
    ReadData,
    /// To change plain data ([`Cache::data`]).
    ChangeData,
}

/// The answer to a CPU that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The CPU may act now.
    Ready,
    /// The CPU's own stores have to end first. The CPU asks again at this time.
    Later(Picoseconds),
    /// The line is busy. The CPU may act when [`Cache::next_served`] says so.
    Waits,
}

/// A CPU that waits for a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    cpu: usize,
    since: Picoseconds,
    loads: bool,
}

/// What is known of all CPUs that wait.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    random: Random,
    /// The lines for which CPUs wait, by the time at which each line becomes free.
    lines: BTreeSet<(Picoseconds, usize)>,
    /// CPUs that were chosen and not told yet, and when the line of each CPU begins to serve it.
    chosen: Vec<(usize, Picoseconds)>,
    /// By CPU: the outcome of the access for which the CPU was chosen.
    served: Vec<Option<Outcome>>,
    /// By CPU: how long the CPU waited for its own stores before it asked for the line.
    drained: Vec<Picoseconds>,
}

impl Turns {
    pub(super) fn new(nr_cpus: usize) -> Self {
        let (random, lines, chosen) = (Random::new(0), BTreeSet::new(), Vec::new());
        Self { random, lines, chosen, served: vec![None; nr_cpus], drained: vec![0; nr_cpus] }
    }

    pub(super) fn take_served(&mut self, cpu: usize) -> Option<Outcome> {
        self.served[cpu].take()
    }

    pub(super) fn take_drained(&mut self, cpu: usize) -> Picoseconds {
        std::mem::take(&mut self.drained[cpu])
    }
}

impl Cache {
    /// The same cache, where chance follows from this seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.turns.random = Random::new(seed);
        self
    }

    /// `cpu` asks at `now` whether it may act on `line`. If the answer is [`Asked::Ready`], the CPU's next call is the
    /// one that `wants` names. A CPU that waits makes no call until [`next_served`](Self::next_served) returns it.
    ///
    /// # Panics
    /// As [`access`](Self::access).
    pub fn ask(&mut self, cpu: usize, line: usize, wants: Wants, now: Picoseconds) -> Asked {
        self.arrive(cpu, now);
        if wants == Wants::Access(Access::Update) {
            let begun = self.drain(cpu, now);
            if begun > now {
                self.turns.drained[cpu] += begun - now;
                return Asked::Later(begun);
            }
        }
        let loads = matches!(wants, Wants::Access(Access::Load) | Wants::ReadData);
        let at = self.line(line);
        let is_there = match wants {
            Wants::Access(Access::Load) | Wants::ReadData | Wants::ChangeData => at.holders.has(cpu),
            Wants::Access(Access::Update) => at.holders.is_only(cpu),
            Wants::Access(Access::Store) => true,
        };
        if is_there || at.busy <= now && at.waiters.is_empty() {
            return Asked::Ready;
        }
        at.waiters.push(Waiter { cpu, since: now, loads });
        let busy = at.busy;
        self.turns.lines.insert((busy, line));
        Asked::Waits
    }

    /// When the first of the lines for which CPUs wait becomes free.
    #[must_use]
    pub fn next_free(&self) -> Option<Picoseconds> {
        self.turns.lines.first().map(|(at, _)| *at)
    }

    /// Lets the line that becomes free first choose one of the CPUs that wait for it.
    pub fn serve(&mut self) {
        if let Some((_, line)) = self.turns.lines.first().copied() {
            let waiters = self.line(line).waiters.len();
            let chosen = self.turns.random.below(waiters as u64) as usize;
            self.choose(line, chosen);
        }
    }

    /// A CPU that was chosen, and when it may act. Each choice is returned once.
    pub fn next_served(&mut self) -> Option<(usize, Picoseconds)> {
        self.turns.chosen.pop()
    }

    /// Chance gives an access its place among the CPUs that wait for the line. The time of the access has to be known
    /// now. So the CPUs that are served before this access are chosen at once.
    pub(super) fn let_some_go_first(&mut self, line: usize) {
        loop {
            let waiters = self.line(line).waiters.len();
            if waiters == 0 {
                return;
            }
            let first = self.turns.random.below(waiters as u64 + 1) as usize;
            if first == waiters {
                return;
            }
            self.choose(line, first);
        }
    }

    /// Makes one of the CPUs that wait for a line the next one that the line serves.
    fn choose(&mut self, line: usize, waiter: usize) {
        let at = self.line(line);
        let begun = at.busy;
        let Waiter { cpu, since, loads } = at.waiters.swap_remove(waiter);
        // The other CPUs are taken out meanwhile. Otherwise the access that is served would let some of them go first.
        let others = std::mem::take(&mut at.waiters);
        let outcome = if loads { self.load(cpu, line, begun) } else { self.take(cpu, line, begun, self.costs.update) };
        self.turns.served[cpu] = Some(Outcome { waited: begun - since, ..outcome });
        self.turns.chosen.push((cpu, begun));
        self.turns.lines.remove(&(begun, line));
        let at = self.line(line);
        at.waiters = others;
        if !at.waiters.is_empty() {
            let busy = at.busy;
            self.turns.lines.insert((busy, line));
        }
    }

    /// A line that was to be free at `was` stays busy for longer, and so moves in the order of the lines that CPUs wait
    /// for.
    pub(super) fn stays_busy(&mut self, line: usize, was: Picoseconds) {
        let at = self.line(line);
        let (busy, is_waited_for) = (at.busy, !at.waiters.is_empty());
        if is_waited_for && busy != was {
            self.turns.lines.remove(&(was, line));
            self.turns.lines.insert((busy, line));
        }
    }
}
