//! What a server reads again at SIGHUP: the files for TLS, and of the file of `--config` the groups of clients, the
//! rules for clients, and the weights of exports.

use std::io;
use std::path::Path;

use blkmq::DEFAULT_WEIGHT;
use blkmq_export::{Tls, open_regular};
use blkmq_workbench::TextError;

use super::Serve;
use super::check;
use super::config::Export;
use super::nbd;
use super::placed::Placements;
use super::plan::Plan;
use super::sandbox;
use super::warnings::shares;
use crate::control::shares::FAIR;

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
    /// Reads the files again. Either all of them count from now on, or none. Returns lines for the operator.
    pub(super) fn run(&self) -> Vec<String> {
        let lines = self.load().unwrap_or_else(|error| {
            let error = sandbox::explain(&error, self.options.config.as_deref(), self.is_boxed);
            vec![format!("nothing has changed, and what was read before counts: {error}")]
        });
        lines.iter().map(|line| format!("SIGHUP: {line}")).collect()
    }

    fn load(&self) -> Result<Vec<String>, String> {
        let plan = self.options.config.as_ref().map(|_| self.plan()).transpose()?;
        let mut lines = Vec::new();
        match self.tls.as_ref().map(Tls::reload) {
            None => (),
            Some(Ok(())) => {
                lines.push("the files for TLS are read again, and count for connections to come".to_owned());
            }
            // A server that root has started as another user has read them as root.
            Some(Err(error)) if error.is_denied() => {
                lines.push(format!("the files for TLS are as they were when the server started: {error}"));
            }
            Some(Err(error)) => return Err(error.to_string()),
        }
        if let (Some(path), Some(plan)) = (&self.options.config, &plan) {
            self.place(plan)?;
            lines.push(format!(
                "{} is read again: its groups, clients and weights count from now on, all else when the server starts \
                 anew",
                path.display()
            ));
            for (name, placement) in &self.placements {
                let warnings = shares(&plan.exports, name).of_weights(placement.queue(), placement.sets_weights());
                lines.extend(warnings.iter().map(|warning| format!("{name}: {warning}")));
                if plan.takes_fair(name) && placement.queue().scheduler() != FAIR {
                    lines.push(format!(
                        "{name}: the file names no scheduler, so when the server starts anew it takes {FAIR}; to take \
                         it now, set the knob scheduler to {FAIR}"
                    ));
                }
            }
        }
        if lines.is_empty() {
            lines.push("without --tls and --config there are no files to read again".to_owned());
        }
        Ok(lines)
    }

    /// Reads the file of `--config`, and checks all of it as `--check` does.
    fn plan(&self) -> Result<Plan, String> {
        let mut plan = Plan::new(&self.options, read_again).map_err(|error| error.to_string())?;
        plan.tls.take_if(|tls| nbd::may_not_read(tls));
        check::check(&plan).map_err(|error| error.to_string())?;
        Ok(plan)
    }

    fn place(&self, plan: &Plan) -> Result<(), String> {
        for (queue, placement) in &self.placements {
            let of_queue = |export: &&Export| export.queue() == queue;
            let weights = plan
                .exports
                .iter()
                .filter(of_queue)
                .map(|export| (export.name.text.clone(), export.weight.unwrap_or(DEFAULT_WEIGHT)));
            let mut layout = plan.placements.layout();
            layout.weights = weights.collect();
            placement.load(&layout).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Reads a file for the second time.
fn read_again(path: &Path) -> Result<String, TextError> {
    let file = open_regular(path, "not a regular file, so it is read only when the server starts");
    file.and_then(io::read_to_string)
        .map_err(|error| TextError { place: path.display().to_string(), what: error.to_string() })
}
