//! Flushes keep their promises. When a flush is over, everything that had completed before the flush was submitted
//! survives a loss of power. A write, discard or write of zeroes that asks for a flush before it is offered only when
//! that flush is done. A write that asks to be durable (FUA) is over only when it is durable.
//!
//! Data is durable if a flush of the device has gone well that began after the data was written. If the device can
//! write past its cache, data that was written in this way is durable too.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId};
use blkmq_virtual::Status;

use super::super::event::{Asked, Event, Stamp};
use super::table::Table;
use super::tracker::{Operation, Stage, Tracker, sectors};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "flush";

/// How many versions of a sector are remembered. If there are more, any contents are accepted.
const MOST_VERSIONS: usize = 64;

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

/// This module's checker. Its times are numbers of events.
#[derive(Debug)]
pub(super) struct Flush {
    /// When the device finished the last of each operation's data.
    written: BTreeMap<u64, u64>,
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
            written: BTreeMap::new(),
            flushes: Table::new(),
            flushed: 0,
            // Without a cache everything that is written survives.
            promised: if facts.limits.write_cache { 0 } else { u64::MAX },
            sectors: vec![Versions { list: vec![zero], is_vague: false }; nr_sectors],
        }
    }

    fn reaped(&mut self, bio: u64, tracker: &Tracker) -> Verdict {
        let Some(&Operation { ref asked, event, .. }) = tracker.operation(bio).filter(|known| known.is_valid()) else {
            return Ok(());
        };
        let written = self.written.get(&bio).copied().unwrap_or(0);
        let (flushes, is_fua) =
            (asked.op == Op::Flush || asked.flags.preflush, asked.op != Op::Flush && asked.flags.fua);
        if asked.op == Op::Read || !tracker.limits.write_cache {
            return Ok(());
        }
        let what = if flushes && self.flushed < event {
            "no flush began after it was submitted and went well"
        } else if is_fua && !tracker.limits.fua && self.flushed < written {
            "no flush began after its data was written and went well"
        } else {
            if flushes {
                self.promised = self.promised.max(event);
            }
            if is_fua {
                self.keep(asked);
            }
            return Ok(());
        };
        Err(Violation::new(RULE, format!("operation {bio} is over, and {what}")).bio(bio))
    }

    /// The contents that were last written to the operation's sectors must survive.
    fn keep(&mut self, asked: &Asked) {
        for versions in &mut self.sectors[sectors(asked.sector, asked.nr_sectors)] {
            if let Some(version) = versions.list.last_mut() {
                version.is_durable = true;
            }
        }
    }

    fn offered(&mut self, rq: RqId, op: Op, tracker: &Tracker) -> Verdict {
        if op == Op::Flush {
            *self.flushes.entry(rq) = Some((rq, tracker.event));
            return Ok(());
        }
        let Some(offer) = tracker.offer(rq).filter(|_| tracker.limits.write_cache) else { return Ok(()) };
        let owners = offer.runs.iter().filter_map(|(first, ..)| tracker.owner(*first));
        match owners.into_iter().find(|(_, owner)| owner.asked.flags.preflush && self.flushed < owner.event) {
            None => Ok(()),
            Some((bio, _)) => {
                let what = format!("the data of operation {bio} is offered before the flush that it asked for");
                Err(Violation::new(RULE, what).bio(bio).request(rq))
            }
        }
    }

    fn ended(&mut self, tracker: &Tracker) {
        let Some((rq, offer, status)) = tracker.ended() else { return };
        if let Some(begun) = self.flushes.get(rq).filter(|_| offer.op == Op::Flush && status.is_ok()) {
            self.flushed = self.flushed.max(*begun);
        }
        for &(first, nr_sectors, value) in &offer.runs {
            if let Some((bio, _)) = tracker.owner(first) {
                self.written.insert(bio, tracker.event);
            }
            self.note(first, nr_sectors, value, tracker.event, status);
        }
    }

    /// These sectors now hold this, or may hold it if the status is an error.
    fn note(&mut self, first: u64, nr_sectors: u32, value: u64, since: u64, status: Status) {
        let version = Version { value, since, is_certain: status.is_ok(), is_durable: false };
        let sectors = &mut self.sectors[sectors(first, nr_sectors.into())];
        sectors.iter_mut().for_each(|versions| versions.push(version, self.promised));
    }

    fn power_lost(&mut self, content: &[u64], tracker: &Tracker) -> Verdict {
        // Requests that the device works on may have changed any part of their sectors.
        for (_, offer) in tracker.offers(Stage::Begun) {
            for &(first, nr_sectors, value) in &offer.runs {
                self.note(first, nr_sectors, value, tracker.event, Status::IoError);
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
            versions.list.push(Version { value: *held, since: tracker.event, is_certain: true, is_durable: true });
            versions.is_vague = false;
        }
        Ok(())
    }
}

impl Checker for Flush {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        let verdict = match *event {
            Event::Reaped { bio, status, .. } if status.is_ok() => self.reaped(bio, tracker),
            Event::Offered { rq, op, .. } => self.offered(rq, op, tracker),
            Event::PowerLost { content } => self.power_lost(content, tracker),
            _ => Ok(()),
        };
        self.ended(tracker);
        tracker.ending.iter().for_each(|bio| _ = self.written.remove(bio));
        verdict
    }
}
