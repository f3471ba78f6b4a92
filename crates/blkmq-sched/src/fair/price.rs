//! What requests of one client cost beside those of another.
//!
//! [`Costs`](crate::limiter::Costs) tell directions and sizes apart only where the limiter has seen them one after the
//! other. A device may do twice as many reads as writes, or have them in a cache. So while clients with unlike requests
//! compete, each in turn goes alone for some milliseconds. The device's rate then, in predicted cost, is what one
//! nanosecond of the device is worth to this client, and its requests are charged by it from then on. A share is a part
//! of the device's time: what a client gets, over what it would get alone. Start tags even out what the others missed
//! meanwhile. Clients with few operations outstanding go on as before.

use alloc::vec::Vec;

use super::Fair;
use super::client::Client;
use super::mix::Mix;
use crate::limiter::scale::{MS, SECOND};
use crate::slab::Index;
use crate::{Class, Fairness, Time, Usage};

/// In so many windows in a row nobody lacked anything: then the device has what it needs.
const STEADY: u32 = 4;

/// Nanoseconds: how long one client goes alone at least and at most, and how long before that the device works off what
/// it has from others, at least. So many operations tell a rate sooner.
const ALONE: u64 = 20 * MS;
const LONGEST: u64 = 200 * MS;
const SETTLE: u64 = 5 * MS;
const ENOUGH: u64 = 64;

/// How many operations of others the device may have from before.
const IN_DEVICE: u64 = 32;

/// Nanoseconds: from one round to the next, at first and at most.
const SHORTEST_PERIOD: u64 = SECOND;
const LONGEST_PERIOD: u64 = 320 * SECOND;

/// How many unlike clients go alone in a round.
const MOST: usize = 8;

/// A round is void if others got so many times what the client got that goes alone.
const MOST_OF_OTHERS: f64 = 0.2;

/// Prices are between these.
const LEAST_PRICE: f64 = 0.02;
const MOST_PRICE: f64 = 50.0;

/// One client goes alone.
#[derive(Debug, Clone, Copy)]
struct Probe {
    place: u16,
    flow: Index,
    /// What completes since then counts.
    counts_from: Time,
    /// The last report before the present one.
    reported: Time,
    ns: u64,
    operations: u64,
    /// The cost of what the client got, and of what others got.
    got: f64,
    others: f64,
}

/// Rounds in which clients go alone.
#[derive(Debug, Clone)]
pub(super) struct Prices {
    probe: Option<Probe>,
    /// What was measured in this round.
    measured: Vec<(Mix, f64)>,
    /// In how many windows in a row nobody lacked anything.
    steady: u32,
    next_round: Time,
    period: u64,
    /// How long an operation took on average, one after the other, in nanoseconds.
    each: u64,
}

impl Prices {
    pub(super) fn new() -> Self {
        let (measured, period) = (Vec::with_capacity(MOST), SHORTEST_PERIOD);
        Self { probe: None, measured, steady: 0, next_round: Time(0), period, each: 0 }
    }

    /// The flow of the client that goes alone.
    pub(super) fn subject(&self) -> Option<Index> {
        self.probe.map(|probe| probe.flow)
    }

    /// The client that goes alone leaves.
    pub(super) fn abandon(&mut self) {
        self.probe = None;
    }
}

impl Fair {
    /// Looks at the end of a window whether requests of unlike clients are to be priced.
    pub(super) fn price(&mut self, fairness: Fairness, is_ordered: bool, each: u64, now: Time) {
        let is_steady = is_ordered && fairness != Fairness::Violated;
        self.prices.steady = if is_steady { self.prices.steady.saturating_add(1) } else { 0 };
        self.prices.each = each;
        let mixes = || self.clients.iter().filter(|client| client.is_hungry).filter_map(|client| client.mix);
        let are_alike = mixes().next().is_none_or(|first| mixes().all(|mix| mix.is_like(&first)));
        if are_alike {
            // What is alike costs the same.
            let hungry = || self.clients.iter().filter(|client| client.is_hungry);
            let known = hungry().find(|client| client.is_priced() && client.has_price).map(|client| client.price);
            let hungry = self.clients.iter_mut().filter(|client| client.is_hungry);
            hungry.for_each(|client| client.take_price(known));
            (self.prices.period, self.prices.next_round) = (SHORTEST_PERIOD, now);
            return;
        }
        let has_new = self.clients.iter().any(|client| client.is_hungry && !client.is_priced());
        if has_new {
            self.prices.period = SHORTEST_PERIOD;
            self.prices.next_round = self.prices.next_round.min(now.after(SHORTEST_PERIOD));
        }
        if self.prices.probe.is_none() && self.prices.steady >= STEADY && now >= self.prices.next_round {
            self.prices.measured.clear();
            self.clients.iter_mut().filter(|client| client.is_hungry).for_each(Client::begin_pricing);
            self.next_subject(0, now);
        }
    }

