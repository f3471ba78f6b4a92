//! The runnable CPU of the highest priority goes on. At random moments the CPU that runs gets the lowest priority.

use super::{Decision, Schedule};
use crate::{CpuId, Random};

/// Priority-change scheduling, which finds bugs that need few but unlikely switches (Burckhardt, Kothari, Musuvathi,
/// Nagarakatte: "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010). Here change
/// points come again and again, because a run is long.
#[derive(Debug)]
pub struct Priorities {
    random: Random,
    /// By CPU; higher goes first.
    priorities: Vec<u64>,
    lowest: u64,
    /// Steps between change points on average.
    mean: u64,
    next_change: u64,
}

impl Priorities {
    /// `mean` steps between change points on average.
    #[must_use]
    pub const fn new(random: Random, mean: u64) -> Self {
        Self { random, priorities: Vec::new(), lowest: u64::MAX / 2, mean, next_change: 0 }
    }
}

impl Schedule for Priorities {
    fn added(&mut self, cpu: CpuId) {
        let priority = u64::MAX / 2 + self.random.below(u64::MAX / 2);
        self.priorities.resize(usize::from(cpu), 0);
        self.priorities.push(priority);
    }

    fn decide(&mut self, runnable: &[CpuId], from: Option<CpuId>, _: Option<&'static str>, step: u64) -> Decision {
        if step >= self.next_change {
            self.next_change = step + self.random.around(self.mean);
            if let Some(from) = from {
                self.lowest -= 1;
                self.priorities[usize::from(from)] = self.lowest;
            }
        }
        let next = runnable.iter().copied().max_by_key(|cpu| self.priorities[usize::from(*cpu)]).unwrap_or(runnable[0]);
        let quantum = (self.next_change - step).clamp(1, 64) as u32;
        Decision { next, quantum, watch: None }
    }
}
