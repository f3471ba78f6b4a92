//! `mq-deadline`: sector order in batches, a deadline per request, reads before writes, three strict priority classes.
//!
//! A request waits in two places at once: in a tree sorted by sector and in a list in order of arrival. Choosing
//! follows the tree from where the last request began, [`fifo_batch`](Tunables::fifo_batch) requests at a time. Each
//! time a batch ends, the direction is chosen anew (reads first, but only `writes_starved` times in a row past waiting
//! writes), and only then the oldest request of that direction may jump the queue, if its deadline has passed.
//!
//! A class is served only while no higher class has requests queued. Requests that only the driver has count too. The
//! scheduler does not see completions as they happen: it learns of them by [`Feedback::Sums`], and asks for these only
//! while two classes are queued. A request that waited `prio_aging_expire` passes higher classes.
//!
//! In one point this differs from Linux. Linux also holds a request back while its start (deadline minus expiry) lies
//! in the future. A start lies in the future only when an expiry knob has been lowered, or when threads read the clock
//! in another order than they insert. Here such a request goes out: holding it would stall an idle device.

mod fast;
mod level;
mod merge;
mod replay;
mod show;
#[cfg(test)]
mod tests;
mod tunables;

use core::fmt;

use level::{Level, Request};
use tunables::Tunables;

use crate::data::Tracked;
use crate::direction::Direction;
use crate::list::List;
use crate::mergeable::Mergeable;
use crate::site::unless_mutated;
use crate::slab::{Index, Slab};
use crate::waiting::ByAge;
use crate::{
    Admission, Class, ClientId, DispatchContext, Fairness, FastRequest, Feedback, FeedbackKind, Info, InsertAt, Knob,
    KnobError, Merge, Outstanding, Passing, RqId, Scheduler, Setting, Tally, Time,
};

/// The kernel's name of the policy.
pub(crate) const NAME: &str = "mq-deadline";
pub(crate) const KNOBS: &[Knob] = tunables::KNOBS;

/// Where the choosing stands. Shared by all classes, as in Linux.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// The direction of the running batch.
    direction: Direction,
    /// Requests taken from the running batch.
    batching: i64,
    /// Batches of reads that passed waiting writes since the last batch of writes.
    starved: i64,
}

/// What a level would give.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    item: Index,
    /// Where the choosing then stands, if this request begins a new batch.
    new_batch: Option<Pace>,
}

/// The scheduler `mq-deadline`.
#[derive(Debug)]
pub struct MqDeadline {
    requests: Slab<Request>,
    levels: [Level; 3],
    /// The classes with anything queued, as a set of bits by [`Class::index`].
    classes: Tracked<u8>,
    /// Requests that go before all others, whatever their class; the latest first.
    at_head: List<ByAge>,
    mergeable: Mergeable,
    pace: Tracked<Pace>,
    /// When a choice was asked for last.
    asked: Tracked<Time>,
    tunables: Tunables,
}

impl Default for MqDeadline {
    fn default() -> Self {
        Self::new()
    }
}

