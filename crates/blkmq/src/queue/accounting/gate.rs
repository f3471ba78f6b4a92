//! The gate of the bypass: how often it opened and shut, and for how long it was shut.

use std::ops::{AddAssign, Sub};

use blkmq_sched::Time;
use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU64, Ordering};

use super::{add, get};

/// The gate that lets requests bypass the scheduler: how often it opened and shut, and for how long it was shut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GateCounts {
    /// How often the gate opened: from then on requests of one class, or of every class, pass while nothing waits.
    pub opened: u64,
    /// How often the gate was shut. A request of another class or client came, the scheduler changed its answer, or
    /// something waited where the scheduler or the limiter then keeps the gate shut for a while. A change of a knob or
    /// of the scheduler shuts it too, and opens it again.
    pub shut: u64,
    /// Nanoseconds for which the gate was shut while there was a scheduler and the knob `bypass` was on, by the queue's
    /// clock. Excludes the time in which the gate is open and WAITING is set.
    pub shut_ns: u64,
}

impl AddAssign for GateCounts {
    fn add_assign(&mut self, other: Self) {
        self.opened += other.opened;
        self.shut += other.shut;
        self.shut_ns += other.shut_ns;
    }
}

impl Sub for GateCounts {
    type Output = Self;

    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            opened: self.opened - earlier.opened,
            shut: self.shut - earlier.shut,
            // Two readers may see clocks that differ by a moment.
            shut_ns: self.shut_ns.saturating_sub(earlier.shut_ns),
        }
    }
}

/// The lowest bit of the balance: the gate is shut, and time runs.
const SHUT: u64 = 1;

/// What [`GateCounts`] is read from. It changes under the lock under which the gate changes, so one thread at a time
/// writes it.
#[derive(Debug)]
pub(in crate::queue) struct GateMeter(Line<Cells>);

#[derive(Debug, Default)]
struct Cells {
    opened: AtomicU64,
    shut: AtomicU64,
    /// [`SHUT`], and above it, modulo 2^63: the nanoseconds for which the gate was shut; while it is shut, less the
    /// time at which that began.
    balance: AtomicU64,
}

impl GateMeter {
    pub(super) fn new() -> Self {
        Self(Line::new("queue.gate_meter", Cells::default()))
    }

    /// The gate was shut, and is open from `now` on.
    pub(in crate::queue) fn note_opened(&self, now: Time) {
        add(&self.0.opened, 1);
        self.set_shut(false, now);
    }

    /// The gate was open, and is shut from `now` on.
    pub(in crate::queue) fn note_shut(&self, now: Time) {
        add(&self.0.shut, 1);
        self.set_shut(true, now);
    }

    /// Whether time runs from `now` on: the gate is shut where requests could pass if it were open.
    pub(in crate::queue) fn set_shut(&self, is_shut: bool, now: Time) {
        let balance = get(&self.0.balance);
        let now = now.0.wrapping_mul(2);
        let changed = match (balance & SHUT != 0, is_shut) {
            (false, true) => balance.wrapping_sub(now) | SHUT,
            (true, false) => balance.wrapping_add(now) & !SHUT,
            _ => return,
        };
        self.0.balance.store(changed, Ordering::Relaxed);
    }

    /// The counts up to now.
    pub(in crate::queue) fn counts(&self, now: impl Fn() -> Time) -> GateCounts {
        let Cells { opened, shut, balance } = &*self.0;
        let sum = loop {
            let seen = get(balance);
            let sum = if seen & SHUT == 0 { seen } else { seen.wrapping_add(now().0.wrapping_mul(2)) };
            // If the gate was opened before the clock was read, the sum has time in which it was open.
            if get(balance) == seen {
                break sum;
            }
        };
        let (opened, shut) = (get(opened), get(shut));
        // Negative if the clock that the reader sees has not come to the time at which the gate was shut.
        let shut_ns = (sum.cast_signed() >> 1).max(0).cast_unsigned();
        GateCounts { opened, shut, shut_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if time runs while the gate is open, if a gate that is still shut shows no time, or if a reader whose clock
    /// is behind sees a sum that has wrapped.
    #[test]
    fn time_runs_while_the_gate_is_shut() {
        let meter = GateMeter::new();
        let read = |now| {
            let GateCounts { opened, shut, shut_ns } = meter.counts(|| Time(now));
            (opened, shut, shut_ns)
        };
        assert_eq!(read(1000), (0, 0, 0), "nothing could pass yet");
        meter.set_shut(true, Time(1000));
        meter.set_shut(true, Time(1010));
        assert_eq!((read(990), read(1025)), ((0, 0, 0), (0, 0, 25)));
        meter.note_opened(Time(1030));
        assert_eq!(read(5000), (1, 0, 30));
        meter.note_shut(Time(6000));
        assert_eq!(read(6007), (1, 1, 37));
        meter.set_shut(false, Time(6008));
        meter.set_shut(false, Time(7000));
        assert_eq!(read(9000), (1, 1, 38));
        meter.note_shut(Time(10_000));
        let opened_meanwhile = || {
            meter.set_shut(false, Time(10_001));
            Time(20_000)
        };
        assert_eq!(
            meter.counts(opened_meanwhile).shut_ns,
            39,
            "the reader lost its processor before it read the clock"
        );
    }
}
