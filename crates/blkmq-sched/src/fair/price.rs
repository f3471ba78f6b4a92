//! When it is measured what requests of one client cost beside those of another.
//!
//! [`Costs`](crate::limiter::Costs) tell directions and sizes apart only where the limiter has seen them one after the
//! other. A device may do twice as many reads as writes, or have them in a cache. So while clients with unlike requests
//! compete, each in turn is served exclusively for some milliseconds. What goes to the device then takes that time, and
//! the client is charged by it from then on ([`tariff`](super::tariff)). A share is a part of the device's time: what a
//! client gets, over what it would get alone. Start tags even out what the others missed meanwhile. Clients with few
//! operations outstanding go on as before.
//!
//! Nobody waits long for that. A turn ends after [`LONGEST`] nanoseconds, and where it would need more, on a slow
//! device, what is predicted stays. After each turn all go by their start tags for as long as it took. In its turn a
//! client is charged by the time that passes, and so waits until the others have caught up. Where this would take
//! longer than [`LONGEST_DEBT`] the client has no turn. What clients get in a round says nothing of shares.
//!
//! What goes to the device counts, and not what clients asked for: operations that were merged go as one request. A
//! flush that bypasses the scheduler takes time in which its client's requests do not go, and makes them dearer.

use alloc::vec::Vec;

use super::Fair;
use super::client::Client;
use super::lead::Verdict;
use super::mix::Counts;
use super::tariff::{Measurement, Tariff};
use crate::limiter::Costs;
use crate::limiter::scale::{MS, SECOND};
use crate::slab::Index;
use crate::{Class, Fairness, Time, Usage};

/// In so many windows in a row nobody was below its due: then the device has what it needs.
const STEADY: u32 = 4;

/// Nanoseconds: how long one client is served exclusively at most. First the device works off what it has from others,
/// for so long at least, and then the client's operations count, for so long at least.
const LONGEST: u64 = 200 * MS;
const SETTLE: u64 = 5 * MS;
const COUNTS: u64 = 20 * MS;

/// Nanoseconds over share: by what is done in so many a turn raises a client's tag at most.
const LONGEST_DEBT: u64 = SECOND;

/// How many operations of others the device may have from before, and how many of the client tell a rate.
const IN_DEVICE: u64 = 32;
const ENOUGH: u64 = 64;

/// Nanoseconds: from one round to the next, at first and at most.
const SHORTEST_PERIOD: u64 = SECOND;
const LONGEST_PERIOD: u64 = 320 * SECOND;

/// How many unlike clients have a turn in a round.
const MOST: usize = 8;

/// A cost that changes by more than this factor was not learned, but begins anew.
const ANEW: f64 = 4.0;

/// A round is void if others got so many times what the client got whose turn it is.
const MOST_OF_OTHERS: f64 = 0.2;

/// One client is served exclusively.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    place: u16,
    flow: Index,
    began: Time,
    /// What completes since then counts.
    counts_from: Time,
    /// The time until then was charged, and by how much in all.
    charged_until: Time,
    charged: f64,
    /// What a nanosecond is worth: [`Prices::rate`].
    rate: f64,
    /// The last report before the present one.
    reported: Time,
    ns: u64,
    /// The requests of the client that went, its operations that are over, and those of others.
    pub(super) went: Counts,
    done: Counts,
    others: Counts,
}

impl Probe {
    /// Returns by how much a request that is dispatched now raises the tag of its flow: the prediction until the device
    /// has worked off what it had, and then the worth of the time since the last one.
    pub(super) fn charge(&mut self, predicted: u64, over_share: f64, now: Time) -> u64 {
        let ns = now.since(self.charged_until);
        self.charged_until = self.charged_until.after(ns);
        let by_time = if now < self.counts_from { predicted as f64 } else { ns as f64 * self.rate * over_share };
        let charge = by_time.min(LONGEST_DEBT as f64 * self.rate - self.charged).max(0.0);
        self.charged += charge;
        charge as u64
    }
}

/// Rounds in which clients are served exclusively, in turn.
#[derive(Debug, Clone)]
pub(super) struct Prices {
    probe: Option<Probe>,
    /// Between two turns, and for a while after the last one, all go by their start tags: until when, and the place
    /// from which on the next client is looked for, if the round goes on.
    pause: Option<(Time, Option<u16>)>,
    /// What was measured in this round, and of which client.
    measured: Vec<(u16, Measurement)>,
    /// In how many windows in a row nobody was below its due.
    steady: u32,
    /// When the last round ended, and when the next one begins.
    ended: Time,
    next_round: Time,
    period: u64,
    /// How long an operation took on average, one after the other, in nanoseconds.
    each: u64,
    /// The cost that was done in a nanosecond, in nanoseconds. Times are worth so much beside the costs that clients
    /// without a tariff are charged.
    rate: f64,
}

