//! Units, and what numbers and sizes a parameter takes, in few words for the tables of the device models.

use super::value::Accepts;
use crate::request::limits::{MAX_DEPTH, MAX_HW_QUEUES};

pub(in crate::driver) const KIB: u64 = 1 << 10;
pub(in crate::driver) const MIB: u64 = 1 << 20;
pub(in crate::driver) const GIB: u64 = 1 << 30;
/// The most hardware queues, and the most tags of one.
pub(in crate::driver) const QUEUES: u64 = MAX_HW_QUEUES as u64;
pub(in crate::driver) const DEPTH: u64 = MAX_DEPTH as u64;
/// Nanoseconds.
pub(in crate::driver) const SECOND: u64 = 1_000_000_000;

pub(in crate::driver) const fn count(unit: &'static str, min: u64, max: u64) -> Accepts {
    Accepts::Count { unit, min, max }
}

/// A number without a unit is in units of `unit` bytes.
pub(in crate::driver) const fn size(unit: u64, min: u64, max: u64) -> Accepts {
    Accepts::Size { unit, min, max }
}

/// A number without a unit is in nanoseconds.
pub(in crate::driver) const fn time(max: u64) -> Accepts {
    Accepts::Time { max }
}
