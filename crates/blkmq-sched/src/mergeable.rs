//! The waiting requests that others may join, and how they are found: by the request that came last, by the sector
//! behind them, and by their own first sector.

use crate::data::Tracked;
use crate::hash::Hash;
use crate::list::List;
use crate::slab::{Index, Slab};
use crate::tree::Tree;
use crate::waiting::{ByAge, ByEnd, Waiting};
use crate::{FastRequest, Info, Join, MergeHow, MergeLevel, MergeLimits};

/// How many requests that begin or end at the right sector one look-up tries. This bounds what a hostile client can
/// cost.
const TRIES: usize = 8;

/// The mergeable requests of a policy. In which tree each stands, the policy knows.
#[derive(Debug, Clone)]
pub(crate) struct Mergeable {
    pub(crate) limits: MergeLimits,
    /// Those that every look-up tries, by the sector behind them.
    ends: Hash<ByEnd>,
    /// The request that was inserted or merged into last, while it waits and may merge.
    last: Tracked<Option<Index>>,
}

impl Mergeable {
    /// Nothing merges until the limits are told.
    pub(crate) fn new() -> Self {
        Self { limits: MergeLimits::default(), ends: Hash::new(), last: Tracked::new(None) }
    }

    pub(crate) fn reserve<H>(&mut self, requests: &mut Slab<Waiting<H>>, capacity: usize) {
        self.ends.reserve(requests, capacity);
    }

    /// Whether the request may be merged into because it came last.
    pub(crate) fn is_last(&self, item: Index) -> bool {
        *self.last == Some(item)
    }

    /// Puts a request into its tree, and makes it known to merging.
    #[inline(always)]
    pub(crate) fn insert<H>(&mut self, requests: &mut Slab<Waiting<H>>, sorted: &mut Tree, item: Index) {
        let merge = requests.get(item).info.merge;
        sorted.insert(requests, item);
        if merge == MergeLevel::Full {
            self.ends.insert(requests, item);
        }
        if merge != MergeLevel::Never {
            *self.last = Some(item);
        }
    }

    /// Takes a request of this merge level out of its tree and its list, and lets nothing merge into it any more.
    #[inline(always)]
    pub(crate) fn remove<H>(
        &mut self,
        requests: &mut Slab<Waiting<H>>,
        sorted: &mut Tree,
        fifo: &mut List<ByAge>,
        item: Index,
        merge: MergeLevel,
    ) {
        debug_assert_eq!(requests.peek(item).info.merge, merge, "the level is that of the request");
        sorted.remove(requests, item);
        fifo.remove(requests, item);
        if merge == MergeLevel::Full {
            self.ends.remove(requests, item);
        }
        if *self.last == Some(item) {
            *self.last = None;
        }
    }

    /// The waiting request that takes the newcomer in, and what that request then is. Only a request that `suits` is
    /// one. `sorted` is the tree in which the newcomer would stand; `None`: nothing is to stand behind the newcomer.
    pub(crate) fn find_host<H>(
        &self,
        requests: &Slab<Waiting<H>>,
        sorted: Option<&Tree>,
        info: &Info,
        suits: impl Fn(&Waiting<H>) -> bool,
    ) -> Option<(Index, MergeHow, Info)> {
        let fit = |host: Index| {
            let request = requests.get(host);
            let (how, grown) = if suits(request) { self.limits.merged(&request.info, info)? } else { return None };
            Some((host, how, grown))
        };
        if info.merge == MergeLevel::Never {
            return None;
        }
        if let found @ Some(_) = self.last.and_then(fit) {
            return found;
        }
        if info.merge == MergeLevel::LastOnly {
            return None;
        }
        let ending_here = self.ends.find(requests, info.sector).take(TRIES);
        if let found @ Some(_) = ending_here.map(|(host, _)| host).find_map(fit) {
            return found;
        }
        beginning_at(requests, sorted?, info.end()).find_map(fit)
    }

    /// Makes `host` what it has become, and redoes those of its places that this changes.
    pub(crate) fn grow<H>(
        &mut self,
        requests: &mut Slab<Waiting<H>>,
        sorted: &mut Tree,
        host: Index,
        how: MergeHow,
        grown: Info,
    ) {
        debug_assert!(grown.nr_sectors >= requests.peek(host).info.nr_sectors, "a request that takes one in grows");
        let hashed = grown.merge == MergeLevel::Full;
        match how {
            MergeHow::Front => {
                sorted.remove(requests, host);
                requests.get_mut(host).info = grown;
                sorted.insert(requests, host);
            }
            MergeHow::Back | MergeHow::Discard => {
                if hashed {
                    self.ends.remove(requests, host);
                }
                requests.get_mut(host).info = grown;
                if hashed {
                    self.ends.insert(requests, host);
                }
            }
        }
        *self.last = Some(host);
    }

    /// After `host` grew: it and the neighbor on that side if they now touch. The first one survives, and becomes what
    /// is returned last.
    pub(crate) fn touching<H>(
        &self,
        requests: &Slab<Waiting<H>>,
        sorted: &Tree,
        host: Index,
        how: MergeHow,
    ) -> Option<(Join, [Index; 2], Info)> {
        let (survivor, absorbed) = match how {
            MergeHow::Back => (host, sorted.next(requests, host)?),
            MergeHow::Front => (sorted.prev(requests, host)?, host),
            MergeHow::Discard => return None,
        };
        let [first, second] = [survivor, absorbed].map(|item| requests.get(item));
        if first.info.merge != MergeLevel::Full || second.info.merge != MergeLevel::Full {
            return None;
        }
        let (MergeHow::Back, grown) = self.limits.merged(&first.info, &second.info)? else { return None };
        Some((Join { survivor: first.id, absorbed: second.id }, [survivor, absorbed], grown))
    }
}

/// Mergeable requests that begin at `sector`, the oldest in sector order first.
fn beginning_at<H>(requests: &Slab<Waiting<H>>, sorted: &Tree, sector: u64) -> impl Iterator<Item = Index> {
    core::iter::successors(sorted.first_from(requests, sector), |item| sorted.next(requests, *item))
        .take_while(move |item| requests.get(*item).info.sector == sector)
        .take(TRIES)
        .filter(|item| requests.get(*item).info.merge == MergeLevel::Full)
}

/// Before `survivor` absorbs another request: the earlier of their two deadlines stays, in its place.
pub(crate) fn keep_deadline<H>(
    requests: &mut Slab<Waiting<H>>,
    fifo: &mut List<ByAge>,
    survivor: Index,
    absorbed: Index,
) {
    debug_assert_ne!(survivor, absorbed, "a request does not absorb itself");
    let deadline = requests.get(absorbed).deadline;
    if deadline < requests.get(survivor).deadline {
        fifo.remove(requests, survivor);
        fifo.insert_before(requests, absorbed, survivor);
        requests.get_mut(survivor).deadline = deadline;
    }
}

/// Sorts the places of the requests by sector. Returns whether there are sectors between each of them and the next:
/// then none merge, and each is next in order behind the one before it.
#[inline]
pub(crate) fn sort_apart(batch: &[FastRequest], places: &mut [u8]) -> bool {
    debug_assert_eq!(batch.len(), places.len(), "there is a place for each request");
    let info = |place: u8| &batch[usize::from(place)].info;
    for (number, place) in (0..).zip(places.iter_mut()) {
        *place = number;
    }
    places.sort_unstable_by_key(|place| info(*place).sector);
    places.is_sorted_by(|first, second| info(*first).end() < info(*second).sector)
}
