//! Follows which submitters certainly belong to the group that their operations name.
//!
//! While a tenant moves, an operation may be taken with either group. An operation that joins a plug which was begun
//! before has the group of the plug. So a submitter whose tenant has moved is certain again when it has nothing
//! outstanding, and no tenant moves any more.

use super::super::event::{Control, Event, Phase};
use super::book::Book;
use super::table::grown;

#[derive(Debug, Clone, Copy, Default)]
struct Submitter {
    tenant: u16,
    nr_outstanding: u64,
    is_vague: bool,
}

/// What is known of the moves of tenants.
#[derive(Debug, Default)]
pub(super) struct Moves {
    submitters: Vec<Submitter>,
    /// The submitter of each outstanding operation.
    operations: Book<u16>,
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
    pub(super) fn see(&mut self, event: &Event<'_>) {
        match *event {
            Event::Joined { submitter, tenant, .. } => {
                let is_vague = self.moves(tenant);
                *self.submitter(submitter) = Submitter { tenant, nr_outstanding: 0, is_vague };
            }
            Event::Submitted { submitter, bio, .. } => self.submitted(submitter, bio),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => {
                if let Some(submitter) = self.operations.end(bio) {
                    self.submitter(submitter).nr_outstanding -= 1;
                }
            }
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|owner| *owner == submitter);
                theirs.into_iter().for_each(|bio| _ = self.operations.end(bio));
                self.submitter(submitter).nr_outstanding = 0;
            }
            Event::Changed { control: control @ (Control::Move(..) | Control::RemoveGroup(_)), phase } => {
                self.moving = (phase == Phase::Begun).then_some(control);
                for number in 0..self.submitters.len() {
                    self.submitters[number].is_vague |= self.moves(self.submitters[number].tenant);
                }
            }
            _ => {}
        }
    }

    /// If the submitter had nothing outstanding, the operation's group is certain.
    fn submitted(&mut self, submitter: u16, bio: u64) {
        if !self.operations.begin(bio, submitter) {
            return;
        }
        self.submitter(submitter).nr_outstanding += 1;
        let tenant = self.submitter(submitter).tenant;
        let moves = self.moves(tenant);
        let known = self.submitter(submitter);
        known.is_vague &= moves || known.nr_outstanding > 1;
    }

    /// Whether the outstanding operations of this submitter have the groups that they name.
    pub(super) fn is_certain(&self, submitter: u16) -> bool {
        self.submitters.get(usize::from(submitter)).is_none_or(|known| !known.is_vague)
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;
    use blkmq_virtual::Status;

    use super::super::testing::*;
    use super::*;

    #[test]
    fn a_submitter_is_certain_again_when_it_has_nothing_outstanding() {
        let mut moves = Moves::default();
        let submit = |moves: &mut Moves, bio| moves.see(&submitted(bio, asked(Op::Read, 0, 8)));
        let change = |moves: &mut Moves, control, phase| moves.see(&changed(control, phase));
        moves.see(&Event::Joined { submitter: 1, nr_slots: 8, tenant: 5 });
        submit(&mut moves, 1);
        change(&mut moves, Control::Move(6, 1), Phase::Begun);
        change(&mut moves, Control::Move(6, 1), Phase::Done);
        assert!(moves.is_certain(1) && moves.is_certain(9));
        change(&mut moves, Control::Move(5, 1), Phase::Begun);
        assert!(!moves.is_certain(1));
        moves.see(&reaped(1, id(1, 0, 0), Status::Ok));
        submit(&mut moves, 2);
        change(&mut moves, Control::Move(5, 1), Phase::Done);
        submit(&mut moves, 3);
        moves.see(&reaped(2, id(1, 0, 0), Status::Ok));
        assert!(!moves.is_certain(1), "operation 2 was taken while the tenant moved");
        moves.see(&reaped(3, id(1, 0, 0), Status::Ok));
        submit(&mut moves, 4);
        assert!(moves.is_certain(1));
        change(&mut moves, Control::RemoveGroup(1), Phase::Begun);
        assert!(!moves.is_certain(1));
    }
}
