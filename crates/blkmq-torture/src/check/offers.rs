//! Requests that a device was offered, until the device is done with them.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::Status;

use super::super::event::{Action, Event};
use super::table::Table;

/// A request as a device was offered it.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) op: Op,
    pub(super) hctx: u16,
    /// First sector and length of each range; none for a flush.
    pub(super) ranges: Vec<(u64, u32)>,
    pub(super) stage: Stage,
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

/// The requests of a device.
#[derive(Debug)]
pub(super) struct Offers(Table<Offer>);

impl Offers {
    pub(super) const fn new() -> Self {
        Self(Table::new())
    }

    /// Follows an event. Returns the request that the event ends, with its status.
    pub(super) fn see(&mut self, event: &Event<'_>) -> Option<(&Offer, Status)> {
        match *event {
            Event::Offered { rq, hctx, op, sector, nr_sectors, ranges, .. } => {
                let entry = self.0.entry(rq);
                // The list of ranges of the request that had this slot before is used again.
                let mut kept = entry.take().map_or_else(Vec::new, |(_, offer)| offer.ranges);
                kept.clear();
                match (op, ranges) {
                    (Op::Flush, _) => {}
                    (_, []) => kept.push((sector, nr_sectors)),
                    (_, ranges) => kept.extend_from_slice(ranges),
                }
                *entry = Some((rq, Offer { op, hctx, ranges: kept, stage: Stage::Offered }));
                None
            }
            Event::Acted { rq, action } => {
                let offer = self.0.get_mut(rq).filter(|offer| offer.stage != Stage::Over)?;
                let status = match action {
                    Action::Started { .. } => {
                        offer.stage = Stage::Begun;
                        return None;
                    }
                    Action::Refused | Action::Stale | Action::WantsTime { .. } => return None,
                    Action::GivenBack => {
                        offer.stage = Stage::Over;
                        return None;
                    }
                    Action::FinishedAtOnce(status) | Action::Completed(status) => status,
                    Action::GaveUp => Status::Timeout,
                };
                offer.stage = Stage::Over;
                Some((offer, status))
            }
            _ => None,
        }
    }

    pub(super) fn get(&self, rq: RqId) -> Option<&Offer> {
        self.0.get(rq)
    }

    /// The requests that the device refused, which keep their tags.
    pub(super) fn refused(&self) -> impl Iterator<Item = (RqId, &Offer)> {
        self.0.iter().filter(|(_, offer)| offer.stage == Stage::Offered)
    }

    /// The requests that the device works on.
    pub(super) fn begun(&self) -> impl Iterator<Item = (RqId, &Offer)> {
        self.0.iter().filter(|(_, offer)| offer.stage == Stage::Begun)
    }
}
