//! What waits in fair goes, unless a lead holds it back.
//!
//! fair chooses none of the requests that wait only while it holds clients back for others, as it said last. Then it
//! says when it will wait no longer, which is soon. That no thread forgets this time is a matter of
//! [`stall`](super::stall).

use blkmq_sched::{Fairness, Time};

use super::super::event::{Event, Stamp};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "conservation";

/// The longest time for which clients are held back for one that does not come, in ns: 100 ms at the scale of the rig.
const TIMEOUT_NS: u64 = 1_000_000;

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Conservation {
    is_watched: bool,
    /// Clients are held back for others.
    is_enforced: bool,
}

impl Conservation {
    fn held_back(&self, waiting: usize, now: Time, wakeup: Option<Time>) -> Verdict {
        let fail =
            |what: String| Err(Violation::new(RULE, format!("{waiting} requests wait, and fair chose none{what}")));
        match wakeup {
            _ if waiting == 0 => Ok(()),
            _ if !self.is_enforced => fail(", though it holds nobody back".to_owned()),
            None => fail(", and says no time".to_owned()),
            Some(wakeup) if wakeup > now.after(TIMEOUT_NS) => {
                fail(format!(" until {} ns, which is {} ns from now", wakeup.0, wakeup.since(now)))
            }
            Some(_) => Ok(()),
        }
    }
}

impl Checker for Conservation {
    fn see(&mut self, at: Stamp, event: &Event<'_>, _tracker: &Tracker) -> Verdict {
        match *event {
            Event::Installed { scheduler } => {
                *self = Self { is_watched: scheduler == Some("fair"), is_enforced: false };
            }
            Event::Learned { progress, .. } if progress.fairness != Fairness::Unknown => {
                self.is_enforced = progress.fairness == Fairness::Enforced;
            }
            Event::HeldBack { waiting, wakeup, .. } if self.is_watched => {
                return self.held_back(waiting, at.time, wakeup);
            }
            _ => {}
        }
        Ok(())
    }
}
