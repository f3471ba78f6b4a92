//! Follows which submitters certainly belong to the group that their operations name.
//!
//! While a tenant moves, an operation may be taken with either group. An operation that joins a plug which was begun
//! before has the group of the plug. So a submitter whose tenant has moved is certain again when it has nothing
//! outstanding, and no tenant moves any more.

use super::super::event::{Control, Event, Phase};
use super::table::grown;
use super::tracker::Tracker;

#[derive(Debug, Clone, Copy, Default)]
struct Submitter {
    tenant: u16,
    nr_outstanding: u64,
    is_uncertain: bool,
}

/// What is known of the moves of tenants.
#[derive(Debug, Default)]
pub(super) struct Moves {
    submitters: Vec<Submitter>,
    /// A tenant that is just moving, or a group that is just going with the tenants in it.
    moving: Option<Control>,
}

impl Moves {
    fn submitter(&mut self, submitter: u16) -> &mut Submitter {
        grown(&mut self.submitters, submitter, Submitter::default)
    }

    /// Whether the tenant is just moving.
    fn moves(&self, tenant: u16) -> bool {
        match self.moving {
            Some(Control::Move(moving, _)) => moving == tenant,
            Some(Control::RemoveGroup(_)) => true,
            _ => false,
        }
    }

    /// Follows an event.
    pub(super) fn see(&mut self, event: &Event<'_>, tracker: &Tracker) {
        for operation in tracker.ending.iter().filter_map(|bio| tracker.operation(*bio)) {
            self.submitter(operation.submitter).nr_outstanding -= 1;
        }
        match *event {
            Event::Joined { submitter, tenant, .. } => {
                let is_uncertain = self.moves(tenant);
                *self.submitter(submitter) = Submitter { tenant, nr_outstanding: 0, is_uncertain };
            }
            // If the submitter had nothing outstanding, the operation's group is certain.
            Event::Submitted { submitter, .. } => {
                let tenant = self.submitter(submitter).tenant;
                let moves = self.moves(tenant);
                let submitter = self.submitter(submitter);
                submitter.nr_outstanding += 1;
                submitter.is_uncertain &= moves || submitter.nr_outstanding > 1;
            }
            Event::Changed { control: control @ (Control::Move(..) | Control::RemoveGroup(_)), phase } => {
                self.moving = (phase == Phase::Begun).then_some(control);
                for number in 0..self.submitters.len() {
                    self.submitters[number].is_uncertain |= self.moves(self.submitters[number].tenant);
                }
            }
            _ => {}
        }
    }

    /// Whether the outstanding operations of this submitter have the groups that they name.
    pub(super) fn is_certain(&self, submitter: u16) -> bool {
        self.submitters.get(usize::from(submitter)).is_none_or(|submitter| !submitter.is_uncertain)
    }
}