impl Prices {
    pub(super) fn new() -> Self {
        let (measured, period) = (Vec::with_capacity(MOST), SHORTEST_PERIOD);
        Self {
            probe: None,
            pause: None,
            measured,
            steady: 0,
            ended: Time(0),
            next_round: Time(0),
            period,
            each: 0,
            rate: 1.0,
        }
    }

    /// The flow of the client that is served exclusively.
    pub(super) fn subject(&self) -> Option<Index> {
        self.probe.map(|probe| probe.flow)
    }

    /// Whether what clients get now depends on a round.
    pub(super) fn disturb(&self) -> bool {
        self.probe.is_some() || self.pause.is_some()
    }

    /// The turn of a flow, if it is served exclusively.
    #[inline]
    pub(super) fn probe_of(&mut self, flow: Index) -> Option<&mut Probe> {
        self.probe.as_mut().filter(|probe| probe.flow == flow)
    }

    /// A client leaves.
    pub(super) fn forget(&mut self, place: u16) {
        self.measured.retain(|(of, _)| *of != place);
        if let Some(probe) = self.probe.filter(|probe| probe.place == place) {
            self.abandon(probe.reported);
        }
    }

    /// The round ends at once, and nothing was measured.
    fn abandon(&mut self, now: Time) {
        (self.probe, self.pause, self.steady) = (None, None, 0);
        (self.ended, self.next_round) = (now, now.after(self.period));
    }
}

impl Fair {
    /// Looks at the end of a window whether requests of unlike clients are to be priced.
    pub(super) fn price(&mut self, fairness: Fairness, verdict: &Verdict, now: Time) {
        let &Verdict { is_ordered, each, rate, .. } = verdict;
        // Clients with few operations outstanding are always below their due.
        let is_unfair = self.clients.iter().any(|client| client.is_hungry && client.usage.is_below_due());
        let is_steady = is_ordered && !(fairness == Fairness::Violated && is_unfair) && rate > 0.0;
        self.prices.steady = if is_steady { self.prices.steady.saturating_add(1) } else { 0 };
        (self.prices.each, self.prices.rate) = (each, rate);
        let mixes = || self.clients.iter().filter(|client| client.is_hungry).filter_map(|client| client.mix);
        let are_alike = mixes().next().is_none_or(|first| mixes().all(|mix| mix.is_like(&first)));
        if are_alike {
            // What is alike costs the same.
            let hungry = || self.clients.iter().filter(|client| client.is_hungry);
            let known = hungry().find_map(|client| client.pricing.like(&client.mix?));
            for client in self.clients.iter_mut().filter(|client| client.is_hungry) {
                match &known {
                    Some(known) => client.pricing.take(known, &self.costs),
                    None => client.pricing.charge_as_predicted(),
                }
            }
            return;
        }
        let is_covered = |client: &Client| {
            client
                .mix
                .is_none_or(|mix| client.pricing.covers(&mix) || client.tried.is_some_and(|tried| tried.is_like(&mix)))
        };
        if self.clients.iter().any(|client| client.is_hungry && !is_covered(client)) {
            self.prices.period = SHORTEST_PERIOD;
            self.prices.next_round = self.prices.next_round.min(self.prices.ended.after(SHORTEST_PERIOD));
        }
        let fits = each.saturating_mul(IN_DEVICE + ENOUGH) <= LONGEST;
        if fits && !self.prices.disturb() && self.prices.steady >= STEADY && now >= self.prices.next_round {
            self.prices.measured.clear();
            self.next_subject(0, now);
        }
    }

    /// Begins the turn of the next hungry client from this place on that is unlike those before it. Without one the
    /// round ends.
    fn next_subject(&mut self, from: u16, now: Time) {
        let measured = &self.prices.measured;
        let settle = self.prices.each.saturating_mul(IN_DEVICE).max(SETTLE);
        let turn = settle + self.prices.each.saturating_mul(ENOUGH).max(COUNTS);
        let catches_up = |client: &Client| {
            let is_active = self.flows.get(client.flows[Class::BestEffort.index()]).is_active;
            is_active && turn as f64 * self.over_share(client, Class::BestEffort) <= LONGEST_DEBT as f64
        };
        let is_next = |client: &Client| {
            client.is_hungry
                && catches_up(client)
                && client.mix.is_some_and(|mix| measured.iter().all(|(_, known)| !known.mix.is_like(&mix)))
                && measured.len() < MOST
        };
        let mut places = from..self.clients.nr_places();
        let Some(place) = places.find(|place| self.clients.joined(*place).is_some_and(is_next)) else {
            self.end_round(now);
            return;
        };
        self.prices.probe = Some(Probe {
            place,
            flow: self.clients.get(place).flows[Class::BestEffort.index()],
            began: now,
            counts_from: now.after(settle),
            charged_until: now.after(settle),
            charged: 0.0,
            rate: self.prices.rate,
            reported: now,
            ns: 0,
            went: Counts::default(),
            done: Counts::default(),
            others: Counts::default(),
        });
    }

