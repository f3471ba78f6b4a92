//! Flushes keep their promises. When a flush is over, everything that had completed before the flush was submitted
//! survives a loss of power. A write, discard or write of zeroes that asks for a flush before it is offered only when
//! that flush is done. A write that asks to be durable (FUA) is over only when it is durable.
//!
//! Data is durable if a flush of the device has gone well that began after the data was written. If the device can
//! write past its cache, data that was written in this way is durable too.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{Limits, Status};

use super::super::event::{Asked, Event, Stamp};
use super::book::Book;
use super::offers::Offers;
use super::owners::Owners;
use super::parts::parts;
use super::runs::{Runs, places};
use super::table::Table;
use super::{Checker, Facts, Violation};

const RULE: &str = "flush";

/// How many versions of a sector are remembered. If there are more, any contents are accepted.
const MOST_VERSIONS: usize = 64;

/// An operation that a flush concerns.
#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    submitted: u64,
    /// When the device finished the last of the operation's data.
    written: u64,
}

/// Contents that a sector holds, has held, or may hold.
#[derive(Debug, Clone, Copy)]
struct Version {
    value: u64,
    /// When the contents came there.
    since: u64,
    /// Whether the contents certainly came there.
    is_certain: bool,
    /// Whether the contents survive a loss of power whatever was flushed.
    is_durable: bool,
}

/// The versions of a sector that a loss of power may bring back, oldest first.
#[derive(Debug, Default, Clone)]
struct Versions {
    list: Vec<Version>,
    /// Whether there were too many versions to remember.
    is_vague: bool,
}

impl Versions {
    /// Forgets the versions that are older than the newest durable one. All versions that came before `durable` are
    /// durable.
    fn prune(&mut self, durable: u64) {
        let is_durable = |version: &Version| version.is_certain && (version.is_durable || version.since < durable);
        if let Some(at) = self.list.iter().rposition(is_durable) {
            self.list.drain(..at);
            self.is_vague = false;
        }
    }

