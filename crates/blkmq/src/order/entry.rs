//! The entry points of a locking: the one place on the path of a request that tells the lockings apart. Off that path
//! `Builder::build` does too, for the default of the bypass, and `Locking` itself, for names and for the checkers.

use blkmq_sched::Time;

use super::outcome::{Dispatched, Inserted};
use super::split::Split;
use super::{batch, combining, single, staged};
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
        let q = starting.q;
        // One place that inserts, for both kinds of queue, so that it is inlined here.
        let (mut domain, mut split) = match q.whole_domain() {
            Some(domain) => (domain, None),
            None => {
                let (hctx, split) = Split::begin(q, mapping, plug);
                (q.domain(hctx), Some(split))
            }
        };
        loop {
            let inserted = match self {
                Self::Single => single::insert(runner, domain, starting, mapping, plug, true),
                Self::Staged(measures) => staged::insert(runner, domain, starting, mapping, plug, measures),
                Self::Batch => batch::insert(runner, domain, starting, mapping, plug, true),
                Self::Combining => combining::insert(runner, domain, starting, mapping, plug, may_dispatch),
            };
            let Some(split) = &mut split else { return inserted };
            match split.go_on(q, mapping, plug, inserted) {
                Some(hctx) => domain = q.domain(hctx),
                None => return split.end(plug),
            }
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

    /// Whether requests of a domain may pass the scheduler by as far as the locking knows. The queue's word does not
    /// show everything that waits, and the locking looks at the rest.
    #[inline]
    pub(crate) fn is_free(self, domain: &Domain) -> bool {
        match self {
            Self::Single => single::is_free(domain),
            Self::Staged(_) => staged::is_free(domain),
            Self::Batch => batch::is_free(domain),
            Self::Combining => combining::is_free(domain),
        }
    }
}
