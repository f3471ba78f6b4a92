//! Every runnable CPU is as likely as any other.

use super::{Decision, Schedule};
use crate::{CpuId, Random};

/// Chooses at random, after a random number of steps.
#[derive(Debug)]
pub struct Uniform {
    random: Random,
    mean: u64,
}

impl Uniform {
    /// `mean` steps between decisions on average.
    #[must_use]
    pub const fn new(random: Random, mean: u64) -> Self {
        Self { random, mean }
    }
}

impl Schedule for Uniform {
    fn decide(&mut self, runnable: &[CpuId], _: Option<CpuId>, _: Option<&'static str>, _: u64) -> Decision {
        let next = *self.random.pick(runnable);
        Decision { next, quantum: self.random.around(self.mean) as u32, watch: None }
    }
}
