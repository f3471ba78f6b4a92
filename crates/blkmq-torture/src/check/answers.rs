//! Which requests the scheduler let pass, and when.

use std::collections::{BTreeMap, VecDeque};

use blkmq_sched::{Class, ClientId, Passing, RqId};

use super::super::event::Event;
use super::table::pool;

/// How many of the latest answers about a class are kept.
const MOST: usize = 4096;

/// The scheduler's answers to the question whether requests may pass it by.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By class, each with its step: the client that was asked about, and the answer.
    of_class: [VecDeque<(u64, ClientId, Passing)>; 3],
    /// The client of each pool of slots, as far as a request has shown it since a submitter last joined.
    clients: BTreeMap<u16, ClientId>,
}

impl Answers {
    /// Follows an event.
    pub(super) fn see(&mut self, step: u64, event: &Event<'_>) {
        match *event {
            Event::Gated { class, client, passing } => {
                let answers = &mut self.of_class[class.index()];
                if answers.len() == MOST {
                    answers.pop_front();
                }
                answers.push_back((step, client, passing));
            }
            // The pool may be that of a submitter that left.
            Event::Joined { .. } => self.clients.clear(),
            Event::Inserted { rq, info, .. } => _ = self.clients.insert(pool(rq), info.client),
            _ => {}
        }
    }

    /// Whether the scheduler let a request of this class pass at some time since this step.
    pub(super) fn have_let_pass(&self, rq: RqId, class: Class, step: u64) -> bool {
        let client = self.clients.get(&pool(rq));
        let allows = |(_, asked, passing): &(u64, ClientId, Passing)| match passing {
            Passing::Nobody => false,
            Passing::Client => client.is_none_or(|client| client == asked),
            Passing::All => true,
        };
        let answers = &self.of_class[class.index()];
        // The last answer before that step held then.
        let first = answers.partition_point(|(answered, ..)| *answered <= step);
        let is_forgotten = first == 0 && answers.len() == MOST;
        is_forgotten || answers.range(first.saturating_sub(1)..).any(allows)
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;

    use super::super::testing::*;
    use super::*;

    const RQ: RqId = id(1, 1, 0);

    /// Whether a request of client 0 that was submitted at step 10 may pass after these answers, each with its step.
    fn may_pass(told: &[(u64, Class, u32, Passing)]) -> bool {
        let mut answers = Answers::default();
        answers.see(0, &inserted(id(1, 0, 0), info(Op::Read, 0, 8), 0));
        for &(step, class, client, passing) in told {
            answers.see(step, &Event::Gated { class, client: ClientId(client), passing });
        }
        answers.have_let_pass(RQ, Class::BestEffort, 10)
    }

    #[test]
    fn a_request_passes_while_its_class_and_client_may() {
        use Class::{BestEffort, Idle};
        use Passing::{All, Client, Nobody};
        assert!(!may_pass(&[]));
        assert!(may_pass(&[(1, BestEffort, 0, All)]));
        assert!(!may_pass(&[(1, BestEffort, 0, All), (2, BestEffort, 0, Nobody)]));
        // The scheduler let it pass later, or until just before.
        assert!(may_pass(&[(1, BestEffort, 0, Nobody), (11, BestEffort, 0, All)]));
        assert!(may_pass(&[(1, BestEffort, 0, All), (11, BestEffort, 0, Nobody)]));
        assert!(may_pass(&[(1, BestEffort, 0, Client)]));
        assert!(!may_pass(&[(1, BestEffort, 1, Client)]));
        assert!(!may_pass(&[(1, Idle, 0, All)]));
    }

    #[test]
    fn of_a_pool_that_may_be_anothers_the_client_is_not_known() {
        let mut answers = Answers::default();
        answers.see(0, &inserted(id(1, 0, 0), info(Op::Read, 0, 8), 0));
        let gated = Event::Gated { class: Class::BestEffort, client: ClientId(1), passing: Passing::Client };
        answers.see(1, &gated);
        assert!(!answers.have_let_pass(RQ, Class::BestEffort, 10));
        answers.see(2, &Event::Joined { submitter: 1, nr_slots: 8, tenant: 0 });
        assert!(answers.have_let_pass(RQ, Class::BestEffort, 10));
    }
}