    fn end_round(&mut self, now: Time) {
        let prices = &mut self.prices;
        (prices.ended, prices.next_round) = (now, now.after(prices.period));
        prices.period = (2 * prices.period).min(LONGEST_PERIOD);
        for place in 0..self.clients.nr_places() {
            let measured = &self.prices.measured;
            let Some(client) = self.clients.joined(place).filter(|client| client.is_hungry) else { continue };
            let tried = client.mix;
            let own = measured.iter().find(|(of, _)| *of == place);
            let alike = || measured.iter().find(|(_, known)| client.mix.is_some_and(|mix| known.mix.is_like(&mix)));
            if let Some((_, measurement)) = own.or_else(alike).copied() {
                self.clients.get_mut(place).pricing.note(&measurement, &self.costs);
            }
            self.clients.get_mut(place).tried = tried;
        }
    }

    /// Takes other costs. If they begin anew, what was measured beside the old ones says nothing.
    pub(super) fn take_costs(&mut self, costs: Costs) {
        let pairs = self.costs.by_kind().into_iter().zip(costs.by_kind());
        let begin_anew = pairs.into_iter().any(|(old, new)| !(1.0 / ANEW..=ANEW).contains(&(new / old)));
        self.costs = costs;
        if begin_anew {
            self.prices.measured.clear();
            self.prices.abandon(self.prices.ended);
            self.clients.forget_prices();
        }
    }

    /// The flow that goes next, if `first` is the one with the least start tag: an exclusive client's flow goes before
    /// those of other hungry clients. If it often has nothing waiting it does not fill the device, and what it gets is
    /// no price.
    pub(super) fn exclusive_or(&self, first: Index) -> Index {
        let Some(subject) = self.prices.subject() else { return first };
        let has_rival = self.clients.get(self.flows.get(first).client).is_hungry;
        if has_rival && !self.flows.get(subject).is_idle() { subject } else { first }
    }

    /// What clients got since the last report, while one of them is served exclusively.
    pub(super) fn note_exclusive(&mut self, usage: &[Usage], now: Time) {
        if let Some((until, from)) = self.prices.pause.filter(|(until, _)| *until <= now) {
            debug_assert!(self.prices.probe.is_none(), "a turn is no pause: {until:?}");
            self.prices.pause = None;
            if let Some(from) = from {
                self.next_subject(from, now);
            }
            return;
        }
        let Some(probe) = &mut self.prices.probe else { return };
        let turn = now.since(probe.began);
        let since = core::mem::replace(&mut probe.reported, now);
        if since < probe.counts_from && turn < LONGEST {
            probe.went = Counts::default();
            return;
        }
        probe.ns += now.since(since);
        let subject = self.clients.get(probe.place).id();
        for of_thread in usage {
            let counts = if of_thread.client == subject { &mut probe.done } else { &mut probe.others };
            counts.add_usage(of_thread);
        }
        // Without a report for long, the queue stood still.
        let is_enough = probe.ns >= COUNTS && probe.done.operations() >= ENOUGH as f64 && turn < 2 * LONGEST;
        if !is_enough && turn < LONGEST {
            return;
        }
        let Probe { place, ns, went, done, others, .. } = *probe;
        (self.prices.probe, self.prices.pause) = (None, Some((now.after(turn), None)));
        let [went_cost, done_cost, others] = [went, done, others].map(|of| Tariff::predicted(&self.costs).sum(&of));
        if !is_enough || others > MOST_OF_OTHERS * done_cost {
            // What is measured in one round holds beside the rest of it.
            self.prices.measured.clear();
            self.end_round(now);
            return;
        }
        self.clients.get_mut(place).pricing.note_merged(went_cost, done_cost);
        let measurement = Measurement::new(&went, ns as f64 * self.prices.rate, &self.costs);
        self.prices.measured.extend(measurement.map(|measurement| (place, measurement)));
        self.prices.pause = Some((now.after(turn), Some(place + 1)));
    }
}
