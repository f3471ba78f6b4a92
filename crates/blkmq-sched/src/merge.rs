//! Which requests may become one request, and what that request is.

use crate::site::unless_mutated;
use crate::{Info, MergeLevel, Op, RqId};

/// How big a request may become by merging. The default lets nothing merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeLimits {
    /// Largest read or write, in sectors of 512 bytes.
    pub max_sectors: u32,
    /// Most scatter-list segments of a read or write.
    pub max_segments: u16,
    /// No request may cross a multiple of this many sectors; 0 for no boundary.
    pub boundary_sectors: u32,
    /// Largest discard, in sectors.
    pub max_discard_sectors: u32,
    /// Most ranges of one discard. Above 1, discards merge as ranges and need not be contiguous.
    pub max_discard_segments: u16,
    /// Largest write-zeroes, in sectors.
    pub max_write_zeroes_sectors: u32,
}

/// Where a newcomer's data went within the request that took it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MergeHow {
    /// Behind its last sector.
    Back,
    /// Before its first sector.
    Front,
    /// As a further range of a discard.
    Discard,
}

/// A newcomer joined a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the embedder must hang the newcomer's data onto the request that took it in"]
pub struct Merge {
    /// The request that took the newcomer in.
    pub into: RqId,
    /// Where the newcomer went.
    pub how: MergeHow,
    /// The grown request touched a neighbour, and these two became one.
    pub joined: Option<Join>,
}

/// Two waiting requests became one: `absorbed` now stands behind the last sector of `survivor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// The request that goes on waiting.
    pub survivor: RqId,
    /// The request that is no longer known to the scheduler.
    pub absorbed: RqId,
}

impl MergeLimits {
    /// How `guest` can join `host`, and what `host` then is; `None` if `guest` may not join.
    #[inline]
    #[must_use]
    pub fn merged(&self, host: &Info, guest: &Info) -> Option<(MergeHow, Info)> {
        let how = if host.op == Op::Discard && self.max_discard_segments > 1 {
            MergeHow::Discard
        } else if touch(host, guest) {
            MergeHow::Back
        } else if touch(guest, host) {
            MergeHow::Front
        } else {
            return None;
        };
        self.merged_so(host, guest, how)
    }

    /// What `host` is once `guest` has joined it in the way `how`, if `guest` may.
    fn merged_so(&self, host: &Info, guest: &Info, how: MergeHow) -> Option<(MergeHow, Info)> {
        debug_assert!(how != MergeHow::Back || touch(host, guest), "a guest behind begins where its host ends");
        debug_assert!(how != MergeHow::Front || touch(guest, host), "a guest in front ends where its host begins");
        if host.merge == MergeLevel::Never || guest.merge == MergeLevel::Never {
            return None;
        }
        if (host.op, host.priority.class, host.merge_key) != (guest.op, guest.priority.class, guest.merge_key) {
            return None;
        }
        let nr_sectors = host.nr_sectors.checked_add(guest.nr_sectors)?;
        let nr_segments = host.nr_segments.checked_add(guest.nr_segments)?;
        let (max_sectors, max_segments, nr_segments) = match host.op {
            Op::Read | Op::Write => (self.max_sectors, self.max_segments, nr_segments),
            Op::WriteZeroes => (self.max_write_zeroes_sectors, u16::MAX, nr_segments),
            Op::Discard if how == MergeHow::Discard => {
                (self.max_discard_sectors, self.max_discard_segments, nr_segments)
            }
            // Two ranges that touch are one.
            Op::Discard => (self.max_discard_sectors, 1, nr_segments.saturating_sub(1)),
            Op::Flush => return None,
        };
        let sector = if how == MergeHow::Front { guest.sector } else { host.sector };
        let grown = Info { sector, nr_sectors, nr_segments, ..*host };
        let fits = nr_sectors <= max_sectors && nr_segments <= max_segments || !unless_mutated("merge.limits");
        (fits && (how == MergeHow::Discard || !crosses(self.boundary_sectors, &grown))).then_some((how, grown))
    }
}

/// True if `second` begins with the sector behind the last one of `first`.
#[inline]
fn touch(first: &Info, second: &Info) -> bool {
    second.sector.checked_sub(first.sector) == Some(u64::from(first.nr_sectors))
}

/// What `host` is with `guest` in it, without a look at whether `guest` may join.
pub(crate) fn forced(host: &Info, guest: &Info, how: MergeHow) -> Info {
    Info {
        sector: if how == MergeHow::Front { guest.sector } else { host.sector },
        nr_sectors: host.nr_sectors.saturating_add(guest.nr_sectors),
        nr_segments: host.nr_segments.saturating_add(guest.nr_segments),
        ..*host
    }
}

/// True if a multiple of `boundary` lies strictly within the request.
fn crosses(boundary: u32, info: &Info) -> bool {
    if boundary == 0 || info.nr_sectors == 0 {
        return false;
    }
    let boundary = u64::from(boundary);
    info.sector / boundary != (info.end() - 1) / boundary
}
