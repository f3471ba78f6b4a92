//! The scale of times and counts: of the limiter's, and of those of a scheduler that shares.
//!
//! In the torture rig a device has a few thousand requests, so there all are smaller: a limiter then holds back and
//! opens again many times while the requests are done.

/// True in the rig.
const IS_SMALL: bool = cfg!(virtual_cpus);

/// A millisecond and a second, in nanoseconds.
pub(crate) const MS: u64 = if IS_SMALL { 10_000 } else { 1_000_000 };
pub(crate) const SECOND: u64 = if IS_SMALL { 100 * MS } else { 1000 * MS };

/// After nothing helped, a limiter stays open for this many times as long as the tries took, over which their costs are
/// spread.
pub(super) const REST_TIMES: u64 = if IS_SMALL { 1 } else { 20 };

/// How many requests tell a rate, alone or as one of several measurements.
pub(super) const ENOUGH: u64 = if IS_SMALL { 30 } else { 1000 };
pub(super) const ENOUGH_OF_SEVERAL: u64 = if IS_SMALL { 10 } else { 200 };

/// How many operations tell what clients get.
pub(crate) const ENOUGH_OF_CLIENTS: u64 = if IS_SMALL { 20 } else { 512 };
