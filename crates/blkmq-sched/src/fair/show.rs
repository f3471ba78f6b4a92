//! Dumps.

use core::fmt;

use super::Fair;
use crate::Class;

impl Fair {
    /// Virtual time and, for each client with requests, its weight, its tags and what it has waiting.
    pub(super) fn show_all(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for (class, plane) in Class::ALL.iter().zip(&self.planes) {
            writeln!(out, "{class:?}: virtual_time {} ns", *plane.virtual_time)?;
        }
        for client in self.clients.iter() {
            for (flow, class) in client.flows.iter().zip(Class::ALL) {
                let flow = self.flows.get(*flow);
                if !flow.is_active {
                    continue;
                }
                let share = 1.0 / self.over_share(client, class);
                let (id, weight, waiting) = (client.id().0, client.configured_weight(), flow.nr_waiting);
                writeln!(out, "client {id} {class:?} weight {weight} share {share:.4} waiting {waiting}")?;
                writeln!(out, "  start {} ns finish {} ns", flow.start, flow.finish)?;
                for queue in &flow.queues {
                    queue.fifo.iter(&self.requests).try_for_each(|(_, rq)| rq.show(out))?;
                }
            }
        }
        self.at_head.iter(&self.requests).try_for_each(|(_, rq)| rq.show(out))
    }
}
