//! The baseline "stage all": under the locking `combining` every thread publishes its requests, as if another thread
//! were in the scheduler. It measures what publishing costs, and what it merges: see `Builder::stage_all`.

use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::queue::{Count, Domain, StartBatch};

/// Publishes a whole plug, whether another thread is in the scheduler or not.
#[cold]
pub(super) fn insert(dispatcher: &mut Dispatcher, domain: &Domain, plug: &mut Plug<'_>) -> Inserted {
    let &StartBatch { q, thread, .. } = plug.starting;
    debug_assert!(q.settings.stages_all(), "requests are left like this only where all are");
    let (entered, list) = dispatcher.begin(domain, plug);
    thread.counters.count(Count::Staged, list.len() as u64);
    list.publish_anyway(&q.slots, &domain.staging);
    q.defer(dispatcher.thread);
    Inserted { entered, dispatched: Some(Dispatched::all(0)) }
}
