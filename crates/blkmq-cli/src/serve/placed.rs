//! Which clients the connections of each queue are.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::RequestQueue;
use blkmq_export::Placement;
use blkmq_workbench::TextError;

use super::config::Disk;
use super::plan::Plan;

/// The placement of each queue, by the name that commands use for the queue.
pub(super) type Placements = BTreeMap<String, Arc<Placement>>;

/// A placement for each queue, with what the configuration says.
pub(super) fn placements(plan: &Plan, queues: &[RequestQueue]) -> Result<Placements, TextError> {
    let own = plan.exports.iter().zip(queues).filter(|(export, _)| matches!(export.disk, Disk::Own { .. }));
    own.map(|(export, q)| {
        let placement = Placement::new(q.clone());
        placement.load(&plan.placements.layout()).map_err(|error| export.name.fault(error.to_string()))?;
        Ok((export.queue().to_owned(), Arc::new(placement)))
    })
    .collect()
}
