//! Merging: a newcomer with one of the latest requests of its own software queue.

use super::Kyber;
use crate::slab::Index;
use crate::{Info, Merge, MergeHow, MergeLevel, SchedDomain};

/// How many of the latest requests of its software queue and kind a newcomer is tried with.
const TRIES: usize = 8;

impl Kyber {
    /// COST: up to eight slots.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        let (host, how, grown) = self.find_host(info)?;
        let request = self.requests.get_mut(host);
        request.info = grown;
        Some(Merge { into: request.id, how, joined: None })
    }

    /// The waiting request that takes the newcomer in, and what that request then is.
    fn find_host(&self, info: &Info) -> Option<(Index, MergeHow, Info)> {
        // The request that was inserted last is the latest of its list. Which one took a newcomer in last is not known
        // here, nor is it in Linux's kyber.
        let tries = match info.merge {
            MergeLevel::Never => 0,
            MergeLevel::LastOnly => 1,
            MergeLevel::Full => TRIES,
        };
        let list = &self.ctxs[usize::from(info.ctx)][SchedDomain::of(info.op).index()];
        list.iter_back(&self.requests).take(tries).find_map(|(host, request)| {
            let (how, grown) = self.limits.merged(&request.info, info)?;
            Some((host, how, grown))
        })
    }
}
