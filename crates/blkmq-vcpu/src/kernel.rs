//! What threads pay for waiting: the kinds of locks, and the costs of falling asleep and of waking.

use crate::cache::Picoseconds;

/// As which locks those of a run behave ([`Mutex`](crate::sync::Mutex)) if CPUs have clocks of their own. Each touches
/// the lines that such a lock touches.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// As `std`'s on Linux. A thread that finds the lock held looks at it for a moment ([`Kernel::spin`]), marks it and
    /// sleeps. The holder that lets go of a marked lock wakes one sleeper. A thread that comes meanwhile may take the
    /// lock first.
    #[default]
    Futex,
    /// As the queued spinlocks of Linux's kernel. One thread waits at the lock itself. Further ones queue: each looks
    /// at a line of its own, called `lock.node`, and is told there by the thread before it. In the kernel no
    /// thread loses its CPU meanwhile; here it may, if the CPU has others.
    Queued,
    /// Each thread draws a number, and all of them look at the lock's line for the number that is served.
    Ticket,
}

/// What a thread pays for calls of the operating system and for sharing a CPU with others, and for how long it looks at
/// one of `std`'s locks before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// For how long a thread looks at a lock of [`LockKind::Futex`] before it sleeps.
    pub spin: Picoseconds,
    /// A system call that has nothing to do.
    pub call: Picoseconds,
    /// To fall asleep.
    pub sleep: Picoseconds,
    /// To wake a thread.
    pub wake: Picoseconds,
    /// From the call that wakes a thread, or from the time until which it sleeps, until it goes on if its CPU is idle.
    /// Otherwise it waits for the CPU from then on.
    pub wake_latency: Picoseconds,
    /// To yield the CPU, beside the switch if another thread waits for it; not 0, because a thread may yield until a
    /// certain time.
    pub yields: Picoseconds,
    /// To go from one thread to another one that waits for the CPU.
    pub switch: Picoseconds,
    /// For how long a thread has its CPU while another one waits for it; not 0.
    pub slice: Picoseconds,
}

impl Default for Kernel {
    /// Those of two processors of a virtual machine on an AMD EPYC with Linux 6.18, as the example `kernel_costs` found
    /// them on 2026-11-27, rounded. `spin` is a hundred looks with the processor's instruction for pauses, as `std`
    /// makes them; it takes a tenth of that on Intel's before Skylake. Of what it takes to fall asleep and to return,
    /// `sleep` is the half. The slice is that of Linux for eight CPUs or more, whose clock ticks may lengthen it.
    fn default() -> Self {
        Self {
            spin: 2_400_000,
            call: 230_000,
            sleep: 1_800_000,
            wake: 2_500_000,
            wake_latency: 5_000_000,
            yields: 600_000,
            switch: 900_000,
            slice: 3_000_000_000,
        }
    }
}

impl Kernel {
    /// Calls cost nothing, except that to yield takes 500 ns, and CPUs go from thread to thread in no time. No thread
    /// looks before it sleeps.
    pub const FREE: Self =
        Self { spin: 0, call: 0, sleep: 0, wake: 0, wake_latency: 0, yields: 500_000, switch: 0, slice: 3_000_000_000 };
}
