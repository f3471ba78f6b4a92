//! CPUs that wait at a line that is busy, and which of them is served next.

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

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The CPU may act now.
    Ready,
    /// The CPU's own stores have to end first. It asks again at this time.
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

/// What is known of all that wait.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    random: Random,
    /// The lines that CPUs wait for, by when they are free.
    lines: BTreeSet<(Picoseconds, usize)>,
    /// CPUs that were chosen and not told yet, and when their lines begin to serve them.
    chosen: Vec<(usize, Picoseconds)>,
    /// By CPU: what the access comes to for which it was chosen.
    served: Vec<Option<Outcome>>,
    /// By CPU: how long it waited for its own stores before it asked for the line.
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
    /// The same, where chance follows from this number.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.turns.random = Random::new(seed);
        self
    }

    /// `cpu` asks at `now` whether it may act on `line`. If it may, its next call is that access or that data. A CPU
    /// that waits asks nothing and calls nothing until it may.
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

    /// When the next line is free for which a CPU waits.
    #[must_use]
    pub fn next_free(&self) -> Option<Picoseconds> {
        self.turns.lines.first().map(|(at, _)| *at)
    }

    /// The line that is free next chooses one of the CPUs that wait for it.
    pub fn serve(&mut self) {
        if let Some((_, line)) = self.turns.lines.first().copied() {
            let waiters = self.line(line).waiters.len();
            let chosen = self.turns.random.below(waiters as u64) as usize;
            self.choose(line, chosen);
        }
    }

    /// A CPU that was chosen, and when it may act. Each is told once.
    pub fn next_served(&mut self) -> Option<(usize, Picoseconds)> {
        self.turns.chosen.pop()
    }

    /// Chance gives an access its place among the CPUs that wait for the line. The time of the access has to be known
    /// now. So the CPUs that are served before it are chosen at once.
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

    /// One of those that wait for a line is the next that it serves.
    fn choose(&mut self, line: usize, waiter: usize) {
        let at = self.line(line);
        let begun = at.busy;
        let Waiter { cpu, since, loads } = at.waiters.swap_remove(waiter);
        // They are away meanwhile, so that what is served does not choose again.
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

    /// A line is busy for longer than was known.
    pub(super) fn stays_busy(&mut self, line: usize, was: Picoseconds) {
        let at = self.line(line);
        let (busy, is_waited_for) = (at.busy, !at.waiters.is_empty());
        if is_waited_for && busy != was {
            self.turns.lines.remove(&(was, line));
            self.turns.lines.insert((busy, line));
        }
    }
}