    fn push(&mut self, version: Version, durable: u64) {
        if self.list.len() >= 4 {
            self.prune(durable);
        }
        if self.list.len() >= MOST_VERSIONS {
            self.list.remove(0);
            self.is_vague = true;
        }
        self.list.push(version);
    }
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Flush {
    limits: Limits,
    /// The number of events so far.
    now: u64,
    operations: Book<Operation>,
    /// The outstanding operations that change sectors.
    owners: Owners,
    offers: Offers,
    runs: Runs,
    /// When each flush of the device was offered last; and of the flushes that went well, when the one that began last
    /// was offered.
    flushes: Table<u64>,
    flushed: u64,
    /// All contents that had come to the device before this moment must survive.
    promised: u64,
    sectors: Vec<Versions>,
}

impl Flush {
    pub(super) fn new(facts: &Facts) -> Self {
        let nr_sectors = usize::try_from(facts.limits.capacity_sectors).expect("a world's device is small");
        let zero = Version { value: 0, since: 0, is_certain: true, is_durable: true };
        Self {
            limits: facts.limits,
            now: 0,
            operations: Book::new(),
            owners: Owners::new(),
            offers: Offers::new(),
            runs: Runs::new(),
            flushes: Table::new(),
            flushed: 0,
            // Without a cache everything that is written survives.
            promised: if facts.limits.write_cache { 0 } else { u64::MAX },
            sectors: vec![Versions { list: vec![zero], is_vague: false }; nr_sectors],
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        let wants = asked.op == Op::Flush || asked.flags.preflush || asked.flags.fua;
        if wants && asked.op != Op::Read && parts(&self.limits, &asked, pieces).is_ok() {
            self.operations.begin(bio, Operation { submitter, asked, submitted: self.now, written: 0 });
            if asked.op != Op::Flush {
                self.owners.begin(bio, &asked);
            }
        }
    }

    /// Removes an operation from the tables.
    fn end_one(&mut self, bio: u64) -> Option<Operation> {
        let operation = self.operations.end(bio)?;
        self.owners.end(bio, &operation.asked);
        Some(operation)
    }

    fn reaped(&mut self, bio: u64, status: Status) -> Result<(), Violation> {
        let Some(Operation { asked, submitted, written, .. }) = self.end_one(bio) else { return Ok(()) };
        if !status.is_ok() || !self.limits.write_cache {
            return Ok(());
        }
        let flushes = asked.op == Op::Flush || asked.flags.preflush;
        let what = if flushes && self.flushed < submitted {
            "no flush began after it was submitted and went well"
        } else if asked.op != Op::Flush && asked.flags.fua && !self.limits.fua && self.flushed < written {
            "no flush began after its data was written and went well"
        } else {
            if flushes {
                self.promised = self.promised.max(submitted);
            }
            if asked.op != Op::Flush && asked.flags.fua {
                self.keep(&asked);
            }
            return Ok(());
        };
        Err(Violation::new(RULE, format!("operation {bio} is over, and {what}")).bio(bio))
    }

    /// The contents that were last written to the operation's sectors must survive.
    fn keep(&mut self, asked: &Asked) {
        for versions in &mut self.sectors[places(asked.sector, asked.nr_sectors)] {
            if let Some(version) = versions.list.last_mut() {
                version.is_durable = true;
            }
        }
    }

    fn offered(&mut self, rq: RqId, op: Op) -> Result<(), Violation> {
        if op == Op::Flush {
            *self.flushes.entry(rq) = Some((rq, self.now));
            return Ok(());
        }
        for &(first, _, _) in self.runs.get(rq) {
            let Some(bio) = self.owners.of(first) else { continue };
            let Some(Operation { asked, submitted, .. }) = self.operations.get(bio) else { continue };
            if asked.flags.preflush && self.limits.write_cache && self.flushed < *submitted {
                let what = format!("the data of operation {bio} is offered before the flush that it asked for");
                return Err(Violation::new(RULE, what).bio(bio).request(rq));
            }
        }
        Ok(())
    }

    fn ended(&mut self, rq: RqId, op: Op, status: Status) {
        if op == Op::Flush {
            if let Some(begun) = self.flushes.get(rq).filter(|_| status.is_ok()) {
                self.flushed = self.flushed.max(*begun);
            }
            return;
        }
        for &(first, nr_sectors, value) in self.runs.get(rq) {
            let owner = self.owners.of(first).and_then(|bio| self.operations.get_mut(bio));
            if let Some(operation) = owner {
                operation.written = self.now;
            }
            let is_certain = status.is_ok();
            let version = Version { value, since: self.now, is_certain, is_durable: false };
            for versions in &mut self.sectors[places(first, nr_sectors.into())] {
                versions.push(version, self.promised);
            }
        }
    }

    fn power_lost(&mut self, content: &[u64]) -> Result<(), Violation> {
        let now = self.now;
        // Requests that the device works on may have changed any part of their sectors.
        let begun: Vec<RqId> = self.offers.begun().map(|(rq, _)| rq).collect();
        for rq in begun {
            for &(first, nr_sectors, value) in self.runs.get(rq) {
                let version = Version { value, since: now, is_certain: false, is_durable: false };
                let sectors = &mut self.sectors[places(first, nr_sectors.into())];
                sectors.iter_mut().for_each(|versions| versions.push(version, self.promised));
            }
        }
        for ((sector, versions), held) in (0_u64..).zip(&mut self.sectors).zip(content) {
            versions.prune(self.promised);
            let may_be = versions.is_vague || versions.list.iter().any(|version| version.value == *held);
            if !may_be {
                let promised: Vec<u64> = versions.list.iter().map(|version| version.value).collect();
                let what = format!("sector {sector} lost its power and holds {held}, not one of {promised:?}");
                return Err(Violation::new(RULE, what).bio(*held).bio(promised[0]));
            }
            versions.list.clear();
            versions.list.push(Version { value: *held, since: now, is_certain: true, is_durable: true });
            versions.is_vague = false;
        }
        Ok(())
    }
}

impl Checker for Flush {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.now += 1;
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Reaped { bio, status, .. } => return self.reaped(bio, status),
            Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => _ = self.end_one(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.end_one(bio));
            }
            Event::Offered { rq, op, .. } => {
                self.offers.see(event);
                self.runs.see(event);
                return self.offered(rq, op);
            }
            Event::Acted { rq, .. } => {
                if let Some((op, status)) = self.offers.see(event).map(|(offer, status)| (offer.op, status)) {
                    self.ended(rq, op, status);
                }
            }
            Event::PowerLost { content } => return self.power_lost(content),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Flags;

