//! How much work may be with a device at once, and how fast it goes there.
//!
//! A scheduler orders what waits in front of it. A device that takes everything at once leaves it nothing to order: the
//! queue is inside the device. A limiter holds requests back, so that they wait where they can be ordered, and no more
//! than costs throughput.
//!
//! As long as reads are as fast as they should be, the limiter is *open* and holds nothing back. If they are not,
//! though the device has several requests, what it does in that time is taken for all that it can do: the *ceiling*.
//! From it the limiter learns what each request [costs](Limiter::cost). Then it tries, in turn:
//!
//! - *Paced*: requests go at the rate of the ceiling. A device that delays what exceeds a fixed rate, as a volume of a
//!   cloud does, then delays nothing. If reads are nearly as fast as the fastest one from then on, it stays so.
//! - *Bounded*: the smallest bound on the work with the device is searched with which throughput stays.
//!
//! If neither helps the limiter opens again, and tries again later: ten seconds later at first, or twenty times as long
//! as the tries took, and then each time twice as long, up to eleven minutes.
//!
//! The estimate of a rate and a latency, pacing at the rate, and rare short probes above it are those of BBR (Cardwell
//! et al., "BBR: congestion-based congestion control", 2016). That latency tells when a device has more than it can do
//! is Gimbal's (Min et al., SIGCOMM 2021). Otherwise this follows neither.
//!
//! The value knows no thread and no clock. An embedder asks [`has_room`](Limiter::has_room) and
//! [`opens_at`](Limiter::opens_at) before it asks its scheduler for a request, tells of each that
//! [went](Limiter::sent), and [folds](Limiter::fold) by [`next_look`](Limiter::next_look) what has completed. After
//! each fold it tells its scheduler of the [slice](Limiter::slice). Nothing is allocated.

mod bounded;
mod cost;
mod pace;
mod paced;
mod progress;
pub(crate) mod scale;
mod search;
mod shares;
mod show;
mod target;
mod trial;

use core::mem::take;

use crate::{Op, Time};
pub use cost::Costs;
use pace::Pacer;
pub(crate) use progress::Span;
pub use progress::{Flow, Progress};
use progress::{PreviousSums, READ};
use scale::{MS, REST_TIMES, SECOND};
use search::Search;
pub use target::Target;
use target::WindowedMin;
pub(crate) use trial::{Trial, Verdict};

/// How often an open limiter wants to be folded, and one that holds back, in nanoseconds.
const OPEN_LOOK: u64 = 50 * MS;
const LOOK: u64 = MS;

/// Reads must be too slow in so many stretches of this many nanoseconds in a row before an open limiter does anything.
const STRETCH: u64 = 100 * MS;
const STRETCHES: u32 = 3;

/// How many reads such a stretch must have, unless it is this long, in nanoseconds, and how many requests the device
/// must have had on average.
const FEWEST_READS: u64 = 4;
const LONGEST_STRETCH: u64 = SECOND;
const FEWEST_IN_DEVICE: u64 = 3;

/// A limiter that has had nothing to hold back for so many nanoseconds opens.
const UNUSED: u64 = 10 * SECOND;

/// How long a limiter stays open after nothing helped, in nanoseconds: at first, and at most.
const SHORTEST_REST: u64 = 10 * SECOND;
const LONGEST_REST: u64 = 640 * SECOND;

/// The sectors of a small request.
const SMALL: u32 = 8;

/// What a limiter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It holds nothing back.
    Open,
    /// A client gets less than it is due. The work with the device is bounded, narrowly at first, and the bound grows
    /// as long as throughput does.
    Growing,
    /// It lets the device have more than the device has usually, to see what the device can do.
    Measuring,
    /// Requests go at the rate of the ceiling.
    Paced,
    /// The same at a higher rate, to see whether the device has become faster.
    Probing,
    /// The work with the device is bounded in turns, and the smallest bound is searched that costs no throughput.
    Narrowing,
    /// The work with the device is bounded.
    Bounded,
    /// The same with a larger bound, to see whether the device does more.
    Widening,
}

