//! What a thread uses of the machine.

use std::ops::{Add, AddAssign, Sub};

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

/// What a thread used of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time in all, in nanoseconds.
    pub cpu_ns: u64,
    /// CPU time in user mode, in nanoseconds; the kernel divides [`cpu_ns`](Self::cpu_ns) by sampling.
    pub usr_ns: u64,
    /// CPU time in the kernel, in nanoseconds.
    pub sys_ns: u64,
    /// Context switches: times when the thread gave the processor up, and times when it was taken.
    pub switches: u64,
    /// Page faults that had to read from a disk.
    pub major_faults: u64,
    /// Page faults that did not have to read from a disk.
    pub minor_faults: u64,
}

impl Usage {
    /// What the calling thread has used so far. Zero if the system does not say.
    pub(super) fn of_thread() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Self::default() };
        let ns = |time: nix::sys::time::TimeVal| {
            time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_usec().unsigned_abs() * 1000
        };
        let count = |number: std::ffi::c_long| number.unsigned_abs();
        Self {
            cpu_ns: thread_cpu_ns(),
            usr_ns: ns(usage.user_time()),
            sys_ns: ns(usage.system_time()),
            switches: count(usage.voluntary_context_switches()) + count(usage.involuntary_context_switches()),
            major_faults: count(usage.major_page_faults()),
            minor_faults: count(usage.minor_page_faults()),
        }
    }

    fn zip(self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_ns: f(self.cpu_ns, other.cpu_ns),
            usr_ns: f(self.usr_ns, other.usr_ns),
            sys_ns: f(self.sys_ns, other.sys_ns),
            switches: f(self.switches, other.switches),
            major_faults: f(self.major_faults, other.major_faults),
            minor_faults: f(self.minor_faults, other.minor_faults),
        }
    }
}

/// CPU time of the calling thread in nanoseconds. COST: a system call of some 100 to 200 ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs())
}

impl Sub for Usage {
    type Output = Self;

    /// What was used since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::add);
    }
}
