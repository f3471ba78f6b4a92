//! Tags are conserved. A request has a tag of the hardware queue that its submitter maps to. No other request has the
//! same tag at the same time. In the end all tags are back.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::driver::Topology;

use super::super::event::{Action, Event, Stamp};
use super::table::{Table, grown, is_flush, pool, slot};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "tags";

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// The request that has each tag, by hardware queue.
    owners: Vec<Vec<Option<RqId>>>,
    /// The hardware queue and the tag of a request that has one.
    tags: Table<(u16, u16)>,
}

/// The hardware queue of a request. The hardware queues for polled operations come last, and those for reads come
/// before them. All requests of a member go to one hardware queue; the members take the queues in turn.
fn hctx_of(rq: RqId, op: Op, is_polled: bool, topology: &Topology) -> u16 {
    let &Topology { default_queues, read_queues, poll_queues, .. } = topology;
    if is_flush(rq) {
        return slot(rq);
    }
    let (first, nr_queues) = if is_polled && poll_queues > 0 {
        (default_queues + read_queues, poll_queues)
    } else if op == Op::Read && !is_polled && read_queues > 0 {
        (default_queues, read_queues)
    } else {
        (0, default_queues)
    };
    first + (pool(rq) - 1) % nr_queues
}

impl Tags {
    fn owner(&mut self, hctx: u16, tag: u16) -> &mut Option<RqId> {
        grown(grown(&mut self.owners, hctx, Vec::new), tag, || None)
    }

    fn offered(&mut self, rq: RqId, hctx: u16, tag: u16, expected: u16, tracker: &Tracker) -> Verdict {
        let fail = |what: String| Err(Violation::new(RULE, what).request(rq));
        if usize::from(hctx) >= tracker.topology.nr_queues() {
            return fail(format!("a request was offered on hardware queue {hctx}, which there is not"));
        }
        if hctx != expected {
            return fail(format!("a request was offered on hardware queue {hctx} and belongs to {expected}"));
        }
        // Without a scheduler there are as many tags as `nr_requests` says.
        let depth = u64::from(tracker.topology.depth);
        let depth = if tracker.scheduler.is_some() { depth } else { tracker.nr_requests() };
        if u64::from(tag) >= depth {
            return fail(format!("a request has tag {tag} of {depth}"));
        }
        match self.owner(hctx, tag).replace(rq).filter(|owner| *owner != rq) {
            None => {
                *self.tags.entry(rq) = Some((rq, (hctx, tag)));
                Ok(())
            }
            Some(owner) => {
                let what = format!("two requests have tag {tag} of hardware queue {hctx}");
                Err(Violation::new(RULE, what).request(owner).request(rq))
            }
        }
    }

    /// Called when a request has lost its tag.
    fn put(&mut self, rq: RqId) {
        if let Some(&(hctx, tag)) = self.tags.get(rq) {
            self.owner(hctx, tag).take_if(|owner| *owner == rq);
        }
    }

    fn counted(&self, in_flight: u32) -> Verdict {
        let owners: Vec<RqId> = self.owners.iter().flatten().flatten().copied().collect();
        if let Some(rq) = owners.first() {
            let what = format!("the queue has drained, and {} requests have tags", owners.len());
            return Err(Violation::new(RULE, what).request(*rq));
        }
        if in_flight == 0 {
            return Ok(());
        }
        Err(Violation::new(RULE, format!("the queue has drained, and {in_flight} tags are out")))
    }
}

impl Checker for Tags {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Offered { rq, hctx, tag, op, flags, .. } => {
                let expected = hctx_of(rq, op, flags.polled, &tracker.topology);
                return self.offered(rq, hctx, tag, expected, tracker);
            }
            Event::Acted { rq, action } => match action {
                Action::FinishedAtOnce(_) | Action::GivenBack | Action::Completed(_) | Action::GaveUp => self.put(rq),
                Action::Started { .. } | Action::Refused | Action::Stale | Action::WantsTime { .. } => {}
            },
            Event::Counted(counts) => return self.counted(counts.in_flight),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _: &Tracker) -> Verdict {
        self.counted(0)
    }
}
