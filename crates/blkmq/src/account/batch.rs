//! Counting requests as they begin and as they end, a batch at a time.

use blkmq_sched::Time;

use super::gauge::Gauge;
use super::range::Ranges;
use super::sums::{Group, Sums};
use crate::member::Member;
use crate::queue::RequestQueue;
use crate::request::{FlushStep, Request};
use crate::sync::atomic::Ordering;

/// How the statistics know what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accounting {
    /// Every thread counts on lines of its own, and readers sum.
    #[default]
    PerThread,
    /// Every request counts up, and down again, a number that all threads share: what Linux did before 4.14, and what a
    /// measurement of the other way is compared with. The numbers shown are the same.
    Shared,
}

impl Accounting {
    /// The name by which a user chooses it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerThread => "per-thread",
            Self::Shared => "shared",
        }
    }
}

impl std::str::FromStr for Accounting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::PerThread, Self::Shared]
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| format!("accounting: '{text}' is neither 'per-thread' nor 'shared'"))
    }
}

/// What the statistics of a queue keep beside each thread's sums.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) gauge: Gauge,
    pub(crate) is_shared: bool,
    pub(crate) ranges: Ranges,
}

/// How a request is counted. It is decided once, when the request enters the queue, so that what was counted in is
/// counted out whatever is switched meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u8);

impl Mark {
    /// Not at all.
    pub(crate) const NONE: Self = Self(0);
    /// In the thread's sums and nowhere else.
    const PLAIN: Self = Self(1);

    /// How one of the queue's own flushes is counted.
    pub(crate) fn of_flush(q: &RequestQueue) -> Self {
        if is_on(q) { Self::PLAIN } else { Self::NONE }
    }

    /// Also in the shared line, and in the range that has this place.
    fn special(place: Option<usize>) -> Self {
        Self(place.map_or(2, |place| 3 + place as u8))
    }

    pub(crate) fn is_counted(self) -> bool {
        self != Self::NONE
    }

    fn is_special(self) -> bool {
        self.0 >= 2
    }

    fn place(self) -> Option<usize> {
        self.0.checked_sub(3).map(usize::from)
    }
}

impl Account {
    pub(crate) fn new(accounting: Accounting, now: Time) -> Self {
        Self { gauge: Gauge::new(now), is_shared: accounting == Accounting::Shared, ranges: Ranges::new() }
    }
}

/// Whether requests that enter now are counted.
fn is_on(q: &RequestQueue) -> bool {
    q.settings.iostats.load(Ordering::Relaxed) != 0
}

/// The gauge and this thread's sums of a range.
fn range<'q>(q: &'q RequestQueue, member: &'q Member, place: usize) -> (&'q Gauge, &'q Sums) {
    let sums = member.range_sums(place).expect("sums are made before a range has a place");
    (q.account.ranges.gauge(place), sums)
}

/// Requests that begin in one go, counted as runs of one group.
///
/// COST: per request a few additions in registers; per batch the knob's line, a look at the clock's tick, and per run the
/// thread's own line.
pub(crate) struct Starting<'q> {
    pub(crate) q: &'q RequestQueue,
    pub(crate) now: Time,
    member: &'q Member,
    is_on: bool,
    is_special: bool,
    group: Group,
    requests: u64,
    merges: u64,
}

impl<'q> Starting<'q> {
    /// Requests begin at `now`. Called before anybody else can see the first of them.
    #[inline]
    pub(crate) fn new(q: &'q RequestQueue, member: &'q Member, now: Time) -> Self {
        let is_on = is_on(q);
        let is_special = q.account.is_shared || q.account.ranges.any();
        if is_on {
            q.account.gauge.advance(now, || q.nr_queued().iter().sum::<u64>() > 0);
        }
        Self { q, now, member, is_on, is_special, group: Group::Read, requests: 0, merges: 0 }
    }

    /// A request enters the queue.
    #[inline]
    pub(crate) fn add(&mut self, rq: &mut Request<'_>) {
        if !self.is_on {
            return;
        }
        let body = rq.body_mut();
        let group = Group::of(body.op);
        if group != self.group {
            self.publish();
            self.group = group;
        }
        let merges = u64::from(body.nr_parts) - 1;
        self.requests += 1;
        self.merges += merges;
        body.mark = Mark::PLAIN;
        if self.is_special {
            let place = if body.nr_sectors > 0 { self.q.account.ranges.find(body.sector) } else { None };
            body.mark = Mark::special(place);
            self.add_special(place, merges);
        }
    }