    use super::super::super::event::Action;
    use super::super::testing::*;
    use super::*;

    const PREFLUSH: Flags = Flags { preflush: true, ..Flags::NONE };
    const FUA: Flags = Flags { fua: true, ..Flags::NONE };

    fn with(limits: Limits) -> Told<Flush> {
        Told::new(Flush::new(&Facts { limits, ..FACTS }))
    }

    fn told() -> Told<Flush> {
        with(FACTS.limits)
    }

    fn write(bio: u64, flags: Flags) -> Event<'static> {
        submitted(bio, Asked { flags, ..asked(Op::Write, 0, 1) })
    }

    const fn flush(bio: u64) -> Event<'static> {
        let priority = blkmq_virtual::IoPriority { class: blkmq_sched::Class::BestEffort, level: 4 };
        let asked = Asked { op: Op::Flush, sector: 0, nr_sectors: 0, flags: Flags::NONE, priority, group: 0 };
        Event::Submitted { submitter: 1, bio, asked, pieces: &[] }
    }

    fn over(bio: u64) -> Event<'static> {
        reaped(bio, id(1, 0, 0), Status::Ok)
    }

    /// Tells that the device writes an operation's sector.
    fn written(told: &mut Told<Flush>, bio: u64, status: Status) -> &mut Told<Flush> {
        let rq = id(1, 0, bio);
        told.good(offered(rq, Op::Write, 0, 1, &[bio])).good(started(rq)).good(completed(rq, status))
    }

    /// Tells that the device flushes.
    fn flushed(told: &mut Told<Flush>, status: Status) -> &mut Told<Flush> {
        let rq = id(0, 0, 0);
        told.good(offered(rq, Op::Flush, 0, 0, &[])).good(acted(rq, Action::FinishedAtOnce(status)))
    }

    /// Tells what is in the first sector when the power is back.
    fn lost(told: &mut Told<Flush>, held: u64) -> Result<(), Violation> {
        let mut content = vec![0; 1024];
        content[0] = held;
        told.tell(Event::PowerLost { content: &content })
    }

    #[test]
    fn a_flush_is_over_after_a_flush_of_the_device() {
        let mut told = told();
        flushed(told.good(flush(1)), Status::Ok).good(over(1));
        flushed(told.good(flush(2)), Status::Medium).bad(over(2), "no flush began after it was submitted");
        flushed(&mut told, Status::Ok).good(flush(3)).bad(over(3), "no flush began");
        let rq = id(0, 0, 1);
        told.good(offered(rq, Op::Flush, 0, 0, &[])).good(started(rq)).good(flush(4)).good(completed(rq, Status::Ok));
        told.bad(over(4), "no flush began");
        told.good(flush(5)).good(reaped(5, id(1, 0, 0), Status::Medium));
        with(Limits { write_cache: false, ..FACTS.limits }).good(flush(1)).good(over(1));
    }

    #[test]
    fn data_waits_for_the_flush_before_it() {
        let data = offered(id(1, 0, 0), Op::Write, 0, 1, &[1]);
        told().good(write(1, PREFLUSH)).bad(data, "before the flush that it asked for");
        let mut told = told();
        flushed(told.good(write(1, PREFLUSH)), Status::Ok).good(data);
        written(&mut told, 1, Status::Ok).good(over(1));
        with(Limits { write_cache: false, ..FACTS.limits }).good(write(1, PREFLUSH)).good(data);
    }

    #[test]
    fn what_is_to_be_durable_is_over_when_it_is() {
        let mut told = told();
        flushed(told.good(write(1, FUA)), Status::Ok);
        written(&mut told, 1, Status::Ok).bad(over(1), "after its data was written");
        written(told.good(write(2, FUA)), 2, Status::Ok);
        flushed(&mut told, Status::Ok).good(over(2));
        let mut told = with(Limits { fua: true, ..FACTS.limits });
        written(told.good(write(1, FUA)), 1, Status::Ok).good(over(1));
    }

    #[test]
    fn what_has_no_data_keeps_its_flags_too() {
        for op in [Op::Discard, Op::WriteZeroes] {
            let begin = |bio, flags| submitted(bio, Asked { flags, ..asked(op, 0, 8) });
            let rq = id(1, 0, 0);
            let data = || offered(rq, op, 0, 8, &[]);
            told().good(begin(1, PREFLUSH)).bad(data(), "before the flush that it asked for");
            let mut told = self::told();
            flushed(told.good(begin(1, PREFLUSH)), Status::Ok)
                .good(data())
                .good(completed(rq, Status::Ok))
                .good(over(1));
            flushed(told.good(begin(2, FUA)), Status::Ok).good(data()).good(completed(rq, Status::Ok));
            told.bad(over(2), "after its data was written").good(begin(3, FUA)).good(data());
            flushed(told.good(completed(rq, Status::Ok)), Status::Ok).good(over(3));
            let mut told = with(Limits { fua: true, ..FACTS.limits });
            written(&mut told, 9, Status::Ok).good(begin(4, FUA)).good(data()).good(completed(rq, Status::Ok));
            assert!(lost(told.good(over(4)), 9).is_err());
        }
    }

    #[test]
    fn what_was_flushed_survives() {
        let first = |status| {
            let mut told = told();
            written(told.good(write(1, Flags::NONE)), 1, status).good(flush(2));
            flushed(&mut told, Status::Ok).good(over(2));
            told
        };
        assert!(lost(&mut first(Status::Ok), 0).is_err_and(|broken| broken.what.contains("holds 0, not one of [1]")));
        assert_eq!(lost(&mut first(Status::Ok), 1), Ok(()));
        // A write that failed may or may not have reached the sector.
        assert_eq!(lost(&mut first(Status::Medium), 0), Ok(()));
        assert_eq!(lost(&mut first(Status::Medium), 1), Ok(()));
        for held in [1, 3] {
            let mut told = first(Status::Ok);
            written(told.good(write(3, Flags::NONE)), 3, Status::Ok).good(flush(4));
            assert_eq!(lost(&mut told, held), Ok(()));
            assert!(lost(&mut told, 4 - held).is_err());
        }
        let mut told = first(Status::Ok);
        told.good(write(3, Flags::NONE)).good(offered(id(1, 0, 3), Op::Write, 0, 1, &[3])).good(started(id(1, 0, 3)));
        assert_eq!(lost(&mut told, 3), Ok(()));
    }

    #[test]
    fn a_durable_write_survives_without_a_flush() {
        for write_cache in [true, false] {
            let mut told = with(Limits { fua: true, write_cache, ..FACTS.limits });
            let flags = if write_cache { FUA } else { Flags::NONE };
            written(told.good(write(1, flags)), 1, Status::Ok).good(over(1));
            written(told.good(write(2, Flags::NONE)), 2, Status::Medium).good(reaped(2, id(1, 0, 0), Status::Medium));
            assert!(lost(&mut told, 0).is_err());
            assert_eq!(lost(&mut told, 1), Ok(()));
        }
    }

    #[test]
    fn of_very_many_versions_the_oldest_are_forgotten() {
        let mut told = told();
        for bio in 1..=MOST_VERSIONS as u64 {
            written(told.good(write(bio, Flags::NONE)), bio, Status::Ok).good(over(bio));
        }
        assert_eq!(lost(&mut told, 0), Ok(()));
        assert!(lost(&mut told, 5).is_err());
    }
}
