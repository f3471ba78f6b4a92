//! Virtual time: how much service a weight of one would have got, in sectors, with 22 bits after the point.
//!
//! The clock wraps. Two times are compared by their distance, which stays far below half of the range: an entity's
//! times are never further from the clock than a few of the largest budgets at the smallest weight.

/// Bits after the point.
const SHIFT: u32 = 22;

/// A service of more sectors counts as a service of so many, which are eight tebibytes: a group may get several of the
/// largest discards before it pays for them.
pub(super) const MOST_SERVICE: u64 = (1 << 34) - 1;

/// The weight for which a sector is one unit of virtual time.
const UNIT_WEIGHT: u64 = 100;

/// True if `a` comes after `b`.
#[inline]
pub(super) const fn is_after(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

/// The later of two times.
#[inline]
pub(super) const fn later(a: u64, b: u64) -> u64 {
    if is_after(a, b) { a } else { b }
}

/// How much virtual time a service of `sectors` takes at `weight`, rounded down.
#[inline]
pub(super) const fn span(sectors: u64, weight: u64) -> u64 {
    core::debug_assert!(sectors <= MOST_SERVICE, "64 bits hold the virtual time of a service");
    core::debug_assert!(weight > 0, "an entity that is served has a weight");
    (sectors << SHIFT) * UNIT_WEIGHT / weight
}
