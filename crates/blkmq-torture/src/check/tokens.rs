//! Tokens are conserved. No more requests of a kind are chosen, on their way or with the device than there are tokens
//! of that kind; what was out before a pool became shallower does not count. For each choice the scheduler takes one
//! token, of the kind of the request that it chooses, and none if it chooses no request. When the queue has drained,
//! all tokens are back, and each pool is as deep as was decided last.

use blkmq_sched::{RqId, SchedDomain};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::depth_tokens::NR_KINDS;
use super::table::grown;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "tokens";

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The token that each CPU took for a choice that is not told yet.
    taken: Vec<Option<SchedDomain>>,
}

impl Tokens {
    fn taken(&mut self, cpu: u16) -> &mut Option<SchedDomain> {
        grown(&mut self.taken, cpu, || None)
    }

    fn given(&mut self, cpu: u16, of: SchedDomain) -> Verdict {
        match self.taken(cpu).replace(of) {
            None => Ok(()),
            Some(before) => {
                let what =
                    format!("the scheduler took a {} token for a choice, and a {} token", before.name(), of.name());
                Err(Violation::new(RULE, what))
            }
        }
    }

    fn chosen(&mut self, cpu: u16, rq: RqId, tracker: &Tracker) -> Verdict {
        let taken = self.taken(cpu).take();
        let fail = |what: String| Err(Violation::new(RULE, format!("{} {what}", Request(rq))).request(rq));
        let Some(kind) = tracker.kind(rq) else { return Ok(()) };
        if tracker.tokens.held_by(rq).is_some() {
            return fail("was chosen with a token, and has one already".to_owned());
        }
        match taken {
            Some(of) if of == kind => judge(kind, tracker),
            Some(of) => fail(format!("is a {} request, and was chosen with a {} token", kind.name(), of.name())),
            None => fail("was chosen without a token".to_owned()),
        }
    }
}

/// Checks that there is a token for one more request of this kind.
fn judge(of: SchedDomain, tracker: &Tracker) -> Verdict {
    let (nr_counted, limit) = (tracker.tokens.nr_counted(of) + 1, tracker.tokens.limit(of));
    if nr_counted <= limit {
        return Ok(());
    }
    Err(Violation::new(RULE, format!("{nr_counted} requests have {} tokens, and there are {limit}", of.name())))
}

/// Looks at the pools in a dump of the drained queue.
fn dumped(text: &str, tracker: &Tracker) -> Verdict {
    let mut found = 0;
    for of in SchedDomain::ALL {
        let start = format!("{}_tokens: ", of.name());
        for line in text.lines().filter_map(|line| line.trim_start().strip_prefix(&start)) {
            found += 1;
            let expected = format!("depth={} busy=0", tracker.tokens.depth(of));
            if line != expected {
                let what = format!("the queue has drained, and its {} tokens are {line}, not {expected}", of.name());
                return Err(Violation::new(RULE, what));
            }
        }
    }
    let expected = if tracker.tokens.is_watched() { NR_KINDS } else { 0 };
    if found == expected {
        return Ok(());
    }
    Err(Violation::new(RULE, format!("the dump shows {found} pools of tokens, not {expected}")))
}

impl Checker for Tokens {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Token { of, is_given: true, .. } => self.given(at.cpu, of),
            Event::Chosen { rq, .. } if tracker.tokens.is_watched() => self.chosen(at.cpu, rq, tracker),
            Event::HeldBack { .. } if self.taken(at.cpu).is_some() => {
                Err(Violation::new(RULE, "the scheduler took a token and chose no request".to_owned()))
            }
            Event::Offered { op, .. } if tracker.is_bypass && tracker.tokens.is_watched() => {
                judge(SchedDomain::of(op), tracker)
            }
            Event::Dumped(text) => dumped(text, tracker),
            _ => Ok(()),
        }
    }
}
