//! The entry points of a locking: the one place on the path of a request that tells the lockings apart. Off that path
//! `Builder::build` does too, for the default of the bypass, and `Locking` itself, for names and for the checkers.

use blkmq_sched::Time;

use super::outcome::{Dispatched, Inserted};
use super::{batch, combining, single, split, staged};
use crate::device::Runner;
use crate::queue::{Domain, Locking, Mapping, RequestQueue, Starting};
use crate::request::RqList;

impl Locking {
    /// Inserts a plug, which is not empty, of the thread to which `runner` belongs. What finds no room stays in the
    /// plug, or waits with what other threads left. `may_dispatch`: requests may be started.
    #[inline]
    pub(crate) fn insert(
        self,
        runner: &mut Runner,
        starting: &Starting<'_>,
        mapping: &Mapping,
        plug: &mut RqList,
        may_dispatch: bool,
    ) -> Inserted {
        debug_assert!(!plug.is_empty(), "there is something to insert");
        match starting.q.whole_domain() {
            Some(domain) => self.insert_into::<false>(domain, runner, starting, mapping, plug, may_dispatch),
            None => split::insert(self, runner, starting, mapping, plug, may_dispatch),
        }
    }

    /// Inserts a plug, or its part for one hardware queue, into a domain. `SPLIT`: the queue has several domains.
    ///
    /// COST: the two kinds of queue have code of their own, so that each is inlined where it is called.
    #[inline]
    pub(super) fn insert_into<'q, const SPLIT: bool>(
        self,
        domain: &'q Domain,
        runner: &mut Runner,
        starting: &Starting<'q>,
        mapping: &Mapping,
        plug: &mut RqList,
        may_dispatch: bool,
    ) -> Inserted {
        debug_assert_eq!(domain.is_whole(), !SPLIT, "the domain is of this kind of queue");
        match self {
            Self::Single => single::insert(runner, domain, starting, mapping, plug, true),
            Self::Staged(measures) => staged::insert(runner, domain, starting, mapping, plug, measures),
            Self::Batch => batch::insert(runner, domain, starting, mapping, plug, true),
            Self::Combining => combining::insert::<SPLIT>(runner, domain, starting, mapping, plug, may_dispatch),
        }
    }

    /// Chooses up to `bound` requests and makes them ready.
    #[inline]
    pub(crate) fn dispatch(self, runner: &mut Runner, q: &RequestQueue, now: Time, bound: usize) -> Dispatched {
        debug_assert!(bound > 0, "a thread that dispatches chooses at least one request");
        match self {
            Self::Single => single::dispatch(runner, q, now, bound),
            Self::Staged(measures) => staged::dispatch(runner, q, now, bound, measures),
            Self::Batch => batch::dispatch(runner, q, now, bound),
            Self::Combining => combining::dispatch(runner, q, now, bound),
        }
    }
}