impl MqDeadline {
    /// An empty scheduler with default knobs, which merges nothing until it is told the limits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            requests: Slab::new("sched.node"),
            levels: Default::default(),
            classes: Tracked::new(0),
            at_head: List::default(),
            mergeable: Mergeable::new(),
            pace: Tracked::new(Pace { direction: Direction::Write, batching: 0, starved: 0 }),
            asked: Tracked::new(Time::default()),
            tunables: Tunables::new(),
        }
    }

    /// Takes a sorted request out of the tree, the list of arrivals and merging.
    #[inline(always)]
    fn unsort(&mut self, item: Index) {
        let request = self.requests.get(item);
        let (class, direction, merge) = (request.class(), request.direction(), request.info.merge);
        let queue = self.levels[class.index()].queue_mut(direction);
        self.mergeable.remove(&mut self.requests, &mut queue.sorted, &mut queue.fifo, item, merge);
    }

    /// The sorted request that goes next.
    #[inline]
    fn choose(&mut self, now: Time) -> Option<Index> {
        let aged = if self.has_several_classes() { self.choose_aged(now) } else { None };
        aged.or_else(|| self.choose_strict(now))
    }

    /// The first request of a lower class that waited so long that it passes the higher classes.
    fn choose_aged(&mut self, now: Time) -> Option<Index> {
        [Class::BestEffort, Class::Idle].into_iter().find_map(|class| {
            let item = self.try_level(class, now)?;
            (self.ages_at(item) <= now).then_some(item)
        })
    }

    /// The next request of the highest class that has anything queued; nothing if the driver has all requests of that
    /// class.
    #[inline]
    fn choose_strict(&mut self, now: Time) -> Option<Index> {
        let class = Class::ALL.into_iter().find(|class| {
            let level = &self.levels[class.index()];
            level.waits() || level.queued() > 0
        })?;
        self.try_level(class, now)
    }

    /// The candidate of one level. A new batch has then begun, even if the candidate turns out not to go, as in Linux.
    #[inline]
    fn try_level(&mut self, class: Class, now: Time) -> Option<Index> {
        let candidate = self.candidate(*self.pace, class, now)?;
        if let Some(pace) = candidate.new_batch {
            *self.pace = pace;
        }
        Some(candidate.item)
    }

    /// Which request of a level would go at `now`, if the choosing stood at `pace`.
    #[inline(always)]
    fn candidate(&self, pace: Pace, class: Class, now: Time) -> Option<Candidate> {
        let level = &self.levels[class.index()];
        if pace.batching < self.tunables.fifo_batch
            && let Some(item) = level.queue(pace.direction).next_in_order(&self.requests)
        {
            return Some(Candidate { item, new_batch: None });
        }
        let reads = !level.queue(Direction::Read).fifo.is_empty();
        let writes = !level.queue(Direction::Write).fifo.is_empty();
        let pace = self.new_batch(pace.starved, reads, writes)?;
        let queue = level.queue(pace.direction);
        let oldest = queue.fifo.head()?;
        let expired = self.requests.get(oldest).deadline <= now && unless_mutated("mq_deadline.expiry");
        let in_order = if expired { None } else { queue.next_in_order(&self.requests) };
        Some(Candidate { item: in_order.unwrap_or(oldest), new_batch: Some(pace) })
    }

    /// The direction of a new batch: reads, unless they have passed waiting writes too often.
    fn new_batch(&self, starved: i64, reads: bool, writes: bool) -> Option<Pace> {
        let (direction, starved) = match (reads, writes) {
            (false, false) => return None,
            (true, true) if starved < self.tunables.writes_starved => (Direction::Read, starved + 1),
            (true, false) => (Direction::Read, starved),
            (_, true) => (Direction::Write, 0),
        };
        Some(Pace { direction, batching: 0, starved })
    }

    /// When a waiting request has waited so long that it passes higher classes.
    fn ages_at(&self, item: Index) -> Time {
        let request = self.requests.get(item);
        request.deadline.after(self.tunables.prio_aging_expire).before(self.tunables.expire(request.direction()))
    }

    /// Takes a sorted request out as the next of the running batch.
    #[inline]
    fn start_sorted(&mut self, item: Index) -> RqId {
        self.pace.batching += 1;
        self.unsort(item);
        self.start(item)
    }

    fn start_at_head(&mut self, item: Index) -> RqId {
        self.at_head.remove(&mut self.requests, item);
        self.start(item)
    }

    /// Counts and forgets a request that is in no list any more.
    #[inline]
    fn start(&mut self, item: Index) -> RqId {
        debug_assert!(!self.mergeable.is_last(item), "nothing merges into a request that leaves");
        let request = self.requests.remove(item);
        let level = &mut self.levels[request.class().index()];
        level.counts.dispatched += 1;
        *level.queue_mut(request.direction()).latest_pos = request.info.sector;
        request.id
    }

    /// Notes whether a class has anything queued. Called when its counts have changed.
    fn note_queued(&mut self, class: Class) {
        let bit = 1 << class.index();
        if self.levels[class.index()].queued() > 0 {
            *self.classes |= bit;
        } else {
            *self.classes &= !bit;
        }
    }

    /// When ageing would let a request of this level go, if nothing else happens, and the pace until then. Called once
    /// a dispatch from this level has found no request that may go.
    fn level_wakeup(&self, pace: Pace, class: Class) -> Option<(Time, Pace)> {
        // While no deadline has passed, this is the candidate by sector. In a new batch the oldest request may later
        // take its place.
        let candidate = self.candidate(pace, class, Time(0))?;
        let by_sector = self.ages_at(candidate.item);
        let Some(pace) = candidate.new_batch else { return Some((by_sector, pace)) };
        let oldest = self.levels[class.index()].queue(pace.direction).fifo.head()?;
        let deadline = self.requests.get(oldest).deadline;
        if by_sector.max(*self.asked) < deadline {
            return Some((by_sector, pace));
        }
        Some((deadline.max(self.ages_at(oldest)), pace))
    }

    /// Whether requests of several classes are queued here or inside the driver. Then the classes are strict, and
    /// completions decide whether a lower one may go.
    fn has_several_classes(&self) -> bool {
        self.classes.count_ones() >= 2
    }

    fn fold(&mut self, tally: &Tally) {
        for ((level, completed), bypassed) in self.levels.iter_mut().zip(tally.completed).zip(tally.bypassed) {
            let counts = &mut *level.counts;
            counts.completed = counts.completed.max(completed);
            counts.bypassed = counts.bypassed.max(bypassed);
        }
        for class in Class::ALL {
            self.note_queued(class);
        }
    }
}

