//! Switches right after operations on one named line, where other schedules rarely do.

use super::{Decision, Schedule};
use crate::{CpuId, Random};

/// Preempts after each operation on one line, and keeps the CPU that made the operation waiting for a while. Before
/// that CPU's next step, the value that it read may be old, and other CPUs may have seen the value that it wrote.
#[derive(Debug)]
pub struct Targeted {
    random: Random,
    line: &'static str,
    /// Steps between other decisions on average.
    mean: u64,
    /// The CPU that was preempted last, and how many decisions it still waits.
    held: Option<(CpuId, u64)>,
}

impl Targeted {
    /// Preempts after each operation on `line`, and otherwise after `mean` steps on average.
    #[must_use]
    pub const fn new(random: Random, line: &'static str, mean: u64) -> Self {
        Self { random, line, mean, held: None }
    }
}

impl Schedule for Targeted {
    fn decide(&mut self, runnable: &[CpuId], from: Option<CpuId>, watched: Option<&'static str>, _: u64) -> Decision {
        if watched.is_some() {
            // One operation of four is not followed by a preemption, because some bugs need a CPU that makes two such
            // operations in a row.
            self.held = from.filter(|_| !self.random.one_in(4)).map(|cpu| (cpu, self.random.within(1, 20)));
        } else if let Some((_, decisions)) = &mut self.held {
            *decisions -= 1;
            if *decisions == 0 {
                self.held = None;
            }
        }
        let held = self.held.map(|(cpu, _)| cpu).filter(|_| runnable.len() > 1);
        let mut at =
            self.random.below((runnable.len() - usize::from(held.is_some_and(|cpu| runnable.contains(&cpu)))) as u64)
                as usize;
        if let Some(place) = held.and_then(|cpu| runnable.iter().position(|runnable| *runnable == cpu)) {
            at += usize::from(at >= place);
        }
        Decision { next: runnable[at], quantum: self.random.around(self.mean) as u32, watch: Some(self.line) }
    }
}
