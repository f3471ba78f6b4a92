//! Data is where it belongs. A read finds what was written last. The device is asked only for sectors that an operation
//! asked for. What the device is to write is the data of the operation that has these sectors.
//!
//! Of operations that overlap, several are outstanding at once only if all are reads. So what a read must find is
//! certain, except for sectors that a failed write may or may not have reached.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::name;
use super::tracker::{Operation, Tracker, sectors};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "data";

/// This module's checker.
#[derive(Debug)]
pub(super) struct Data {
    /// How many reads are outstanding on each sector.
    readers: Vec<u16>,
    /// What each sector holds, and for some sectors what they may hold instead.
    content: Vec<u64>,
    instead: BTreeMap<u64, Vec<u64>>,
    /// The event at which the power went last.
    power_lost: u64,
}

impl Data {
    pub(super) fn new(facts: &Facts) -> Self {
        let nr_sectors = usize::try_from(facts.limits.capacity_sectors).expect("a world's device is small");
        Self { readers: vec![0; nr_sectors], content: vec![0; nr_sectors], instead: BTreeMap::new(), power_lost: 0 }
    }

    /// Called when a read is over. The read must have found what may be there. From now on the sectors are known to
    /// hold what it found.
    fn read(&mut self, bio: u64, &Operation { ref asked, event, .. }: &Operation, data: &[u64]) -> Verdict {
        if data.len() as u64 != asked.nr_sectors {
            let what = format!("read {bio} of {} sectors has data for {}", asked.nr_sectors, data.len());
            return Err(Violation::new(RULE, what).bio(bio));
        }
        // If the power went meanwhile, the read may have found what was there before.
        if event < self.power_lost {
            return Ok(());
        }
        let first = sectors(asked.sector, asked.nr_sectors).start;
        if self.instead.is_empty() && self.content[first..first + data.len()] == *data {
            return Ok(());
        }
        for (sector, found) in (asked.sector..).zip(data) {
            let content = &mut self.content[sector as usize];
            let instead = self.instead.remove(&sector).unwrap_or_default();
            if found != content && !instead.contains(found) {
                let what = format!("read {bio} found {found} in sector {sector}, where {content} {instead:?} is");
                return Err(Violation::new(RULE, what).bio(bio).bio(*found).bio(*content));
            }
            *content = *found;
        }
        Ok(())
    }

    /// Checks that an operation asked for what an offered request does.
    fn offered(&self, rq: RqId, data: &[u64], tracker: &Tracker) -> Verdict {
        let Some(offer) = tracker.offer(rq) else { return Ok(()) };
        let fail = |what: String| Err(Violation::new(RULE, what).request(rq));
        let nr_sectors = offer.nr_sectors();
        if data.len() as u64 != if offer.op == Op::Write { nr_sectors } else { 0 } {
            return fail(format!("a {} of {nr_sectors} sectors brings data for {}", name(offer.op), data.len()));
        }
        let mut data = data;
        for &(sector, nr_sectors) in &offer.ranges {
            let range = sectors(sector, nr_sectors.into());
            if range.end > self.content.len() {
                return fail(format!("a request reaches to sector {}, behind the end", range.end));
            }
            if offer.op == Op::Read {
                if let Some(at) = self.readers[range.clone()].iter().position(|readers| *readers == 0) {
                    let sector = range.start + at;
                    return fail(format!("the device is to read sector {sector}, and no operation asked for it"));
                }
                continue;
            }
            let mut at = sector;
            while at < range.end as u64 {
                let Some((bio, operation)) = tracker.owner(at) else {
                    return fail(format!("the device is to change sector {at}, and no operation asked for it"));
                };
                let (is, asked) = (name(offer.op), name(operation.asked.op));
                if is != asked {
                    let what = format!("a {is} on sector {at}, where operation {bio} asked for a {asked}");
                    return Err(Violation::new(RULE, what).bio(bio).request(rq));
                }
                let taken = operation.end().min(range.end as u64) - at;
                if offer.op == Op::Write {
                    let (own, rest) = data.split_at(taken as usize);
                    data = rest;
                    if let Some(other) = own.iter().find(|stamp| **stamp != bio) {
                        let what = format!("data of {other} is to be written where operation {bio} writes");
                        return Err(Violation::new(RULE, what).bio(bio).bio(*other).request(rq));
                    }
                }
                at += taken;
            }
        }
        Ok(())
    }

    /// Called when a request has ended, so that its sectors hold what it wrote. If it failed, they may or may not hold
    /// it.
    fn ended(&mut self, tracker: &Tracker) {
        let Some((_, offer, status)) = tracker.ended() else { return };
        for &(first, nr_sectors, value) in &offer.runs {
            let range = sectors(first, nr_sectors.into());
            if status.is_ok() {
                self.content[range.clone()].fill(value);
                if !self.instead.is_empty() {
                    range.for_each(|sector| _ = self.instead.remove(&(sector as u64)));
                }
            } else {
                range.for_each(|sector| self.instead.entry(sector as u64).or_default().push(value));
            }
        }
    }

    fn readers(&mut self, &Asked { sector, nr_sectors, .. }: &Asked) -> &mut [u16] {
        &mut self.readers[sectors(sector, nr_sectors)]
    }
}

impl Checker for Data {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        let read = |bio| tracker.operation(bio).filter(|known| known.is_valid() && known.asked.op == Op::Read);
        for operation in tracker.ending.iter().filter_map(|bio| read(*bio)) {
            self.readers(&operation.asked).iter_mut().for_each(|readers| *readers -= 1);
        }
        match *event {
            Event::Submitted { bio, asked, .. } if read(bio).is_some() => {
                self.readers(&asked).iter_mut().for_each(|readers| *readers += 1);
            }
            Event::Reaped { bio, status, data, .. } if status.is_ok() => {
                return read(bio).map_or(Ok(()), |operation| self.read(bio, operation, data));
            }
            Event::Offered { rq, data, .. } => return self.offered(rq, data, tracker),
            Event::Acted { .. } => self.ended(tracker),
            Event::PowerLost { content } => {
                self.content.copy_from_slice(content);
                self.instead.clear();
                self.power_lost = tracker.event;
            }
            _ => {}
        }
        Ok(())
    }
}
