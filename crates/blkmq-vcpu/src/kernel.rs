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
    /// at a line of its own, called `lock.node`, and is told there by the thread before it.
    Queued,
    /// Each thread draws a number, and all of them look at the lock's line for the number that is served.
    Ticket,
}

/// What a thread pays for calls of the operating system, and for waiting in `std`'s locks.
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
    /// From the call that wakes a thread, or from the time until which it sleeps, until it goes on.
    pub wake_latency: Picoseconds,
    /// To yield the processor if no other thread waits for it; not 0, because a thread may yield until a certain time.
    pub yields: Picoseconds,
}

impl Default for Kernel {
    /// Those of a virtual machine on an AMD EPYC with Linux 6.18, rounded. `spin` is a hundred looks with the
    /// processor's instruction for pauses, which takes a tenth of the time on Intel's before Skylake.
    fn default() -> Self {
        Self {
            spin: 2_000_000,
            call: 300_000,
            sleep: 1_500_000,
            wake: 1_500_000,
            wake_latency: 5_000_000,
            yields: 800_000,
        }
    }
}

impl Kernel {
    /// Calls cost nothing, except that to yield takes 500 ns. No thread looks before it sleeps.
    pub const FREE: Self = Self { spin: 0, call: 0, sleep: 0, wake: 0, wake_latency: 0, yields: 500_000 };
}
