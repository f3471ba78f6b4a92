//! Whether each client gets what it is due, from sums of what clients got while their requests bypassed the scheduler.
//!
//! A client that had requests outstanding most of the time is *busy*, and *hungry* if there were several: it may want
//! more than it gets, and could use that at once.
//!
//! A client is due something only in windows in which it, or one of its name, was there from the beginning and is there
//! at the end. Others count with what they got: clients that come and go all the time start nothing, and hide nobody
//! ([`Departed`](super::client::Departed)).

use super::Fair;
use super::client::Client;
use super::group::Sum;
use super::lead::Verdict;
use super::mix::{Counts, Mix};
use super::tariff::Tariff;
use crate::limiter::scale::{ENOUGH_OF_CLIENTS, MS, SECOND};
use crate::{Class, Fairness, Time, Usage};

/// Nanoseconds: how long clients are watched before it is judged, at least and at most.
const SHORTEST: u64 = 50 * MS;
const LONGEST: u64 = SECOND;

/// The time in which clients are watched.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    began: Option<Time>,
    operations: u64,
    /// Operations whose requests were dispatched, or that were merged into some here.
    pub(super) ordered: u64,
    /// Reports until now.
    reports: u32,
    /// A client went alone in it, or others have not caught up yet.
    is_disturbed: bool,
}

impl Window {
    /// Whether clients are watched.
    pub(super) const fn is_open(&self) -> bool {
        self.began.is_some()
    }
}

impl Fair {
    pub(super) fn note_usage(&mut self, usage: &[Usage], now: Time) -> Fairness {
        self.window.is_disturbed |= self.prices.disturb();
        self.note_exclusive(usage, now);
        self.window.is_disturbed |= self.prices.disturb();
        let Some(began) = self.window.began else {
            self.begin_window(now);
            return Fairness::Unknown;
        };
        for of_thread in usage {
            let client = self.clients.of_mut(of_thread.client);
            let mut counts = Counts::default();
            counts.add_usage(of_thread);
            let got = client.value(&self.costs, &counts);
            let usage = &mut client.usage;
            usage.got += got;
            usage.counts.absorb(&counts);
            usage.outstanding = usage.outstanding.saturating_add(of_thread.outstanding);
            self.window.operations += of_thread.operations.iter().sum::<u64>();
        }
        self.window.reports += 1;
        for client in self.clients.watched_mut() {
            client.is_outstanding = client.usage.end_report();
        }
        self.clients.departed.unite();
        let ns = now.since(began);
        if ns < SHORTEST || self.window.operations < ENOUGH_OF_CLIENTS && ns < LONGEST {
            return Fairness::Unknown;
        }
        self.clients.reunite();
        if self.window.is_disturbed {
            self.begin_window(now);
            return Fairness::Unknown;
        }
        let predicted = Tariff::predicted(&self.costs);
        for client in self.clients.watched_mut() {
            let was_there = client.usage.is_whole && !client.has_left;
            client.usage.is_busy = was_there && 2 * client.usage.reports >= self.window.reports;
            client.mix = Mix::of(&client.usage.counts, predicted.by_kind(&client.usage.counts));
            client.is_hungry = client.is_paced();
        }
        let verdict = self.judge(ns);
        let fairness = self.fairness(&verdict, now);
        self.price(fairness, &verdict, now);
        self.pace(now);
        self.begin_window(now);
        fairness
    }

    fn begin_window(&mut self, now: Time) {
        self.window = Window { began: Some(now), ..Window::default() };
        self.clients.begin_window();
    }

    /// What each busy client was due in a window of so many nanoseconds, and what came of it.
    fn judge(&mut self, ns: u64) -> Verdict {
        let total: f64 = self.clients.in_window().map(|client| client.usage.got).sum();
        self.count(Sum::Window, |_| true);
        self.lend(total);
        self.discount(Sum::Window, |_| true);
        self.find_due(total);
        if !self.lead.is_on() {
            // Those for whom others are held back on trial are known by then.
            self.clients
                .iter_mut()
                .for_each(|client| client.was_below_due = client.is_paced() && client.usage.is_below_due());
        }
        let below_due = || self.clients.iter().filter(|client| client.was_below_due);
        Verdict {
            rate: total / ns as f64,
            below_due_rate: below_due().map(|client| client.usage.got).sum::<f64>() / ns as f64,
            is_below_due: below_due().count() > 0,
            is_ordered: 2 * self.window.ordered >= self.window.operations,
            each: ns / self.window.operations.max(1),
        }
    }

    /// Whether each busy client got what it was due, or others are held back.
    fn fairness(&mut self, verdict: &Verdict, now: Time) -> Fairness {
        let is_unfair = self.clients.iter().any(|client| client.usage.is_below_due());
        self.lead.judge(verdict, now);
        if self.lead.is_on() {
            Fairness::Enforced
        } else if is_unfair && !self.lead.is_resting(now) {
            Fairness::Violated
        } else {
            Fairness::Kept
        }
    }

    /// What each busy client is due of what all got. A class is due all that those above it left. Within a class a
    /// hungry client is due the share of its weight in use. One with few operations outstanding is due that of its
    /// weight, and lends what it does not use meanwhile.
    fn find_due(&mut self, total: f64) {
        let mut rest = total;
        for class in Class::ALL {
            let of_class = |client: &Client| client.class == class;
            self.count(Sum::Window, of_class);
            self.count(Sum::InUse, of_class);
            let Self { clients, groups, .. } = self;
            let mut got = 0.0;
            for client in clients.in_window_mut().filter(|client| of_class(client) && client.usage.matters()) {
                let (sum, weight) =
                    if client.usage.is_hungry() { (Sum::InUse, client.in_use) } else { (Sum::Window, client.weight()) };
                let due = rest / groups.over_share(client.group, sum, weight);
                client.usage.due = if client.usage.is_busy { due } else { 0.0 };
                got += client.usage.got;
            }
            self.discount(Sum::Window, of_class);
            self.discount(Sum::InUse, of_class);
            rest = (rest - got).max(0.0);
        }
    }

    /// The clients that matter and suit count in a sum.
    fn count(&mut self, sum: Sum, suits: impl Fn(&Client) -> bool) {
        for client in self.clients.in_window().filter(|client| client.usage.matters() && suits(client)) {
            self.groups.enter(client.group, sum, client.weight_in(sum));
        }
    }

    /// They count no longer.
    fn discount(&mut self, sum: Sum, suits: impl Fn(&Client) -> bool) {
        for client in self.clients.in_window().filter(|client| client.usage.matters() && suits(client)) {
            self.groups.leave(client.group, sum, client.weight_in(sum));
        }
    }
}