/// The bound on the predicted work with a device. There is one for each device.
#[derive(Debug, Clone)]
pub struct Limiter {
    target: Target,
    phase: Phase,
    /// When the phase began.
    since: Time,
    /// What counts since begins then: what the device has from before is over.
    settled: Time,
    costs: Costs,
    pacer: Pacer,
    /// Nanoseconds of cost; the largest value while the limiter is open.
    bound: u64,
    seen: PreviousSums,
    least: WindowedMin,
    looked: Option<Time>,
    /// What has completed since the phase has settled, and within the present stretch of it.
    span: Span,
    stretch: Span,
    /// How many stretches have been bad in a row.
    bad: u32,
    /// The last time that something was held back, or the device had more than it can work on.
    used: Time,
    /// When the limiter began to hold back.
    began: Time,
    /// The two bounds that are compared.
    trial: Trial,
    /// The search for a bound, once it is known what the device takes.
    search: Option<Search>,
    paced: paced::Watch,
    /// Clients have shares, and what is known of them.
    shares: Option<shares::Watch>,
    /// Nothing is tried before this time, and how long the next rest will be.
    rests_until: Time,
    rest: u64,
    /// The mean of the reads of the last stretch, in nanoseconds.
    read_mean: Option<u64>,
    in_flight: u64,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new(Target::Auto)
    }
}

