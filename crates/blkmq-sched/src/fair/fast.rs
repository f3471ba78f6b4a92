//! Fast-path dispatch. Requests that come together while nothing waits, and leave together, need no tree, no list of
//! arrivals and no hash: the start tags of their few flows give the order.

use super::service::SEVERAL;
use super::{Fair, Plane};
use crate::direction::Direction;
use crate::mergeable::sort_apart;
use crate::scheduler::MAX_FAST_BATCH;
use crate::slab::Index;
use crate::{FastRequest, Op, Time};

/// The most flows of a batch.
const MOST_FLOWS: usize = 8;

/// What one flow has in a batch.
#[derive(Debug, Clone, Copy)]
struct Part {
    flow: Index,
    /// The places of its next request and of its last one; behind the last one there is none.
    next: Option<u8>,
    last: u8,
    nr_requests: u32,
    /// The start tag of the next request, and when the flow got it: among equal ones the earlier goes first.
    start: u64,
    tagged: usize,
    over_share: f64,
    served: u64,
}

/// The flows of a batch, and the request behind each one in its flow.
struct Parts {
    parts: [Option<Part>; MOST_FLOWS],
    behind: [Option<u8>; MAX_FAST_BATCH],
}

impl Parts {
    /// Adds the request in this place of the batch. Returns false if there are too many flows.
    #[inline]
    fn add(&mut self, flow: Index, place: u8) -> bool {
        for part in &mut self.parts {
            match part {
                Some(part) if part.flow == flow => {
                    self.behind[usize::from(part.last)] = Some(place);
                    part.last = place;
                    part.nr_requests += 1;
                    return true;
                }
                Some(_) => {}
                None => {
                    let next = Some(place);
                    let (start, tagged, over_share, served) = (0, usize::from(place), 1.0, 0);
                    *part = Some(Part { flow, next, last: place, nr_requests: 1, start, tagged, over_share, served });
                    return true;
                }
            }
        }
        false
    }

    /// The part whose request is next.
    #[inline]
    fn next(&mut self) -> Option<&mut Part> {
        let waiting = self.parts.iter_mut().map_while(Option::as_mut).filter(|part| part.next.is_some());
        waiting.min_by_key(|part| (part.start, part.tagged))
    }
}

impl Fair {
    /// Orders a batch, if nothing waits, nothing is held back, and each client is one that has asked before.
    #[inline]
    pub(super) fn order_fast(&mut self, batch: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        debug_assert_eq!(order.len(), batch.len(), "the order has a place for each request");
        let Some(FastRequest { info: like, .. }) = batch.first() else { return self.requests.len() == 0 };
        let (class, direction) = (like.priority.class, Direction::of(like.op));
        let is_simple = self.requests.len() == 0
            && batch.len() <= MAX_FAST_BATCH
            // Discards merge without touching each other, and a run by sector is no matter of tags.
            && matches!(like.op, Op::Read | Op::Write)
            && !self.rotational
            && !self.lead.holds()
            && self.prices.subject().is_none();
        if !is_simple || !sort_apart(batch, &mut [0; MAX_FAST_BATCH][..batch.len()]) {
            return false;
        }
        let mut parts = Parts { parts: [None; MOST_FLOWS], behind: [None; MAX_FAST_BATCH] };
        let is_known = (0..).zip(batch).all(|(place, request)| parts.add(self.flow_of(&request.info), place));
        if !is_known || parts.parts.iter().flatten().any(|part| !self.is_simple(part)) {
            return false;
        }

        self.begin_busy_period(class, now);
        let virtual_time = *self.planes[class.index()].virtual_time;
        for part in parts.parts.iter_mut().flatten() {
            self.activate(part.flow);
            part.start = self.flows.get(part.flow).finish.max(virtual_time);
        }
        self.retire(class, now);
        for part in parts.parts.iter_mut().flatten() {
            let client = self.clients.get(self.flows.get(part.flow).client);
            part.over_share = self.over_share(client, class);
        }

        let Self { planes, flows, clients, costs, .. } = self;
        let Plane { idle, virtual_time, last_finish, dispatched, .. } = &mut planes[class.index()];
        let behind = parts.behind;
        for (went, chosen) in order.iter_mut().enumerate() {
            let part = parts.next().expect("as many wait as there are places");
            let place = part.next.expect("it waits");
            let info = &batch[usize::from(place)].info;
            let cost = costs.of(info.op, info.nr_sectors);
            let charge = clients.of(info.client).cost(cost, info) * part.over_share;
            *chosen = place;
            **virtual_time = (**virtual_time).max(part.start);
            part.start = part.start.saturating_add(charge as u64);
            **last_finish = (**last_finish).max(part.start);
            (part.next, part.tagged) = (behind[usize::from(place)], MAX_FAST_BATCH + went);
            part.served += u64::from(cost);
            if part.next.is_none() {
                let flow = flows.get_mut(part.flow);
                (flow.finish, flow.start, flow.idle_since) = (part.start, part.start, now);
                flow.note_served(direction, part.served);
                idle.push_back(flows, part.flow);
            }
        }
        **dispatched = now;
        self.window.ordered += batch.len() as u64;
        true
    }

    /// Whether a flow with these requests is neither new nor about to take back what its client lends.
    fn is_simple(&self, part: &Part) -> bool {
        let flow = self.flows.get(part.flow);
        let client = self.clients.get(flow.client);
        !flow.is_new && (part.nr_requests < SEVERAL || !self.lends(client))
    }
}
