//! Finds the requests that reach a device past the scheduler because they come from the flush machine.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::Limits;

use super::super::event::{Asked, Event};
use super::book::Book;
use super::owners::Owners;
use super::parts::parts;
use super::table::is_flush;

/// The outstanding operations, and which of them the flush machine takes.
#[derive(Debug)]
pub(super) struct Flushing {
    limits: Limits,
    operations: Book<(u16, Asked)>,
    /// The outstanding operations without data (discards and writes of zeroes) that the flush machine may take.
    owners: Owners,
}

impl Flushing {
    pub(super) const fn new(limits: Limits) -> Self {
        Self { limits, operations: Book::new(), owners: Owners::new() }
    }

    /// Follows an event.
    pub(super) fn see(&mut self, event: &Event<'_>) {
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => self.over(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|(owner, _)| *owner == submitter);
                theirs.into_iter().for_each(|bio| self.over(bio));
            }
            _ => {}
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        self.operations.begin(bio, (submitter, asked));
        let has_no_data = matches!(asked.op, Op::Discard | Op::WriteZeroes);
        let wants_flush = asked.flags.preflush || asked.flags.fua;
        if has_no_data && wants_flush && parts(&self.limits, &asked, pieces).is_ok() {
            self.owners.begin(bio, &asked);
        }
    }

    fn over(&mut self, bio: u64) {
        if let Some((_, asked)) = self.operations.end(bio) {
            self.owners.end(bio, &asked);
        }
    }

    /// What an outstanding operation asks for.
    pub(super) fn asked(&self, bio: u64) -> Option<&Asked> {
        self.operations.get(bio).map(|(_, asked)| asked)
    }

    /// Whether a request that a device is offered, with the data that it writes, comes from the flush machine.
    pub(super) fn takes(&self, rq: RqId, sector: u64, data: &[u64]) -> bool {
        if is_flush(rq) {
            return true;
        }
        let bio = data.first().copied().or_else(|| self.owners.of(sector));
        let Some(asked) = bio.and_then(|bio| self.asked(bio)) else { return false };
        let Limits { write_cache, fua, .. } = self.limits;
        asked.op != Op::Read && write_cache && (asked.flags.preflush || asked.flags.fua && !fua)
    }
}
