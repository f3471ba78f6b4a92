//! Data is where it belongs. A read finds what was written last. The device is asked only for sectors that an operation
//! asked for. What the device is to write is the data of the operation that has these sectors.
//!
//! Of operations that overlap, several are outstanding at once only if all are reads. So what a read must find is
//! certain, except for sectors that a failed write may or may not have reached.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId};
use blkmq_virtual::Status;

use super::super::event::{Asked, Event, Stamp};
use super::super::text::name;
use super::book::Book;
use super::offers::Offers;
use super::parts::parts;
use super::runs::{Runs, places};
use super::{Checker, Facts, Violation};

const RULE: &str = "data";

/// An operation that is not over.
#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    /// The power went while the operation was outstanding. A read may have found what was there before.
    is_vague: bool,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Data {
    facts: Facts,
    operations: Book<Operation>,
    /// Operations other than reads by their first sector.
    places: BTreeMap<u64, u64>,
    /// How many reads are outstanding on each sector.
    readers: Vec<u16>,
    /// What each sector holds, and for some sectors what they may hold instead.
    content: Vec<u64>,
    instead: BTreeMap<u64, Vec<u64>>,
    offers: Offers,
    runs: Runs,
}

impl Data {
    pub(super) fn new(facts: &Facts) -> Self {
        let nr_sectors = usize::try_from(facts.limits.capacity_sectors).expect("a world's device is small");
        Self {
            facts: facts.clone(),
            operations: Book::new(),
            places: BTreeMap::new(),
            readers: vec![0; nr_sectors],
            content: vec![0; nr_sectors],
            instead: BTreeMap::new(),
            offers: Offers::new(),
            runs: Runs::new(),
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        if asked.op == Op::Flush || parts(&self.facts.limits, &asked, pieces).is_err() {
            return;
        }
        if asked.op == Op::Read {
            self.readers[places(asked.sector, asked.nr_sectors)].iter_mut().for_each(|readers| *readers += 1);
        } else {
            self.places.insert(asked.sector, bio);
        }
        self.operations.begin(bio, Operation { submitter, asked, is_vague: false });
    }

    fn end_of(&mut self, bio: u64) -> Option<Operation> {
        let operation = self.operations.end(bio)?;
        let Asked { op, sector, nr_sectors, .. } = operation.asked;
        if op == Op::Read {
            self.readers[places(sector, nr_sectors)].iter_mut().for_each(|readers| *readers -= 1);
        } else {
            self.places.remove(&sector);
        }
        Some(operation)
    }

    /// Called when a read is over. The read must have found what may be there. From now on the sectors are known to
    /// hold what it found.
    fn read(&mut self, bio: u64, asked: &Asked, is_vague: bool, data: &[u64]) -> Result<(), Violation> {
        if data.len() as u64 != asked.nr_sectors {
            let what = format!("read {bio} of {} sectors has data for {}", asked.nr_sectors, data.len());
            return Err(Violation::new(RULE, what).bio(bio));
        }
        if is_vague {
            return Ok(());
        }
        let first = places(asked.sector, asked.nr_sectors).start;
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
    fn offered(&self, rq: RqId, data: &[u64]) -> Result<(), Violation> {
        let Some(offer) = self.offers.get(rq) else { return Ok(()) };
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        let asked_sectors: u64 = offer.ranges.iter().map(|(_, nr_sectors)| u64::from(*nr_sectors)).sum();
        if data.len() as u64 != if offer.op == Op::Write { asked_sectors } else { 0 } {
            return bad(format!("a {} of {asked_sectors} sectors brings data for {}", name(offer.op), data.len()));
        }
        let mut data = data;
        for &(sector, nr_sectors) in &offer.ranges {
            let range = places(sector, nr_sectors.into());
            if range.end > self.content.len() {
                return bad(format!("a request reaches to sector {}, behind the end", range.end));
            }
            if offer.op == Op::Read {
                if let Some(at) = self.readers[range.clone()].iter().position(|readers| *readers == 0) {
                    return bad(format!(
                        "the device is to read sector {}, and no operation asked for it",
                        range.start + at
                    ));
                }
                continue;
            }
            let mut at = sector;
            while at < range.end as u64 {
                let owner = self.places.range(..=at).next_back().map(|(_, bio)| *bio);
                let owner = owner.and_then(|bio| Some((bio, self.operations.get(bio)?.asked)));
                let Some((bio, asked)) = owner.filter(|(_, asked)| at < asked.sector + asked.nr_sectors) else {
                    return bad(format!("the device is to change sector {at}, and no operation asked for it"));
                };
                if asked.op != offer.op {
                    let what = format!(
                        "a {} on sector {at}, where operation {bio} asked for a {}",
                        name(offer.op),
                        name(asked.op)
                    );
                    return Err(Violation::new(RULE, what).bio(bio).request(rq));
                }
                let taken = (asked.sector + asked.nr_sectors).min(range.end as u64) - at;
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
    fn ended(&mut self, rq: RqId, status: Status) {
        for &(first, nr_sectors, value) in self.runs.get(rq) {
            let range = places(first, nr_sectors.into());
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

    fn power_lost(&mut self, content: &[u64]) {
        self.content.clear();
        self.content.extend_from_slice(content);
        self.instead.clear();
        self.operations.iter_mut().for_each(|(_, operation)| operation.is_vague = true);
    }
}

impl Checker for Data {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Rejected { bio, .. } | Event::HandedBack { bio, .. } => _ = self.end_of(bio),
            Event::Reaped { bio, status, data, .. } => {
                let Some(Operation { asked, is_vague, .. }) = self.end_of(bio) else { return Ok(()) };
                if asked.op == Op::Read && status.is_ok() {
                    return self.read(bio, &asked, is_vague, data);
                }
            }
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.end_of(bio));
            }
            Event::Offered { rq, data, .. } => {
                self.offers.see(event);
                self.runs.see(event);
                return self.offered(rq, data);
            }
            Event::Acted { rq, .. } => {
                if let Some((_, status)) = self.offers.see(event) {
                    self.ended(rq, status);
                }
            }
            Event::PowerLost { content } => self.power_lost(content),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::event::Action;
    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Data> {
        Told::new(Data::new(&FACTS))
    }

    /// Operation `bio` writes 8 sectors from sector 8.
    fn written(told: &mut Told<Data>, bio: u64, status: Status) {
        let rq = id(1, 0, bio);
        told.good(submitted(bio, asked(Op::Write, 8, 8))).good(offered(rq, Op::Write, 8, 8, &[bio; 8]));
        told.good(started(rq)).good(completed(rq, status)).good(reaped(bio, rq, status));
    }

    /// What a read of two sectors from sector 8 finds.
    fn found(bio: u64, data: &[u64]) -> Event<'_> {
        Event::Reaped { submitter: 1, bio, id: id(1, 1, bio), status: Status::Ok, times: Default::default(), data }
    }

    fn reading(told: &mut Told<Data>, bio: u64) -> &mut Told<Data> {
        told.good(submitted(bio, asked(Op::Read, 8, 2)))
    }

    #[test]
    fn a_read_finds_what_was_written_last() {
        let mut told = told();
        reading(&mut told, 1).good(found(1, &[0, 0]));
        written(&mut told, 2, Status::Ok);
        reading(&mut told, 3).good(found(3, &[2, 2]));
        written(&mut told, 4, Status::Ok);
        reading(&mut told, 5).bad(found(5, &[4, 2]), "read 5 found 2 in sector 9, where 4 [] is");
        reading(&mut told, 6).bad(found(6, &[4]), "has data for 1");
    }

    #[test]
    fn a_write_that_failed_may_be_there_until_a_read_settles_it() {
        let mut told = told();
        written(&mut told, 1, Status::Ok);
        written(&mut told, 2, Status::Medium);
        reading(&mut told, 3).good(found(3, &[1, 2]));
        reading(&mut told, 4).bad(found(4, &[2, 2]), "found 2 in sector 8, where 1 [] is");
        written(&mut told, 5, Status::IoError);
        written(&mut told, 6, Status::Ok);
        reading(&mut told, 7).bad(found(7, &[5, 6]), "found 5 in sector 8");
    }

    #[test]
    fn what_is_discarded_or_zeroed_is_zero() {
        for op in [Op::Discard, Op::WriteZeroes] {
            let mut told = told();
            written(&mut told, 1, Status::Ok);
            told.good(submitted(2, asked(op, 8, 1))).good(offered(id(1, 0, 9), op, 8, 1, &[]));
            told.good(acted(id(1, 0, 9), Action::FinishedAtOnce(Status::Ok))).good(reaped(2, id(1, 0, 9), Status::Ok));
            reading(&mut told, 3).bad(found(3, &[1, 1]), "found 1 in sector 8");
            reading(&mut told, 4).good(found(4, &[0, 1]));
        }
    }

    #[test]
    fn the_device_is_asked_for_what_somebody_asked_for() {
        let read = |sector, nr_sectors| offered(id(1, 0, 0), Op::Read, sector, nr_sectors, &[]);
        reading(&mut told(), 1).good(read(8, 2)).good(read(9, 1)).bad(read(9, 2), "sector 10, and no operation asked");
        let write = |sector, data| offered(id(1, 0, 0), Op::Write, sector, 2, data);
        told().bad(write(8, &[1, 1]), "no operation asked");
        let mut told = told();
        told.good(submitted(1, asked(Op::Write, 8, 2))).good(submitted(2, asked(Op::Write, 10, 2)));
        told.good(write(8, &[1, 1])).good(write(9, &[1, 2])).bad(write(11, &[2, 2]), "sector 12, and no operation");
        told.bad(write(9, &[1, 1]), "data of 1 is to be written where operation 2 writes");
        told.bad(write(9, &[1]), "brings data for 1");
        told.bad(offered(id(1, 0, 0), Op::Discard, 8, 2, &[]), "operation 1 asked for a write");
        told.bad(offered(id(1, 0, 0), Op::Read, 1023, 2, &[]), "behind the end");
        told.good(reaped(1, id(1, 0, 0), Status::Ok)).bad(write(8, &[1, 1]), "no operation asked");
    }

    #[test]
    fn after_a_loss_of_power_the_device_says_what_it_holds() {
        let mut told = told();
        written(&mut told, 1, Status::Ok);
        written(&mut told, 2, Status::Ok);
        reading(&mut told, 3);
        let mut content = vec![0; 1024];
        content[8] = 1;
        told.good(Event::PowerLost { content: &content }).good(found(3, &[2, 2]));
        reading(&mut told, 4).bad(found(4, &[2, 2]), "found 2 in sector 8, where 1 [] is");
        reading(&mut told, 5).good(found(5, &[1, 0]));
    }

    #[test]
    fn operations_that_were_not_done_ask_for_nothing() {
        let over = [
            Event::Left { submitter: 1, hands_back: true },
            Event::HandedBack { submitter: 1, bio: 1 },
            Event::Rejected {
                submitter: 1,
                bio: 1,
                asked: asked(Op::Read, 8, 2),
                reason: blkmq_virtual::RejectReason::Full,
            },
        ];
        for over in over {
            reading(&mut told(), 1).good(over).bad(offered(id(1, 0, 0), Op::Read, 8, 2, &[]), "no operation asked");
        }
    }
}
