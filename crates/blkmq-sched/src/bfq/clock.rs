//! The coarse clock, by which budgets time out, raising ends and bursts are told apart.
//!
//! It is Linux's clock of 250 ticks a second. How long a client thinks, and how long the device waits for a client, is
//! measured in nanoseconds.

use crate::Time;

/// A time or span on the coarse clock.
pub(super) type Ticks = i64;

/// Nanoseconds of a tick.
const TICK: u64 = 4_000_000;
pub(super) const NS_PER_MS: u64 = 1_000_000;
pub(super) const NS_PER_US: u64 = 1000;

/// Ticks of a second.
pub(super) const TICKS_PER_SECOND: Ticks = 250;

/// Before everything that happened, with room to add any span.
pub(super) const LONG_AGO: Ticks = i64::MIN / 4;

/// The tick in which `now` lies.
pub(super) const fn ticks(now: Time) -> Ticks {
    (now.0 / TICK).cast_signed()
}

/// Ticks of so many milliseconds, the last one counted whole.
pub(super) const fn of_ms(milliseconds: u64) -> Ticks {
    (milliseconds * NS_PER_MS).div_ceil(TICK).cast_signed()
}

/// Milliseconds of so many ticks.
pub(super) const fn to_ms(ticks: Ticks) -> u64 {
    core::debug_assert!(ticks >= 0, "a span is not negative");
    ticks.unsigned_abs() * (TICK / NS_PER_MS)
}

/// Whole ticks of a span in nanoseconds.
pub(super) const fn of_ns(ns: u64) -> Ticks {
    (ns / TICK).cast_signed()
}