    fn add_special(&self, place: Option<usize>, merges: u64) {
        let direction = self.group.direction();
        let account = &self.q.account;
        if account.is_shared {
            account.gauge.start_shared(direction);
        }
        let Some(place) = place else { return };
        let (gauge, sums) = range(self.q, self.member, place);
        gauge.advance(self.now, || self.q.nr_queued_in(place).iter().sum::<u64>() > 0);
        if account.is_shared {
            gauge.start_shared(direction);
        }
        sums.started(self.group, 1, merges);
    }

    /// Shows to readers what has been added. Called before the requests can complete.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.requests > 0 {
            self.member.sums.started(self.group, self.requests, self.merges);
            (self.requests, self.merges) = (0, 0);
        }
    }
}

/// Requests that end in one go, counted as runs of one group.
///
/// COST: per request a few additions in registers; per batch a look at the clock's tick, and per run the thread's own
/// line.
pub(crate) struct Ending<'q> {
    q: &'q RequestQueue,
    member: &'q Member,
    now: Time,
    group: Group,
    requests: u64,
    sectors: u64,
    ns: u64,
}

impl<'q> Ending<'q> {
    /// Requests end at `now`.
    #[inline]
    pub(crate) fn new(q: &'q RequestQueue, member: &'q Member, now: Time) -> Self {
        Self { q, member, now, group: Group::Read, requests: 0, sectors: 0, ns: 0 }
    }

    /// A request is over, or one of the queue's own flushes is.
    #[inline]
    pub(crate) fn add(&mut self, rq: &Request<'_>) {
        let body = rq.body();
        if !body.mark.is_counted() {
            return;
        }
        let group = if body.flush == FlushStep::Flush { Group::Flush } else { Group::of(body.op) };
        if group != self.group {
            self.publish();
            self.group = group;
        }
        let ns = self.now.since(body.submitted);
        self.requests += 1;
        self.sectors += u64::from(body.nr_sectors);
        self.ns += ns;
        if body.mark.is_special() {
            self.add_special(body.mark, u64::from(body.nr_sectors), ns);
        }
    }

    fn add_special(&self, mark: Mark, sectors: u64, ns: u64) {
        // The whole queue's time is counted before the request is gone from the shared line.
        self.q.account.gauge.advance(self.now, || true);
        let account = &self.q.account;
        if account.is_shared {
            account.gauge.end_shared(self.group.direction());
        }
        let Some(place) = mark.place() else { return };
        let (gauge, sums) = range(self.q, self.member, place);
        gauge.advance(self.now, || true);
        if account.is_shared {
            gauge.end_shared(self.group.direction());
        }
        sums.ended(self.group, 1, sectors, ns);
    }

    /// Shows to readers what has been added. Called before the operations are handed to other threads, so that who has
    /// its completions finds them counted.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.requests > 0 {
            if self.group != Group::Flush {
                self.q.account.gauge.advance(self.now, || true);
            }
            self.member.sums.ended(self.group, self.requests, self.sectors, self.ns);
            (self.requests, self.sectors, self.ns) = (0, 0, 0);
        }
    }
}

impl Member {
    /// Operations of a newcomer that never began joined a request.
    pub(crate) fn account_merge(&self, q: &RequestQueue, into: &Request<'_>, operations: u64) {
        let body = into.body();
        if body.mark.is_counted() {
            let group = Group::of(body.op);
            self.sums.merged(group, operations);
            if let Some(place) = body.mark.place() {
                range(q, self, place).1.merged(group, operations);
            }
        }
    }

    /// A request that had begun joins another one. If it is the older one, the other counts its time from then on too.
    pub(crate) fn account_join(&self, q: &RequestQueue, survivor: &Request<'_>, absorbed: &Request<'_>) {
        let (survivor, absorbed) = (survivor.body(), absorbed.body());
        if !absorbed.mark.is_counted() {
            return;
        }
        let group = Group::of(absorbed.op);
        let older = if survivor.mark.is_counted() { survivor.submitted.since(absorbed.submitted) } else { 0 };
        self.sums.joined(group);
        self.sums.lasted(group, older);
        if q.account.is_shared {
            q.account.gauge.end_shared(group.direction());
        }
        if let Some(place) = absorbed.mark.place() {
            let (gauge, sums) = range(q, self, place);
            sums.joined(group);
            if q.account.is_shared {
                gauge.end_shared(group.direction());
            }
        }
        if let Some(place) = survivor.mark.place() {
            range(q, self, place).1.lasted(group, older);
        }
    }
}