impl Scheduler for MqDeadline {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reserve(&mut self, capacity: usize) {
        self.requests.reserve(capacity);
        self.mergeable.reserve(&mut self.requests, capacity);
    }

    fn configure(&mut self, setting: Setting) {
        match setting {
            Setting::MergeLimits(limits) => self.mergeable.limits = limits,
            Setting::NrRequests(nr_requests) => self.tunables.set_nr_requests(nr_requests),
            Setting::Rotational(_) | Setting::Slice(_) | Setting::Costs(_) => {}
        }
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.merge_newcomer(info)
    }

    /// COST: one slot and, if sorted, a walk down one tree, and its neighbors in tree, list and hash bucket.
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        let (class, direction) = (info.priority.class, Direction::of(info.op));
        self.levels[class.index()].counts.inserted += 1;
        self.note_queued(class);
        if at == InsertAt::Head {
            let item = self.requests.insert(Request::new(rq, *info, now, ()));
            self.at_head.push_front(&mut self.requests, item);
            return;
        }
        let deadline = now.after(self.tunables.expire(direction));
        let item = self.requests.insert(Request::new(rq, *info, deadline, ()));
        let queue = self.levels[class.index()].queue_mut(direction);
        queue.fifo.push_back(&mut self.requests, item);
        self.mergeable.insert(&mut self.requests, &mut queue.sorted, item);
    }

    /// COST: a walk down one tree, then the same slots as insertion.
    fn dispatch(&mut self, _context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        *self.asked = now;
        if let Some(item) = self.at_head.head() {
            return Some(self.start_at_head(item));
        }
        let item = self.choose(now)?;
        Some(self.start_sorted(item))
    }

    /// COST: the batch is sorted; no slot is touched.
    fn dispatch_fast(&mut self, batch: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        self.order_fast(batch, now, order)
    }

    fn len(&self) -> usize {
        self.requests.len()
    }

    fn feedback(&self) -> FeedbackKind {
        if self.has_several_classes() { FeedbackKind::Sums } else { FeedbackKind::None }
    }

    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        match feedback {
            Feedback::Sums(tally) => self.fold(tally),
            // The requests that passed may have gone in either direction, so neither direction has a batch running.
            // The next direction is chosen anew.
            Feedback::BypassEnded => self.pace.batching = self.tunables.fifo_batch,
            Feedback::Events(..) | Feedback::Usage(..) => {}
        }
        Fairness::Unknown
    }

    fn next_wakeup(&self) -> Option<Time> {
        let first = self.levels.iter().find(|level| level.waits() || level.queued() > 0)?;
        if !self.at_head.is_empty() || first.waits() || !self.has_several_classes() {
            return None;
        }
        let (mut pace, mut wakeup) = (*self.pace, None);
        for class in [Class::BestEffort, Class::Idle] {
            if let Some((time, pace_after)) = self.level_wakeup(pace, class) {
                wakeup = Some(wakeup.map_or(time, |earlier: Time| earlier.min(time)));
                pace = pace_after;
            }
        }
        wakeup
    }

    /// No higher class has anything queued, not even inside the driver.
    fn may_pass(&self, class: Class, _client: ClientId) -> Passing {
        let is_first = self.levels[..class.index()].iter().all(|level| level.queued() == 0);
        if is_first && self.len() == 0 { Passing::All } else { Passing::Nobody }
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        Admission::fitting(newcomer.op.is_read() || outstanding.is_below(self.tunables.async_depth()))
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn knob(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        self.tunables.set(name, value)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.show_all(out)
    }
}
