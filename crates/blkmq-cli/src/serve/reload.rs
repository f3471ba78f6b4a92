//! What a server reads again at SIGHUP: the files for TLS, and of the file of `--config` the groups of clients, the
//! rules for clients, and the weights of exports.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::RequestQueue;
use blkmq_export::{Placement, PlacementError, Tls};

use super::Serve;
use super::config::{Disk, Export};
use super::plan::Plan;
use super::sandbox;
use crate::control::shares::idle_weights;

/// The placement of each queue, by the name that commands use for the queue.
pub(super) type Placements = BTreeMap<String, Arc<Placement>>;

/// A placement for each queue, with what the configuration says.
pub(super) fn placements(plan: &Plan, queues: &[Arc<RequestQueue>]) -> Result<Placements, PlacementError> {
    let own = plan.exports.iter().zip(queues).filter(|(export, _)| matches!(export.disk, Disk::Own { .. }));
    own.map(|(export, q)| {
        let placement = Placement::new(Arc::clone(q));
        placement.load(&plan.placements.layout())?;
        Ok((export.queue().to_owned(), Arc::new(placement)))
    })
    .collect()
}

/// What is needed to read files again.
pub(super) struct Reload {
    /// The command line.
    pub(super) options: Serve,
    pub(super) tls: Option<Tls>,
    pub(super) placements: Placements,
    /// Whether the server is in its sandbox.
    pub(super) is_boxed: bool,
}

impl Reload {
    /// Reads the files again. Returns lines for the operator.
    pub(super) fn run(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(tls) = &self.tls {
            lines.push(match tls.reload() {
                Ok(()) => "the files for TLS are read again, and count for connections to come".to_owned(),
                Err(error) => self.unchanged(&error.to_string(), "the files read before count"),
            });
        }
        if let Some(path) = &self.options.config {
            match self.load() {
                Ok(()) => {
                    lines.push(format!(
                        "{} is read again: its groups, clients and weights count from now on, all else when the server \
                         starts anew",
                        path.display()
                    ));
                    lines.extend(self.placements.iter().filter_map(|(name, placement)| idle(name, placement)));
                }
                Err(error) => lines.push(self.unchanged(&error, "what was read before counts")),
            }
        }
        if lines.is_empty() {
            lines.push("without --tls and --config there are no files to read again".to_owned());
        }
        lines.iter().map(|line| format!("SIGHUP: {line}")).collect()
    }

    fn unchanged(&self, error: &str, what_counts: &str) -> String {
        format!("nothing has changed, and {what_counts}: {}", sandbox::explain(error, self.is_boxed))
    }

    fn load(&self) -> Result<(), String> {
        let plan = Plan::new(&self.options).map_err(|error| error.to_string())?;
        for (queue, placement) in &self.placements {
            let of_queue = |export: &&Export| export.queue() == queue;
            let weights = plan.exports.iter().filter(of_queue).map(|export| (export.name.text.clone(), export.weight));
            let mut layout = plan.placements.layout();
            layout.weights = weights.collect();
            placement.load(&layout).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Why the weights of a queue do nothing, if it has some and they do nothing.
fn idle(name: &str, placement: &Placement) -> Option<String> {
    let why = idle_weights(placement.queue()).filter(|_| placement.sets_weights())?;
    Some(format!("{name}: the weights of clients and groups do nothing: {why}"))
}