impl Limiter {
    /// An open limiter.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            phase: Phase::Open,
            since: Time(0),
            settled: Time(0),
            costs: Costs::default(),
            pacer: Pacer::default(),
            bound: u64::MAX,
            seen: PreviousSums::default(),
            least: WindowedMin::default(),
            looked: None,
            span: Span::default(),
            stretch: Span::default(),
            bad: 0,
            used: Time(0),
            began: Time(0),
            trial: Trial::default(),
            search: None,
            paced: paced::Watch::new(),
            shares: None,
            rests_until: Time(0),
            rest: SHORTEST_REST,
            read_mean: None,
            in_flight: 0,
        }
    }

    /// An open limiter that also bounds if a client gets less than it is due ([`Progress::fairness`]).
    #[must_use]
    pub fn for_shares(target: Target) -> Self {
        Self { shares: Some(shares::Watch::default()), ..Self::new(target) }
    }

    /// What requests cost, as far as is known.
    #[must_use]
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// The predicted work of a request: for how long the device does nothing else while it does all it can, in
    /// nanoseconds. At least 1; grows with the size. Until something was measured, it is a guess.
    ///
    /// An embedder keeps the number with the request. The costs of later requests may be others.
    ///
    /// COST: a multiplication.
    #[must_use]
    pub fn cost(&self, op: Op, sectors: u32) -> u32 {
        self.costs.of(op, sectors)
    }

    /// Whether a request of this cost may go beside what is with the device, both in nanoseconds. One always may if
    /// nothing is with the device. An embedder that does not know yet which request it will be says 0; then the bound
    /// is exceeded by less than one request.
    #[inline]
    #[must_use]
    pub fn has_room(&self, in_flight: u64, cost: u32) -> bool {
        // No request costs less than 1.
        in_flight == 0 || in_flight.saturating_add(cost.max(1).into()) <= self.bound
    }

    /// When the next request may go, if none may now. It is at most 100 ms from now.
    #[inline]
    #[must_use]
    pub fn opens_at(&self, now: Time) -> Option<Time> {
        self.pacer.opens_at(now)
    }

    /// A request of this cost went to the device.
    #[inline]
    pub fn sent(&mut self, cost: u32, now: Time) {
        self.pacer.sent(cost, now);
    }

    /// True while nothing is held back, whatever is with the device: requests may bypass the scheduler.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// While requests are held back: what one client may have at once of what others leave, in sectors. A scheduler is
    /// [told](crate::Setting::Slice).
    ///
    /// It is what the device does of 4 KiB requests while it has the fastest read. A client that reads one block at a
    /// time looks idle for as long, and is back before a flood has had much more than that in its stead.
    #[must_use]
    pub fn slice(&self) -> Option<u64> {
        let least = self.least.get().filter(|_| !self.is_open())?;
        let each = self.cost(Op::Read, SMALL).max(self.cost(Op::Write, SMALL));
        Some((least / u64::from(each)).max(1).saturating_mul(u64::from(SMALL)))
    }

    /// When the limiter wants to be [folded](Self::fold) at the latest, as long as requests wait or are with the
    /// device. `None` if it never does. An earlier fold does no harm.
    #[must_use]
    pub fn next_look(&self) -> Option<Time> {
        let period = if self.is_open() { OPEN_LOOK } else { LOOK };
        (self.target != Target::Off || self.shares.is_some())
            .then(|| self.looked.map_or(Time(0), |looked| looked.after(period)))
    }

    /// Learns what has happened. Sums may lag behind.
    pub fn fold(&mut self, progress: &Progress, now: Time) {
        let mut fresh = self.seen.fresh(progress, now);
        let had_pause = !self.is_open() && fresh.leave_out_pause();
        if progress.in_flight > self.most_usual() {
            fresh.full = fresh.ns;
        }
        let now = now.max(self.looked.unwrap_or(now));
        self.looked = Some(now);
        self.least.note(progress.least_read, now);
        self.in_flight = progress.in_flight;
        // A bound that stays may let the device have more than a rate would, and still hold nothing back.
        // What was held back before a pause is long over.
        if !had_pause && (progress.held_back || self.is_enforced() || fresh.full > 0 && self.phase != Phase::Bounded) {
            self.used = now;
        }
        if self.target == Target::Off && self.shares.is_none() {
            return;
        }
        let lacks = self.note_fairness(progress.fairness, &fresh);
        if now >= self.settled {
            self.span.add(&fresh);
        }
        if !self.is_open() && now.since(self.used) > UNUSED {
            self.rest = SHORTEST_REST;
            self.open(now);
        }
        match self.phase {
            Phase::Open if lacks && self.may_grow(now) => self.begin_growing(now),
            Phase::Open => self.look_open(&fresh, now),
            Phase::Growing => self.look_growing(now),
            Phase::Measuring => self.look_measuring(now),
            Phase::Paced => self.look_paced(&fresh, now),
            Phase::Probing => self.look_probing(now),
            Phase::Narrowing => self.look_narrowing(now),
            Phase::Bounded => self.look_bounded(&fresh, lacks, now),
            Phase::Widening => self.look_widening(now),
        }
    }

    /// An open limiter: looks for reads that are too slow.
    fn look_open(&mut self, fresh: &Span, now: Time) {
        // Reads that starve are few, and so a stretch is longer until there are some.
        let mut longer = self.stretch;
        longer.add(fresh);
        if longer.flows[READ].requests < FEWEST_READS && longer.ns < LONGEST_STRETCH {
            self.stretch = longer;
            return;
        }
        let Some(stretch) = self.end_stretch(fresh) else { return };
        let is_bad = stretch.flows[READ].requests > 0
            && stretch.occupancy() >= FEWEST_IN_DEVICE
            && !self.is_met().unwrap_or(true)
            && now >= self.rests_until;
        if !is_bad {
            self.bad = 0;
            self.span = Span::default();
            return;
        }
        self.bad += 1;
        if self.bad >= STRETCHES && self.span.is_enough(STRETCH) {
            self.begin(now);
        }
    }

    /// Ends the present stretch, if it is long enough.
    fn end_stretch(&mut self, fresh: &Span) -> Option<Span> {
        self.stretch.add(fresh);
        if self.stretch.ns < STRETCH {
            return None;
        }
        let stretch = take(&mut self.stretch);
        self.read_mean = stretch.flows[READ].mean();
        Some(stretch)
    }

    /// Begins to hold back.
    fn begin(&mut self, now: Time) {
        let factor = self.costs.learn(&self.span);
        (self.began, self.used) = (now, now);
        self.begin_paced(factor, now);
    }

    /// Another phase begins. What completes within so many nanoseconds does not count in it.
    fn enter(&mut self, phase: Phase, settle: u64, now: Time) {
        self.phase = phase;
        self.since = now;
        self.settled = now.after(settle);
        self.span = Span::default();
        self.stretch = Span::default();
        self.bad = 0;
    }

    /// Holds nothing back from now on.
    fn open(&mut self, now: Time) {
        self.pacer.stop();
        self.bound = u64::MAX;
        self.enter(Phase::Open, 0, now);
    }

    /// Nothing has helped. Opens, and rests.
    fn give_up(&mut self, now: Time) {
        self.note_vain();
        let tried = now.since(self.began).saturating_mul(REST_TIMES);
        let rest = self.rest.max(tried).min(LONGEST_REST);
        self.open(now);
        self.rests_until = now.after(rest);
        self.rest = (2 * rest).min(LONGEST_REST);
    }
}
