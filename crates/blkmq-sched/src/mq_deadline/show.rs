//! Every list and counter in readable form: what Linux shows in debugfs.

use core::fmt::{Result, Write};

use super::level::Counts;
use super::{MqDeadline, Pace};
use crate::Class;
use crate::direction::Direction;

impl MqDeadline {
    pub(super) fn show_all(&self, out: &mut dyn Write) -> Result {
        for class in Class::ALL {
            for direction in Direction::ALL {
                self.show_queue(out, class, direction)?;
            }
        }
        let Pace { direction, batching, starved } = *self.pace;
        writeln!(out, "batching: {batching}\nstarved: {starved}\nlast_dir: {}", word(direction))?;
        writeln!(out, "async_depth: {}", self.tunables.async_depth())?;
        writeln!(out, "dispatch:")?;
        for (_, request) in self.at_head.iter(&self.requests) {
            request.show(out)?;
        }
        let [real_time, best_effort, idle] = self.levels.each_ref().map(|level| level.owned_by_driver());
        writeln!(out, "owned_by_driver: {real_time} {best_effort} {idle}")?;
        let [real_time, best_effort, idle] = self.levels.each_ref().map(|level| level.queued());
        writeln!(out, "queued: {real_time} {best_effort} {idle}")?;
        for (number, level) in self.levels.iter().enumerate() {
            let Counts { inserted, merged, dispatched, completed, .. } = *level.counts;
            writeln!(
                out,
                "level{number}: inserted {inserted} merged {merged} dispatched {dispatched} completed {completed}"
            )?;
        }
        Ok(())
    }

    fn show_queue(&self, out: &mut dyn Write, class: Class, direction: Direction) -> Result {
        let (number, direction_word) = (class.index(), word(direction));
        let queue = self.levels[number].queue(direction);
        writeln!(out, "{direction_word}{number}_fifo_list:")?;
        for (_, request) in queue.fifo.iter(&self.requests) {
            request.show(out)?;
        }
        writeln!(out, "{direction_word}{number}_next_rq:")?;
        match queue.next_in_order(&self.requests) {
            Some(next) => self.requests.get(next).show(out),
            None => Ok(()),
        }
    }
}

const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}
