//! Every queue, group and counter in readable form.

use core::fmt::{Result, Write};

use super::Bfq;
use super::group::Group;
use super::queue::Queue;
use crate::slab::Index;

impl Bfq {
    pub(super) fn show_all(&self, out: &mut dyn Write) -> Result {
        let [real_time, best_effort, idle] = *self.busy;
        writeln!(out, "busy: {real_time} {best_effort} {idle}\nraised: {}", self.raised_busy)?;
        writeln!(out, "waiting: {}\nowned_by_driver: {}", self.requests.len(), *self.in_driver)?;
        writeln!(out, "max_budget: {}\nrate: {} sectors/s", self.max_budget, self.rate.per_second())?;
        match self.queueing {
            None => writeln!(out, "queueing: undecided")?,
            Some(queueing) => writeln!(out, "queueing: {}", u8::from(queueing))?,
        }
        write!(out, "in_service:")?;
        match self.service.queue {
            Some(q) => self.show_name(out, q)?,
            None => write!(out, " none")?,
        }
        match self.service.timer {
            Some(due) => writeln!(out, ", waited for until {} ns", due.0)?,
            None => writeln!(out)?,
        }
        writeln!(out, "dispatch:")?;
        for (_, request) in self.at_head.iter(&self.requests) {
            request.show(out)?;
        }
        for group in self.groups.iter() {
            self.show_group(out, group)?;
        }
        for (q, _) in self.all.iter(&self.queues) {
            self.show_queue(out, q)?;
        }
        Ok(())
    }

    fn show_group(&self, out: &mut dyn Write, group: &Group) -> Result {
        let weight = if group.id.0 == 0 { 0 } else { self.forest.state(group.entity).weight / 100 };
        let counts = &group.counts;
        writeln!(
            out,
            "group {}: weight {weight} inserted {} merged {} dispatched {} completed {} sectors {} service_time {} ns \
             slots {} idled {}",
            group.id.place(),
            counts.inserted,
            counts.merged,
            counts.dispatched,
            counts.completed,
            counts.sectors,
            counts.in_device,
            counts.slots,
            counts.fruitless_waits,
        )
    }

    fn show_name(&self, out: &mut dyn Write, q: Index) -> Result {
        let queue = self.queues.get(q);
        match queue.made_for {
            Some(client) => write!(out, " client {}", client.place()),
            None if queue.is_sync => write!(out, " shared by {}", queue.clients),
            None => write!(out, " async {:?} {}", queue.priority.class, queue.priority.level),
        }
    }

    fn show_queue(&self, out: &mut dyn Write, q: Index) -> Result {
        let Queue { entity, nr_waiting, dispatched, is_busy, max_budget, group, .. } = *self.queues.get(q);
        write!(out, "queue")?;
        self.show_name(out, q)?;
        let queue = self.queues.get(q);
        writeln!(
            out,
            ": group {group} busy {} weight {} raised {} budget {} of {max_budget} service {} start {} finish {} \
             seeky {} short_ttime {} io_bound {} waiting {nr_waiting} dispatched {dispatched}",
            u8::from(is_busy),
            self.forest.state(entity).weight,
            queue.raising.coefficient,
            self.forest.state(entity).budget,
            self.forest.state(entity).service,
            self.forest.state(entity).start,
            self.forest.state(entity).finish,
            u8::from(queue.seeks.is_seeky()),
            u8::from(queue.think_time.thinks_shortly),
            u8::from(queue.think_time.is_io_bound),
        )?;
        for (_, request) in queue.fifo.iter(&self.requests) {
            request.show(out)?;
        }
        Ok(())
    }
}
