//! The lockings: which thread is in the scheduler, and what the other threads do meanwhile. One thread is there at a
//! time.
//!
//! A [`Domain`](crate::queue::Domain) is a scheduler with its lock, and the counts that it publishes to threads without
//! the lock. A queue has one domain, or one for each hardware queue if its scheduler keeps no order across hardware
//! queues (`split`). A thread enters a domain by `Domain::enter`, which gives it a
//! [`Section`](super::section::Section): the scheduler under the lock together with the queue, the thread's own lists,
//! and the time. The end of the section publishes the domain's counts; no other place does.
//!
//! On the path of a request, only this module tells the lockings apart, assertions aside. Off the path,
//! `Builder::build` does for the default of the bypass, `check_locking` for schedulers that order each hardware queue
//! by itself, and `Locking` for names and for the checkers. A locking is one file with up to two functions, `insert`
//! and `dispatch`. `combining` and `staged` have both; `batch` differs from `single` in `dispatch` alone.

mod batch;
mod combining;
mod single;
mod split;
mod stage_all;
mod staged;

use blkmq_sched::Time;

use super::outcome::{Dispatched, Inserted};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::queue::{Domain, Locking, Queue};

impl Locking {
    /// Inserts a plug, which is not empty, of the thread to which `dispatcher` belongs. Requests for which there is no
    /// room go to the backlog.
    #[inline]
    pub(super) fn insert(self, dispatcher: &mut Dispatcher, plug: &mut Plug<'_>) -> Inserted {
        debug_assert!(!plug.requests.is_empty(), "there is something to insert");
        match plug.starting.q.whole_domain() {
            Some(domain) => self.insert_into(domain, dispatcher, plug),
            None => split::insert(self, dispatcher, plug),
        }
    }

    /// Inserts a plug, or its part for one hardware queue, into a domain.
    #[inline]
    pub(super) fn insert_into(self, domain: &Domain, dispatcher: &mut Dispatcher, plug: &mut Plug<'_>) -> Inserted {
        debug_assert!(!plug.requests.is_empty(), "there is something to insert");
        match self {
            Self::Single => single::insert(dispatcher, domain, plug, true),
            Self::Staged(measures) => staged::insert(dispatcher, domain, plug, measures),
            Self::Batch => batch::insert(dispatcher, domain, plug, true),
            Self::Combining => combining::insert(dispatcher, domain, plug),
        }
    }

    /// Dispatches up to `bound` requests: they become ready.
    #[inline]
    pub(super) fn dispatch(self, dispatcher: &mut Dispatcher, q: &Queue, now: Time, bound: usize) -> Dispatched {
        debug_assert!(bound > 0, "a thread that dispatches chooses at least one request");
        match self {
            Self::Single => single::dispatch(dispatcher, q, now, bound),
            Self::Staged(measures) => staged::dispatch(dispatcher, q, now, bound, measures),
            Self::Batch => batch::dispatch(dispatcher, q, now, bound),
            Self::Combining => combining::dispatch(dispatcher, q, now, bound),
        }
    }
}