    /// The next hungry client from this place on goes alone that is unlike those before it. Without one the round ends.
    fn next_subject(&mut self, from: u16, now: Time) {
        let measured = &self.prices.measured;
        let is_next = |client: &Client| {
            client.is_hungry
                && client.mix.is_some_and(|mix| measured.iter().all(|(known, _)| !known.is_like(&mix)))
                && measured.len() < MOST
        };
        let mut places = from..self.clients.nr_places();
        let Some(place) = places.find(|place| self.clients.joined(*place).is_some_and(is_next)) else {
            self.end_round(now);
            return;
        };
        // A window may contain a pause.
        let settle = self.prices.each.saturating_mul(IN_DEVICE).clamp(SETTLE, LONGEST);
        self.prices.probe = Some(Probe {
            place,
            flow: self.clients.get(place).flows[Class::BestEffort.index()],
            counts_from: now.after(settle),
            reported: now,
            ns: 0,
            operations: 0,
            got: 0.0,
            others: 0.0,
        });
    }

    fn end_round(&mut self, now: Time) {
        let prices = &mut self.prices;
        prices.probe = None;
        prices.next_round = now.after(prices.period);
        prices.period = (2 * prices.period).min(LONGEST_PERIOD);
        for client in self.clients.iter_mut().filter(|client| client.is_hungry) {
            let price = client.mix.and_then(|mix| prices.measured.iter().find(|(known, _)| known.is_like(&mix)));
            if let Some((_, price)) = price {
                client.note_price(*price);
            }
        }
    }

    /// The flow that goes next, if `first` is the one with the least start tag: while a client goes alone its flow goes
    /// before those of other hungry clients. If it often has nothing waiting it does not fill the device, and what it
    /// gets is no price.
    pub(super) fn alone_or(&self, first: Index) -> Index {
        let Some(subject) = self.prices.subject() else { return first };
        let has_rival = self.clients.get(self.flows.get(first).client).is_hungry;
        if has_rival && !self.flows.get(subject).is_idle() { subject } else { first }
    }

    /// What clients got since the last report, while one of them goes alone.
    pub(super) fn note_alone(&mut self, usage: &[Usage], now: Time) {
        let Some(probe) = &mut self.prices.probe else { return };
        let since = core::mem::replace(&mut probe.reported, now);
        if since < probe.counts_from {
            return;
        }
        probe.ns += now.since(since);
        let subject = self.clients.get(probe.place).id();
        for of_thread in usage {
            let got: f64 = self.costs.of_usage(of_thread).iter().sum();
            if of_thread.client == subject {
                probe.got += got;
                probe.operations += of_thread.operations.iter().sum::<u64>();
            } else {
                probe.others += got;
            }
        }
        if probe.ns < ALONE || probe.operations < ENOUGH && probe.ns < LONGEST {
            return;
        }
        let Probe { place, ns, got, others, .. } = *probe;
        if others > MOST_OF_OTHERS * got {
            // Prices hold beside each other, or not at all.
            self.prices.measured.clear();
            self.end_round(now);
            return;
        }
        if let Some(mix) = self.clients.get(place).mix {
            let price = (ns as f64 / got.max(1.0)).clamp(LEAST_PRICE, MOST_PRICE);
            self.prices.measured.push((mix, price));
        }
        self.next_subject(place + 1, now);
    }
}

impl Client {
    /// Takes the price of one that is alike; what is predicted if that has none.
    fn take_price(&mut self, price: Option<f64>) {
        self.priced = price.and(self.mix);
        (self.price, self.has_price) = (price.unwrap_or(1.0), price.is_some());
    }

    /// What it asks for now is to be priced.
    fn begin_pricing(&mut self) {
        self.has_price &= self.is_priced();
        self.priced = self.mix;
    }

    /// Whether the price of what it asks for was to be measured.
    fn is_priced(&self) -> bool {
        self.mix.zip(self.priced).is_some_and(|(mix, priced)| mix.is_like(&priced))
    }

    /// Its requests cost so many times what is predicted. Rates swing, so a price that was known counts as much.
    fn note_price(&mut self, price: f64) {
        self.price = if self.has_price { (self.price + price) / 2.0 } else { price };
        self.has_price = true;
    }
}
