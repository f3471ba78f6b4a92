//! What threads pay for waiting: the kinds of locks, and the costs of falling asleep and of waking.

use crate::cache::Picoseconds;

/// The kind of lock as which every [`Mutex`](crate::sync::Mutex) of a run behaves, if CPUs have clocks of their own.
/// Such a lock touches the cache lines that a real lock of this kind touches.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// The lock of `std` on Linux. A thread that finds the lock held looks at the lock for a moment ([`Kernel::spin`]),
    /// marks it and sleeps. The holder of a marked lock lets the lock go and wakes one thread that sleeps. Before the
    /// woken thread goes on, another thread may take the lock.
    #[default]
    Futex,
    /// The queued spinlock of Linux's kernel. The first thread that waits looks at the lock itself. Further threads
    /// queue: each looks at a line of its own, called `lock.node`, until the thread before it writes there. In the
    /// kernel no thread loses its CPU while it waits. Here a thread may lose its CPU, if the CPU has other threads.
    Queued,
    /// Each thread draws a number. All threads that wait look at the lock's line, which says the number that is served.
    Ticket,
}

/// What a thread pays for system calls and for sharing a CPU with other threads, and for how long the thread looks at a
/// lock of `std` before it sleeps.
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
    /// From the call that wakes a thread, or from the time until which the thread sleeps, until the thread can go on.
    /// If its CPU is not idle, the thread waits for the CPU from then on.
    pub wake_latency: Picoseconds,
    /// To yield the CPU, without the switch to another thread that waits for it. Not 0: the clock of a thread that
    /// yields in a loop until a certain time would never reach that time.
    pub yields: Picoseconds,
    /// To switch from one thread to another one that waits for the CPU.
    pub switch: Picoseconds,
    /// For how long a thread has its CPU while another thread waits for it. Not 0: otherwise threads that share a CPU
    /// would only switch.
    pub slice: Picoseconds,
}

impl Default for Kernel {
    /// The costs on two processors of a virtual machine on an AMD EPYC with Linux 6.18. The example `kernel_costs`
    /// measured these costs on 2026-11-27, and they are rounded. `spin` is the time of a hundred looks with the
    /// processor's instruction for pauses, as `std` makes them. On Intel's processors before Skylake, the hundred looks
    /// take a tenth of that time. `sleep` is half of the time that it takes to fall asleep and to return. `slice` is
    /// the slice of Linux for eight CPUs or more. Linux ends a slice at a clock tick, and so may lengthen it.
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
    /// System calls and switches cost nothing, except that to yield takes 500 ns. No thread looks at a lock before it
    /// sleeps.
    pub const FREE: Self =
        Self { spin: 0, call: 0, sleep: 0, wake: 0, wake_latency: 0, yields: 500_000, switch: 0, slice: 3_000_000_000 };
}
