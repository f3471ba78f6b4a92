//! Following the choices of another mq-deadline.

use super::level::Level;
use super::{MqDeadline, Pace};
use crate::direction::Direction;
use crate::list::List;
use crate::merge::forced;
use crate::slab::Index;
use crate::waiting::ByAge;
use crate::{Class, DispatchContext, Info, Join, MergeHow, Replay, RqId, Time};

impl Replay for MqDeadline {
    fn peek(&mut self, _context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        let pace = *self.pace;
        let item = self.at_head.head().or_else(|| self.choose(now));
        *self.pace = pace;
        Some(self.requests.get(item?).id)
    }

    fn force(&mut self, rq: RqId, now: Time) -> bool {
        if let Some(item) = self.find(&self.at_head, rq) {
            self.start_at_head(item);
            return true;
        }
        let Some(item) = self.find_sorted(rq) else { return false };
        let pace = *self.pace;
        if self.choose(now) != Some(item) {
            *self.pace = pace;
            self.follow(item, now);
        }
        self.start_sorted(item);
        true
    }

    fn force_merge(&mut self, into: RqId, newcomer: &Info, how: MergeHow) -> bool {
        let Some(host) = self.find_sorted(into) else { return false };
        let grown = forced(&self.requests.get(host).info, newcomer, how);
        self.grow(host, how, grown);
        true
    }

    fn force_join(&mut self, join: Join) -> bool {
        let pair = [join.survivor, join.absorbed].map(|id| self.find_sorted(id));
        let [Some(survivor), Some(absorbed)] = pair else { return false };
        let [host, guest] = [survivor, absorbed].map(|item| self.requests.get(item));
        // Only requests that stand in one list can take each other's place there.
        if survivor == absorbed || (host.class(), host.direction()) != (guest.class(), guest.direction()) {
            return false;
        }
        let grown = forced(&host.info, &guest.info, MergeHow::Back);
        self.join(survivor, absorbed, grown);
        true
    }
}

impl MqDeadline {
    /// Brings the choosing to where a choice of `item` must have found it. When deadlines had passed, and what waited,
    /// the other scheduler knew better: its clock is not quite ours, and neither is its order of events.
    fn follow(&mut self, item: Index, now: Time) {
        let request = self.requests.get(item);
        let (class, direction, sector) = (request.class(), request.direction(), request.info.sector);
        if self.has_several_classes() {
            let is_highest = self.levels[..class.index()].iter().all(|level| level.queued() == 0);
            let has_aged = !is_highest || self.ages_at(item) <= now;
            let tried = [Class::BestEffort, Class::Idle].into_iter();
            for lower in tried.take_while(|lower| !(has_aged && *lower == class)) {
                self.try_level(lower, now);
            }
        }
        let level = &self.levels[class.index()];
        let Pace { direction: running, batching, starved } = *self.pace;
        // A running batch goes on while anything is ahead in its direction.
        let is_ahead = running == direction && sector >= *level.queue(direction).latest_pos;
        if is_ahead && batching < self.tunables.fifo_batch {
            return;
        }
        let starved = match direction {
            Direction::Write => 0,
            Direction::Read => starved + i64::from(!level.queue(Direction::Write).fifo.is_empty()),
        };
        *self.pace = Pace { direction, batching: 0, starved };
    }

    fn find(&self, list: &List<ByAge>, rq: RqId) -> Option<Index> {
        let found = list.iter(&self.requests).find(|(_, request)| request.id == rq);
        found.map(|(item, _)| item)
    }

    /// The waiting request of this id, unless it is at the head.
    fn find_sorted(&self, rq: RqId) -> Option<Index> {
        self.levels.iter().flat_map(Level::queues).find_map(|queue| self.find(&queue.fifo, rq))
    }
}
