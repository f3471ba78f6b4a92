//! The baseline "stage all": under the locking `combining` every thread leaves its requests, as if another thread were
//! at the scheduler. What staging costs, and what it merges, is measured by it: see `Builder::stage_all`.

use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::queue::{Count, Domain, Starting};

/// Leaves all of a plug, whether another thread is at the scheduler or not.
#[cold]
pub(super) fn insert(dispatcher: &mut Dispatcher, domain: &Domain, plug: &mut Plug<'_>) -> Inserted {
    let &Starting { q, member, .. } = plug.starting;
    debug_assert!(q.settings.stages_all(), "requests are left like this only where all are");
    let (entered, list) = dispatcher.begin(domain, plug);
    member.counters.count(Count::Staged, list.len() as u64);
    list.leave_anyway(&q.slots, &domain.staging);
    q.defer(dispatcher.member);
    Inserted { entered, dispatched: Some(Dispatched::all(0)) }
}
