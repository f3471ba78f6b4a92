//! Tags are conserved. A request has a tag of the hardware queue that its submitter maps to. No other request has the
//! same tag at the same time. In the end all tags are back.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::driver::Topology;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::table::{Table, grown, is_flush, pool, slot};
use super::{Checker, Facts, Violation};

const RULE: &str = "tags";

/// This module's checker.
#[derive(Debug)]
pub(super) struct Tags {
    topology: Topology,
    has_scheduler: bool,
    /// The knob `nr_requests`, if it was set.
    nr_requests: Option<u32>,
    /// The number of tags that a hardware queue has now.
    depth: u16,
    /// The request that has each tag, by hardware queue.
    owners: Vec<Vec<Option<RqId>>>,
    /// The hardware queue and the tag of a request that has one.
    tags: Table<(u16, u16)>,
    nr_out: u32,
}

impl Tags {
    pub(super) fn new(facts: &Facts) -> Self {
        let Facts { topology, nr_requests, .. } = *facts;
        let mut tags = Self {
            topology,
            has_scheduler: false,
            nr_requests,
            depth: 0,
            owners: Vec::new(),
            tags: Table::new(),
            nr_out: 0,
        };
        tags.size();
        tags
    }

    /// The hardware queue of a request. The hardware queues for polled operations come last, and those for reads come
    /// before them. All requests of a member go to one hardware queue; the members take the queues in turn.
    fn hctx(&self, rq: RqId, op: Op, is_polled: bool) -> u16 {
        let Topology { default_queues, read_queues, poll_queues, .. } = self.topology;
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

    fn owner(&mut self, hctx: u16, tag: u16) -> &mut Option<RqId> {
        grown(grown(&mut self.owners, hctx, Vec::new), tag, || None)
    }

    fn offered(&mut self, rq: RqId, hctx: u16, tag: u16, expected: u16) -> Result<(), Violation> {
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        if usize::from(hctx) >= self.topology.nr_queues() {
            return bad(format!("a request was offered on hardware queue {hctx}, which there is not"));
        }
        if hctx != expected {
            return bad(format!("a request was offered on hardware queue {hctx} and belongs to {expected}"));
        }
        if tag >= self.depth {
            return bad(format!("a request has tag {tag} of {}", self.depth));
        }
        let owner = self.owner(hctx, tag);
        match *owner {
            None => {
                *owner = Some(rq);
                *self.tags.entry(rq) = Some((rq, (hctx, tag)));
                self.nr_out += 1;
                Ok(())
            }
            Some(owner) if owner == rq => Ok(()),
            Some(owner) => {
                let what = format!("two requests have tag {tag} of hardware queue {hctx}");
                Err(Violation::new(RULE, what).request(owner).request(rq))
            }
        }
    }

    /// Called when a request has lost its tag.
    fn put(&mut self, rq: RqId) {
        let Some(&(hctx, tag)) = self.tags.get(rq) else { return };
        let owner = self.owner(hctx, tag);
        if *owner == Some(rq) {
            *owner = None;
            self.nr_out -= 1;
        }
    }

    fn counted(&self, in_flight: u32) -> Result<(), Violation> {
        let owners = || self.owners.iter().flatten().flatten();
        if let Some(rq) = owners().next() {
            let what = format!("the queue has drained, and {} requests have tags", self.nr_out);
            return Err(Violation::new(RULE, what).request(*rq));
        }
        if in_flight == 0 {
            return Ok(());
        }
        Err(Violation::new(RULE, format!("the queue has drained, and {in_flight} tags are out")))
    }

    /// Without a scheduler there are as many tags as `nr_requests` says.
    fn size(&mut self) {
        let asked = self.nr_requests.filter(|_| !self.has_scheduler).and_then(|asked| u16::try_from(asked).ok());
        self.depth = asked.map_or(self.topology.depth, |asked| asked.min(self.topology.depth));
    }

    fn changed(&mut self, control: Control) {
        match control {
            Control::NrRequests(nr_requests) => {
                self.nr_requests = Some(nr_requests);
                self.size();
            }
            Control::Topology(default_queues, read_queues, poll_queues) => {
                self.topology = Topology { default_queues, read_queues, poll_queues, ..self.topology };
            }
            _ => {}
        }
    }
}

impl Checker for Tags {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Offered { rq, hctx, tag, op, flags, .. } => {
                let expected = self.hctx(rq, op, flags.polled);
                return self.offered(rq, hctx, tag, expected);
            }
            Event::Acted { rq, action } => match action {
                Action::FinishedAtOnce(_) | Action::GivenBack | Action::Completed(_) | Action::GaveUp => self.put(rq),
                Action::Started { .. } | Action::Refused | Action::Stale | Action::WantsTime { .. } => {}
            },
            Event::Installed { scheduler } => {
                self.has_scheduler = scheduler.is_some();
                self.size();
            }
            Event::Changed { control, phase: Phase::Done } => self.changed(control),
            Event::Counted(counts) => return self.counted(counts.in_flight),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _at: Stamp) -> Result<(), Violation> {
        self.counted(0)
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::{Flags, Status};

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Tags> {
        Told::new(Tags::new(&FACTS))
    }

    fn on(rq: RqId, hctx: u16, tag: u16, op: Op, polled: bool) -> Event<'static> {
        let flags = Flags { polled, ..Flags::NONE };
        let Event::Offered { sector, nr_sectors, ranges, segments, data, now, .. } = offered(rq, op, 0, 1, &[]) else {
            unreachable!("an offer is one")
        };
        Event::Offered { rq, hctx, tag, op, flags, sector, nr_sectors, ranges, segments, data, now }
    }

