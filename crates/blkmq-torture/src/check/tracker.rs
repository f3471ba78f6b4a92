//! Tracks what every checker asks about: the outstanding operations, the requests of the scheduler and of the device,
//! and the settings of the queue.
//!
//! The beginning of anything is tracked before the checkers see its event, and the end behind them. So a checker that
//! sees an operation reaped still finds the operation.

use std::collections::BTreeMap;
use std::ops::Range;

use blkmq_sched::{Info, Op, RqId, SchedDomain, Time};
use blkmq_virtual::driver::Topology;
use blkmq_virtual::{Limits, Locking, Status};

use super::super::event::{Action, Asked, Control, Event, Phase, Stamp};
use super::super::settings::orders_one_hctx;
use super::Facts;
use super::book::Book;
use super::depth_tokens::DepthTokens;
use super::parts::parts;
use super::table::{Table, is_flush};

/// An outstanding operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) submitter: u16,
    pub(super) asked: Asked,
    /// The number of requests that the operation is split into; 0 if the queue must reject it.
    pub(super) nr_parts: u64,
    /// No submitter will reap the operation.
    pub(super) is_forgotten: bool,
    /// When it was submitted, and the number of that event.
    pub(super) at: Stamp,
    pub(super) event: u64,
}

impl Operation {
    /// Whether the queue may take the operation.
    pub(super) const fn is_valid(&self) -> bool {
        self.nr_parts > 0
    }

    /// Whether the operation changes sectors. No two of these that are outstanding overlap.
    pub(super) const fn changes(&self) -> bool {
        self.is_valid() && !matches!(self.asked.op, Op::Read | Op::Flush)
    }

    /// The first sector after the operation.
    pub(super) const fn end(&self) -> u64 {
        self.asked.sector.saturating_add(self.asked.nr_sectors)
    }

    /// Whether the flush machine has work with the operation.
    pub(super) const fn needs_flush(&self, limits: &Limits) -> bool {
        let Asked { op, flags, .. } = self.asked;
        limits.write_cache && !matches!(op, Op::Read) && (flags.preflush || flags.fua && !limits.fua)
    }
}

/// First sector, length, and what each of these sectors then holds.
pub(super) type Run = (u64, u32, u64);

/// A request as a device was last offered it.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) op: Op,
    pub(super) hctx: u16,
    /// The time that the device was told.
    pub(super) now: Time,
    /// The device began the request, or finished it at once.
    pub(super) is_taken: bool,
    /// First sector and length of each range; none for a flush.
    pub(super) ranges: Vec<(u64, u32)>,
    /// What the request writes; nothing for a read and a flush.
    pub(super) runs: Vec<Run>,
    pub(super) stage: Stage,
}

impl Offer {
    pub(super) fn nr_sectors(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.1)).sum()
    }
}

/// How far a device has come with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The device was offered the request, and did not take it.
    Offered,
    /// The device works on the request.
    Begun,
    /// The device is done with the request, gave it back, or gave it up.
    Over,
}

/// A request that came into the scheduler, or bypassed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// The request as the scheduler got it. `None`: it bypassed the scheduler.
    pub(super) info: Option<Info>,
    /// Which of the scheduler's values it came into.
    pub(super) value: u16,
}

/// What is known of the world.
#[derive(Debug)]
pub(super) struct Tracker {
    pub(super) limits: Limits,
    pub(super) topology: Topology,
    pub(super) scheduler: Option<&'static str>,
    pub(super) locking: Locking,
    pub(super) bypass: bool,
    /// The knob `nr_requests`, if it was set.
    nr_requests: Option<u32>,
    /// The knob `iostats`, and the event at which it last changed or began to change.
    iostats: bool,
    iostats_changed: u64,
    /// Quiescences that have begun and not ended; and all other changes, freezes among them.
    pub(super) nr_quiesces: u32,
    pub(super) nr_changes: u32,
    /// The number of this event.
    pub(super) event: u64,
    operations: Book<Operation>,
    /// The number of outstanding operations of each class.
    pub(super) nr_of_class: [u64; 3],
    /// The operations that change sectors, by their first sector.
    owners: BTreeMap<u64, u64>,
    /// The operations that end by this event.
    pub(super) ending: Vec<u64>,
    offers: Table<Offer>,
    /// The request that the device ends by this event.
    pub(super) ended: Option<(RqId, Status)>,
    arrivals: Table<Arrival>,
    /// This event offers the device a request that comes from the flush machine.
    pub(super) is_flush_step: bool,
    /// This event offers the device, for the first time, a request that bypassed the scheduler.
    pub(super) is_bypass: bool,
    pub(super) tokens: DepthTokens,
}

