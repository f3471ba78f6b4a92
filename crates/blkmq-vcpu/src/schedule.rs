//! Schedules: which CPU goes on, and when.

mod priorities;
mod targeted;
mod uniform;

pub use priorities::Priorities;
pub use targeted::Targeted;
pub use uniform::Uniform;

use crate::hot::CpuId;

/// What a schedule decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The CPU that goes on, which is runnable.
    pub next: CpuId,
    /// Steps until the next decision, unless the CPU falls asleep before; at least 1.
    pub quantum: u32,
    /// The line whose every step asks for a decision.
    pub watch: Option<&'static str>,
}

/// Decides which virtual CPU goes on. A schedule is deterministic: its decisions follow from its own state and from
/// what it is told.
pub trait Schedule {
    /// A CPU began.
    fn added(&mut self, cpu: CpuId) {
        let _ = cpu;
    }

    /// Chooses among `runnable`, which is not empty and in rising order. `from` is the CPU whose quantum is over, if it
    /// can go on itself. `watched` is the line that ended the quantum, if one did. `step` is the number of steps made
    /// so far.
    fn decide(&mut self, runnable: &[CpuId], from: Option<CpuId>, watched: Option<&'static str>, step: u64)
    -> Decision;
}