    fn write(slot: u64, tag: u16) -> Event<'static> {
        on(id(1, slot, 0), 0, tag, Op::Write, false)
    }

    #[test]
    fn a_tag_has_one_owner_until_it_is_back() {
        let ends =
            [Action::FinishedAtOnce(Status::Ok), Action::GivenBack, Action::Completed(Status::Medium), Action::GaveUp];
        for end in ends {
            let mut told = told();
            told.good(write(0, 2)).bad(write(1, 2), "two requests have tag 2 of hardware queue 0");
            told.good(write(1, 3)).good(acted(id(1, 0, 0), end)).good(write(2, 2));
        }
        for stays in [Action::Refused, Action::Stale, Action::WantsTime { due: None }, Action::Started { due: None }] {
            told().good(write(0, 2)).good(acted(id(1, 0, 0), stays)).bad(write(1, 2), "two requests");
            told().good(write(0, 2)).good(acted(id(1, 0, 0), stays)).good(write(0, 2));
        }
    }

    #[test]
    fn tags_are_those_of_the_hardware_queue() {
        told().good(write(0, 3)).bad(write(1, 4), "tag 4 of 4");
        let installed = |scheduler| Event::Installed { scheduler };
        let fewer = || changed(Control::NrRequests(2), Phase::Done);
        told().good(installed(None)).good(fewer()).bad(write(0, 2), "tag 2 of 2");
        told().good(installed(Some("mq-deadline"))).good(fewer()).good(write(0, 2));
        told().good(fewer()).good(installed(Some("mq-deadline"))).good(write(0, 2));
        // The value of the knob stays when the scheduler changes.
        told().good(fewer()).good(installed(None)).bad(write(0, 2), "tag 2 of 2");
        told().good(changed(Control::NrRequests(2), Phase::Refused)).good(write(0, 2));
    }

    #[test]
    fn a_request_goes_where_its_submitter_maps_to() {
        told().bad(on(id(2, 0, 0), 0, 0, Op::Write, false), "queue 0 and belongs to 1");
        told().bad(on(id(1, 0, 0), 2, 0, Op::Write, false), "which there is not");
        told()
            .good(on(id(0, 1, 0), 1, 0, Op::Flush, false))
            .bad(on(id(0, 1, 1), 0, 0, Op::Flush, false), "belongs to 1");
        let mut told = told();
        told.good(changed(Control::Topology(2, 3, 1), Phase::Done));
        told.good(on(id(2, 0, 0), 3, 0, Op::Read, false)).good(on(id(2, 1, 0), 5, 0, Op::Read, true));
        told.good(on(id(2, 2, 0), 1, 0, Op::Write, false)).bad(on(id(2, 3, 0), 1, 1, Op::Read, false), "belongs to 3");
        told.bad(on(id(2, 3, 0), 1, 1, Op::Write, true), "belongs to 5");
    }

    #[test]
    fn a_drained_queue_has_all_its_tags() {
        told().good(Event::Counted(&counts(0))).bad(Event::Counted(&counts(1)), "1 tags are out");
        let mut told = told();
        told.good(write(0, 0)).bad(Event::Counted(&counts(0)), "1 requests have tags");
        assert!(told.end().is_err());
        told.good(completed(id(1, 0, 0), Status::Ok)).good(Event::Counted(&counts(0)));
        assert_eq!(told.end(), Ok(()));
    }
}