impl Tracker {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            limits: facts.limits,
            topology: facts.topology,
            scheduler: None,
            locking: facts.locking,
            bypass: facts.bypass,
            nr_requests: facts.nr_requests,
            iostats: true,
            iostats_changed: 0,
            nr_quiesces: 0,
            nr_changes: 0,
            event: 0,
            operations: Book::new(),
            nr_of_class: [0; 3],
            owners: BTreeMap::new(),
            ending: Vec::new(),
            offers: Table::new(),
            ended: None,
            arrivals: Table::new(),
            is_flush_step: false,
            is_bypass: false,
            tokens: DepthTokens::new(),
        }
    }

    /// The value of `nr_requests`.
    pub(super) fn nr_requests(&self) -> u64 {
        let (set, depth) = (self.nr_requests.map(u64::from), u64::from(self.topology.depth));
        if self.scheduler.is_some() { set.unwrap_or(65536) } else { set.map_or(depth, |set| set.min(depth)) }
    }

    /// Whether each hardware queue has a value of the scheduler.
    pub(super) fn is_split(&self) -> bool {
        self.scheduler.is_some_and(orders_one_hctx)
    }

    /// The knob `iostats` since this event. `None`: it has changed since.
    pub(super) fn iostats_since(&self, event: u64) -> Option<bool> {
        (self.iostats_changed <= event).then_some(self.iostats)
    }

    pub(super) fn operation(&self, bio: u64) -> Option<&Operation> {
        self.operations.get(bio)
    }

    /// The outstanding operations that the queue may take, in the order of their numbers.
    pub(super) fn operations(&self) -> impl Iterator<Item = (u64, &Operation)> {
        self.operations.iter().filter(|(_, operation)| operation.is_valid())
    }

    /// The outstanding operation that changes a sector.
    pub(super) fn owner(&self, sector: u64) -> Option<(u64, &Operation)> {
        let (_, bio) = self.owners.range(..=sector).next_back()?;
        self.operations.get(*bio).filter(|operation| sector < operation.end()).map(|operation| (*bio, operation))
    }

    /// The outstanding operations that change some of these sectors.
    pub(super) fn owners(&self, sector: u64, nr_sectors: u32) -> impl Iterator<Item = (u64, &Operation)> {
        let first = self.owners.range(..=sector).next_back().map_or(sector, |(first, _)| *first);
        let known = self.owners.range(first..sector.saturating_add(nr_sectors.into()));
        let known = known.filter_map(|(_, bio)| Some((*bio, self.operations.get(*bio)?)));
        known.filter(move |(_, operation)| sector < operation.end())
    }

    pub(super) fn offer(&self, rq: RqId) -> Option<&Offer> {
        self.offers.get(rq)
    }

    /// The request that the device ends by this event, with its status.
    pub(super) fn ended(&self) -> Option<(RqId, &Offer, Status)> {
        let (rq, status) = self.ended?;
        Some((rq, self.offers.get(rq)?, status))
    }

    /// The requests at this stage.
    pub(super) fn offers(&self, stage: Stage) -> impl Iterator<Item = (RqId, &Offer)> {
        self.offers.iter().filter(move |(_, offer)| offer.stage == stage)
    }

    /// What is known of a request that came into the scheduler or bypassed it.
    pub(super) fn arrival(&self, rq: RqId) -> Option<&Arrival> {
        self.arrivals.get(rq)
    }

    /// The request as the scheduler got it.
    pub(super) fn info(&self, rq: RqId) -> Option<&Info> {
        self.arrivals.get(rq)?.info.as_ref()
    }

    /// The kind of a request that came into the scheduler.
    pub(super) fn kind(&self, rq: RqId) -> Option<SchedDomain> {
        self.info(rq).map(|info| SchedDomain::of(info.op))
    }

    /// Whether the device was offered a later request of the same slot.
    pub(super) fn is_offer_past(&self, rq: RqId) -> bool {
        self.offers.is_past(rq)
    }

    /// Follows an event before the checkers see it.
    pub(super) fn begin(&mut self, at: Stamp, event: &Event<'_>) {
        self.event += 1;
        (self.ended, self.is_flush_step, self.is_bypass) = (None, false, false);
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => {
                let nr_parts = parts(&self.limits, &asked, pieces).unwrap_or(0);
                let operation = Operation { submitter, asked, nr_parts, is_forgotten: false, at, event: self.event };
                if operation.changes() {
                    self.owners.insert(asked.sector, bio);
                }
                if self.operations.begin(bio, operation) {
                    self.nr_of_class[asked.priority.class.index()] += 1;
                }
            }
            Event::Forgotten { bio, .. } => {
                if let Some(operation) = self.operations.get_mut(bio) {
                    operation.is_forgotten = true;
                }
            }
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => {
                self.ending.push(bio);
            }
            Event::Left { submitter, .. } => {
                self.ending = self.operations.those(|operation| operation.submitter == submitter);
            }
            Event::Installed { scheduler } => self.scheduler = scheduler,
            Event::Inserted { value, rq, info, .. } => {
                *self.arrivals.entry(rq) = Some((rq, Arrival { info: Some(info), value }));
            }
            Event::Offered { .. } => self.offered(event),
            Event::Acted { rq, action } => self.acted(rq, action),
            Event::Changed { control, phase } => self.changed(control, phase),
            _ => {}
        }
    }

    /// Follows an event that the checkers have seen.
    pub(super) fn end(&mut self, event: &Event<'_>) {
        for bio in self.ending.drain(..) {
            let Some(Operation { asked, .. }) = self.operations.end(bio) else { continue };
            self.nr_of_class[asked.priority.class.index()] -= 1;
            if self.owners.get(&asked.sector) == Some(&bio) {
                self.owners.remove(&asked.sector);
            }
        }
        let kind = match *event {
            Event::Chosen { rq, .. } => self.kind(rq),
            Event::Offered { op, .. } if self.is_bypass => Some(SchedDomain::of(op)),
            _ => None,
        };
        self.tokens.see(event, kind, self.nr_quiesces > 0);
    }

    fn offered(&mut self, event: &Event<'_>) {
        let Event::Offered { rq, hctx, op, sector, nr_sectors, ranges, data, now, .. } = *event else { return };
        let entry = self.offers.entry(rq);
        // The lists of the request that had this slot before are used again.
        let (mut kept, mut runs) =
            entry.take().map_or_else(Default::default, |(_, Offer { ranges, runs, .. })| (ranges, runs));
        kept.clear();
        runs.clear();
        match (op, ranges) {
            (Op::Flush, _) => {}
            (_, []) => kept.push((sector, nr_sectors)),
            (_, ranges) => kept.extend_from_slice(ranges),
        }
        match op {
            Op::Read | Op::Flush => {}
            Op::Write => {
                let mut at = sector;
                for own in data.chunk_by(|one, next| one == next) {
                    runs.push((at, own.len() as u32, own[0]));
                    at += own.len() as u64;
                }
            }
            Op::Discard | Op::WriteZeroes => runs.extend(kept.iter().map(|(sector, len)| (*sector, *len, 0))),
        }
        *entry = Some((rq, Offer { op, hctx, now, is_taken: false, ranges: kept, runs, stage: Stage::Offered }));
        let operation = data.first().map_or_else(|| self.owner(sector), |bio| Some((*bio, self.operation(*bio)?)));
        let needs_flush = operation.is_some_and(|(_, operation)| operation.needs_flush(&self.limits));
        self.is_flush_step = is_flush(rq) || needs_flush;
        self.is_bypass = self.scheduler.is_some() && self.arrivals.get(rq).is_none() && !self.is_flush_step;
        if self.is_bypass {
            *self.arrivals.entry(rq) = Some((rq, Arrival { info: None, value: 0 }));
        }
    }

    fn acted(&mut self, rq: RqId, action: Action) {
        let Some(offer) = self.offers.get_mut(rq).filter(|offer| offer.stage != Stage::Over) else { return };
        offer.is_taken |= matches!(action, Action::Started { .. } | Action::FinishedAtOnce(_));
        self.ended = match action {
            Action::Started { .. } => {
                offer.stage = Stage::Begun;
                return;
            }
            Action::Refused | Action::Stale | Action::WantsTime { .. } => return,
            Action::GivenBack => None,
            Action::FinishedAtOnce(status) | Action::Completed(status) => Some((rq, status)),
            Action::GaveUp => Some((rq, Status::Timeout)),
        };
        offer.stage = Stage::Over;
    }

    fn changed(&mut self, control: Control, phase: Phase) {
        match (control, phase) {
            (Control::Quiesce, Phase::Begun) => self.nr_quiesces += 1,
            (Control::Unquiesce, Phase::Done) => self.nr_quiesces -= 1,
            (Control::Quiesce | Control::Unquiesce, _)
            | (Control::Freeze, Phase::Done)
            | (Control::Thaw, Phase::Begun) => {}
            (_, Phase::Begun) => self.nr_changes += 1,
            (_, Phase::Done | Phase::Refused) => self.nr_changes -= 1,
        }
        match (control, phase) {
            (Control::QueueKnob("iostats", value), phase) => {
                self.iostats_changed = self.event;
                if phase == Phase::Done {
                    self.iostats = value != 0;
                }
            }
            (Control::Locking(locking), Phase::Done) => self.locking = locking,
            (Control::Bypass(bypass), Phase::Done) => self.bypass = bypass,
            (Control::NrRequests(nr_requests), Phase::Done) => self.nr_requests = Some(nr_requests),
            (Control::Topology(default_queues, read_queues, poll_queues), Phase::Done) => {
                self.topology = Topology { default_queues, read_queues, poll_queues, ..self.topology };
            }
            _ => {}
        }
    }
}

/// The indices of these sectors in a list of all sectors.
pub(super) fn sectors(first: u64, nr_sectors: u64) -> Range<usize> {
    first as usize..(first + nr_sectors) as usize
}
