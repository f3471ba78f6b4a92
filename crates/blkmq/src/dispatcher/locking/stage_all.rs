//! The baseline "stage all": under the locking `combining` every thread leaves its requests, as if another thread were
//! at the scheduler. What staging costs, and what it merges, is measured by it: see `Builder::stage_all`.

use crate::dispatcher::Dispatcher;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::queue::{Count, Domain, Mapping, Starting};
use crate::request::RqList;

/// Leaves all of a plug, whether another thread is at the scheduler or not. Requests of the flush machine are put into
/// `flushes`.
#[cold]
pub(super) fn insert(
    dispatcher: &mut Dispatcher,
    domain: &Domain,
    starting: &Starting<'_>,
    mapping: &Mapping,
    plug: &mut RqList,
    flushes: &mut RqList,
) -> Inserted {
    debug_assert!(starting.q.settings.stages_all(), "requests are left like this only where all are");
    let q = starting.q;
    let (entered, list) = dispatcher.begin(domain, starting, mapping, plug, flushes);
    starting.member.counters.count(Count::Staged, list.len() as u64);
    list.leave_anyway(&q.slots, &domain.staging);
    q.hand_on(dispatcher.member);
    Inserted { entered, dispatched: Some(Dispatched::all(0)) }
}
