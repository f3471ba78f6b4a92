//! What a server warns of: settings that do nothing or not what they seem to, a scheduler that it chooses by itself,
//! and devices that keep no data. The start, `--check` and SIGHUP call in.

use blkmq::RequestQueue;

use super::config::{Disk, Export};
use super::placed::Placements;
use super::plan::Plan;
use crate::control::name::shown;
use crate::control::shares::{FAIR, Share, Shares};

/// Everything that a server with this plan warns of at its start, a line each.
pub(super) fn warnings(plan: &Plan, queues: &[RequestQueue], placements: &Placements) -> Vec<String> {
    let mut lines = Vec::new();
    for (export, q) in plan.exports.iter().zip(queues) {
        let Disk::Own { device, .. } = &export.disk else { continue };
        let name = export.queue();
        if !q.driver().keeps_data() {
            lines.push(loss(name, &device.text));
        }
        if plan.takes_fair(name) {
            lines.push(format!("{name}: clients have weights and no scheduler is named, so the scheduler is {FAIR}"));
        }
        let warnings = shares(&plan.exports, name).warnings(q, placements[name].sets_weights());
        lines.extend(warnings.iter().map(|warning| format!("{name}: {warning}")));
    }
    lines
}

/// A client cannot tell a device that keeps no data from one that keeps data.
fn loss(name: &str, device: &str) -> String {
    format!(
        "{name}: {device} THROWS AWAY WHAT IS WRITTEN. NOTHING IS KEPT, and zeroes are read; with memory_backed=1 it \
         keeps data, in memory"
    )
}

/// The weights and priorities of the exports of this queue.
pub(super) fn shares(exports: &[Export], queue: &str) -> Shares {
    let share = |export: &Export| Share {
        export: shown(&export.name.text).to_owned(),
        weight: export.weight,
        priority: export.priority,
    };
    Shares(exports.iter().filter(|export| export.queue() == queue).map(share).collect())
}
