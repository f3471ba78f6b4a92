//! A hold: a scheduler with the state that is reached only under its lock.

use blkmq_sched::{
    Admission, Class, ClientId, FastRequest, FeedbackKind, Info, InsertAt, Merge, Op, Outstanding, Report, RqId,
    Scheduler, Tally, Time,
};

use super::backlog::Backlog;
use super::limiter_state::LimiterState;
use crate::queue::Queue;
use crate::queue::limits::pools::Lender;
use crate::queue::threads::ring;
use crate::request::{Location, Request};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::{Named, Tracked, fetch};

/// The number of requests of one class that must follow the first before the gate is opened for that class. If the
/// class changes more often, opening the gate would cost more than it saves.
pub(super) const STEADY: u32 = 8;

/// One of so many parts of the room in a scheduler that shares is for clients that have less than their share of a
/// smaller part, which is one of [`SHARED`]. The shares of all clients of the three classes fit into the larger one.
const RESERVED: u32 = 4;
const SHARED: u32 = 16;

/// Asks a scheduler for a request by `dispatch`.
#[inline(always)]
fn ask(
    scheduler: &mut Box<dyn Scheduler>,
    now: Time,
    mut dispatch: impl FnMut(&mut Box<dyn Scheduler>) -> Option<RqId>,
) -> Option<RqId> {
    match dispatch(scheduler) {
        None if !scheduler.is_empty() && scheduler.next_wakeup().is_some_and(|time| time <= now) => {
            // This first call may have changed the scheduler's state so that it dispatches at once. No thread would
            // plan for a time that has passed, so the scheduler is asked again here.
            dispatch(scheduler)
        }
        id => id,
    }
}

/// The counts of requests for so many hardware queues, of which there are none.
fn none_queued(nr_hctxs: usize) -> Named<Vec<Tracked<u32>>> {
    Named::new("queue.queued", vec![Tracked::new(0); nr_hctxs])
}

/// A scheduler and its state in the queue, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// The thread that last held the lock.
    last_thread: Tracked<u16>,
    pub(super) scheduler: Option<Named<Box<dyn Scheduler>>>,
    /// The domain's first hardware queue, or its only one.
    first: u16,
    /// Requests in the scheduler, by their hardware queue, beginning with the first; `elsewhere` counts those for
    /// another hardware queue than the first.
    pub(super) queued: Named<Vec<Tracked<u32>>>,
    pub(super) elsewhere: Tracked<u32>,
    /// A hardware queue, and a lower bound of the room for its requests, valid under this hold.
    pub(super) room: Tracked<(u16, u32)>,
    /// Requests other than reads that entered the scheduler since it was installed.
    pub(super) limited: Tracked<u64>,
    /// What had completed when the scheduler was installed.
    pub(super) base: Tally,
    base_limited: u64,
    /// How many of them had completed at the last recount; an upper bound while the gate is open, because requests that
    /// bypass are subtracted.
    pub(super) limited_over: Option<u64>,
    /// Requests that combiners have taken over and not inserted yet, and those behind them.
    pub(crate) backlog: Backlog,
    /// The class whose requests may bypass the scheduler while nothing waits, as in the queue's word.
    pub(super) gate: Option<Class>,
    /// The gate is open for reads alone.
    pub(super) passes_reads_only: bool,
    /// The class of the latest request.
    pub(super) latest: Class,
    /// The client of the latest request.
    pub(super) latest_client: ClientId,
    /// How many more requests have to arrive before the gate may be opened. The first after a change of class does not
    /// count.
    pub(super) until_open: Tracked<u32>,
    /// Requests may have bypassed that were not reported to the scheduler, and the scheduler has requests of another
    /// class.
    pub(super) is_fold_due: bool,
    /// The gate is open for requests of this client alone.
    pub(super) gate_client: Option<ClientId>,
    /// The scheduler wants reports of requests that bypass it and of completions.
    pub(super) wants_reports: bool,
    /// The limiter, with the work in flight.
    pub(super) limiter: Option<Box<LimiterState>>,
    /// The scheduler takes depth tokens or wants reports, or there is a limiter.
    is_special: bool,
    /// The word of the pool from which the latest token came, where the next search begins.
    token_home: u16,
    /// The reports that the scheduler is given, empty otherwise.
    pub(super) reports: Vec<Report>,
    /// When this hold began, if the scheduler wants reports.
    pub(super) since: Time,
}

impl Hold {
    pub(super) fn empty(first: u16) -> Self {
        Self { first, backlog: Backlog::new(), token_home: first, ..Self::default() }
    }

    /// Installs a scheduler, or none, for so many hardware queues. Called while nothing is in flight, or nothing has
    /// begun.
    pub(super) fn install(&mut self, q: &Queue, scheduler: Option<Box<dyn Scheduler>>, nr_hctxs: usize) {
        debug_assert!(!self.has_waiting(), "a scheduler is replaced only when nothing waits");
        debug_assert!(nr_hctxs > 0, "a domain has a hardware queue");
        // Reports for the old scheduler are not for the new one.
        self.take_reports(q, q.clock.now());
        self.end_limiter(q);
        let wants_reports = scheduler.is_some() && q.settings.wants_reports();
        *self = Self {
            scheduler: scheduler.map(|scheduler| Named::new("sched.root", scheduler)),
            queued: none_queued(nr_hctxs),
            base: q.threads.tally(&Tally::default()),
            base_limited: self.nr_limited_completed(q),
            backlog: std::mem::take(&mut self.backlog),
            // The gate as in the queue's word, until it is set anew.
            gate: self.gate,
            passes_reads_only: self.passes_reads_only,
            gate_client: self.gate_client,
            wants_reports,
            reports: Vec::with_capacity(if wants_reports { ring() } else { 0 }),
            ..Self::empty(self.first)
        };
        self.note_special(q);
    }

    /// Notes whether dispatching takes more than a call of the scheduler.
    pub(super) fn note_special(&mut self, q: &Queue) {
        self.is_special = self.wants_reports || q.settings.has_tokens() || self.limiter.is_some();
    }

    /// The number of hardware queues has changed. Nothing waits.
    pub(super) fn set_nr_hctxs(&mut self, nr_hctxs: usize) {
        debug_assert!(nr_hctxs > 0, "a device has a hardware queue");
        debug_assert!(!self.has_waiting(), "hardware queues change only when nothing waits");
        self.queued = none_queued(nr_hctxs);
    }

    /// The thread with this number has taken the lock. If another one had it before, prefetches all lines of the hold
    /// and of the scheduler.
    ///
    /// COST: a compare if the same thread had the hold last; otherwise a hint to the processor for each line.
    #[inline]
    pub(super) fn note_thread(&mut self, thread: u16) {
        if *self.last_thread != thread {
            *self.last_thread = thread;
            self.fetch();
        }
    }

    #[inline(never)]
    fn fetch(&self) {
        fetch(self);
        if let Some(scheduler) = &self.scheduler {
            fetch(&***scheduler);
        }
    }

    /// The scheduler, if there is one.
    pub(in crate::queue) fn scheduler(&self) -> Option<&dyn Scheduler> {
        self.scheduler.as_ref().map(|scheduler| &***scheduler)
    }

    /// Passes a client or group to the scheduler, if there is one.
    pub(in crate::queue) fn update_scheduler(&mut self, q: &Queue, update: impl FnOnce(&mut dyn Scheduler)) {
        // Feedback until now belongs to the clients and groups as they were.
        self.take_reports(q, q.clock.now());
        if let Some(scheduler) = &mut self.scheduler {
            update(scheduler.as_mut());
        }
    }

    /// Removes a client from the scheduler. Another one may get its index.
    pub(in crate::queue) fn remove_client(&mut self, q: &Queue, client: ClientId) {
        self.update_scheduler(q, |scheduler| scheduler.leave(client));
        if self.latest_client == client {
            self.end_gate(q);
            self.latest_client = ClientId::default();
        }
    }

    /// A request for a hardware queue enters the scheduler.
    fn count_in(&mut self, hctx: u16) {
        debug_assert!(self.scheduler.is_some(), "requests enter a scheduler if there is one");
        *self.queued[usize::from(hctx - self.first)] += 1;
        *self.elsewhere += u32::from(hctx != self.first);
    }

    /// A request for a hardware queue leaves the scheduler.
    fn count_out(&mut self, hctx: u16) {
        debug_assert!(*self.queued[usize::from(hctx - self.first)] > 0, "what leaves the scheduler was counted in");
        *self.queued[usize::from(hctx - self.first)] -= 1;
        *self.elsewhere -= u32::from(hctx != self.first);
    }

    /// `number` requests of a class arrived, one after the other.
    #[inline]
    pub(super) fn note_class(&mut self, class: Class, number: u32) {
        debug_assert!(number > 0, "a class is noted when requests of it come");
        if self.latest != class {
            self.latest = class;
            // The first of them, which has changed the class, does not count.
            *self.until_open = (*self.until_open).max(STEADY) + 1;
        }
        *self.until_open = self.until_open.saturating_sub(number);
    }

    /// A hold begins on the path of a request.
    #[inline]
    pub(crate) fn begin(&mut self, q: &Queue, now: Time) {
        if self.wants_reports {
            self.since = now;
            self.take_reports(q, now);
        }
    }

    /// The scheduler's next request, unless it or the limiter holds back.
    #[inline(always)]
    pub(crate) fn dispatch<'q>(&mut self, q: &'q Queue, now: Time) -> Option<Request<'q>> {
        if self.is_special {
            return self.choose_specially(q, now);
        }
        self.fold(q);
        let id = ask(self.scheduler.as_mut()?, now, |scheduler| scheduler.dispatch(&mut (), now))?;
        let rq = q.slots.leave_scheduler(id);
        debug_assert!(rq.body().ordered && rq.body().tag.is_none(), "what a scheduler names was inserted: {rq:?}");
        self.count_out(rq.hctx());
        Some(rq)
    }

    /// The next request of a scheduler that takes depth tokens or wants reports, or that has a limiter.
    #[inline(never)]
    fn choose_specially<'q>(&mut self, q: &'q Queue, now: Time) -> Option<Request<'q>> {
        self.take_reports(q, now);
        if !self.is_empty() && self.limiter.as_mut().is_some_and(|limiter| !limiter.lets_go(q, now)) {
            return None;
        }
        self.fold(q);
        let scheduler = self.scheduler.as_mut()?;
        let mut lender = Lender::new(q, self.token_home);
        let id = ask(scheduler, now, |scheduler| lender.lend(q, scheduler.as_mut(), now))?;
        let mut rq = q.slots.leave_scheduler(id);
        debug_assert!(rq.body().ordered && rq.body().tag.is_none(), "what a scheduler names was inserted: {rq:?}");
        debug_assert!(
            rq.body().token.is_none() && rq.body().ticket.is_none(),
            "a request gets one token and one ticket: {rq:?}"
        );
        let (token, ticket) = lender.given();
        if let Some(token) = token {
            self.token_home = token.word.into();
            rq.body_mut().token = Some(token);
        }
        if self.wants_reports {
            debug_assert!(ticket.is_some(), "a scheduler that wants reports has a ticket for each choice: {rq:?}");
            rq.body_mut().ticket = ticket;
        }
        if let Some(limiter) = &mut self.limiter {
            debug_assert_eq!(rq.body().cost, 0, "a request has a cost from its choice to its completion: {rq:?}");
            limiter.send(&mut rq, now);
        }
        self.count_out(rq.hctx());
        Some(rq)
    }

    /// The request with which the scheduler would merge this one.
    #[inline]
    pub(crate) fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.scheduler.as_mut()?.merge(info)
    }

    /// Inserts a request, or gives it back if the scheduler is full. `begin` is called with the request while this
    /// thread still owns it.
    #[inline(always)]
    pub(crate) fn insert<'q>(
        &mut self,
        q: &'q Queue,
        mut rq: Request<'q>,
        info: &Info,
        now: Time,
        begin: impl FnOnce(&mut Request<'q>),
    ) -> Result<(), Request<'q>> {
        let (hctx, limited) = (rq.hctx(), info.op != Op::Read);
        if self.scheduler.is_none() || !self.has_room(q, hctx, info) || !self.is_admitted(q, info, now) {
            return Err(rq);
        }
        self.note_insertion(q, info);
        let Some(scheduler) = &mut self.scheduler else { return Err(rq) };
        let at = if rq.flags().at_head { InsertAt::Head } else { InsertAt::Sorted };
        rq.body_mut().ordered = true;
        begin(&mut rq);
        let id = rq.id();
        let _ = rq.leave_at(Location::Scheduler);
        scheduler.insert(id, info, at, now);
        self.count_in(hctx);
        *self.limited += u64::from(limited);
        Ok(())
    }

    /// A request in the scheduler has merged into another one there.
    pub(crate) fn note_joined(&mut self, absorbed: &Request<'_>) {
        self.count_out(absorbed.hctx());
        *self.limited -= u64::from(absorbed.op() != Op::Read);
    }

    /// Whether requests may take the fast path, as far as can be told at once.
    #[inline]
    pub(crate) fn may_dispatch_fast(&self) -> bool {
        !self.is_fold_due
            && self.is_limiter_open()
            && !self.backlog.has_waiting_for_room()
            && self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_empty())
    }

    /// Whether requests like this one may take the fast path. After requests of another class, which the device may
    /// still have, the scheduler would decline; and it may limit requests other than reads.
    #[inline]
    pub(crate) fn may_dispatch_fast_like(&self, q: &Queue, like: &Info) -> bool {
        let class = like.priority.class;
        let is_limited = like.op != Op::Read && self.bounds_others(q, like);
        !is_limited && self.latest == class && self.gate.is_none_or(|gate| gate == class)
    }

    /// Asks the scheduler for the order in which it would dispatch requests. Returns false if it declines.
    #[inline]
    pub(crate) fn order_fast(&mut self, known: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        if self.gate.is_some() {
            self.note_end_of_passing();
        }
        let is_ordered = self.scheduler.as_mut().is_some_and(|scheduler| scheduler.dispatch_fast(known, now, order));
        debug_assert!(!(is_ordered && self.wants_reports), "who wants reports has a ticket for each request");
        is_ordered
    }

    /// `number` requests like this one took the fast path.
    #[inline]
    pub(crate) fn note_fast(&mut self, like: &Info, number: usize) {
        debug_assert!(self.is_empty(), "what goes through does not stay in the scheduler");
        self.note_class(like.priority.class, number as u32);
        *self.limited += if like.op == Op::Read { 0 } else { number as u64 };
    }

    /// Whether all requests in the scheduler go to the first hardware queue.
    #[inline]
    pub(crate) fn is_for_first_hctx(&self) -> bool {
        *self.elsewhere == 0
    }

    /// Requests in the scheduler.
    #[inline]
    pub(crate) fn nr_waiting(&self) -> usize {
        self.scheduler.as_ref().map_or(0, |scheduler| scheduler.len())
    }

    /// Whether the scheduler has no requests.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduler.as_ref().is_none_or(|scheduler| scheduler.is_empty())
    }

    /// Whether requests wait in the scheduler or in the backlog.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.is_empty() || !self.backlog.is_empty()
    }

    /// Whether the counts agree with the scheduler and the backlog. For assertions.
    pub(super) fn agrees(&self) -> bool {
        let queued: u32 = self.queued.iter().map(|queued| **queued).sum();
        let first = self.queued.first().map_or(0, |first| **first);
        queued as usize == self.nr_waiting() && *self.elsewhere == queued - first && self.backlog.agrees()
    }

    /// Whether `nr_requests` leaves room for one more request of this hardware queue. If so, the caller inserts it,
    /// unless the scheduler does not admit it.
    #[inline]
    fn has_room(&mut self, q: &Queue, hctx: u16, info: &Info) -> bool {
        let (known, left) = &mut *self.room;
        if *known == hctx && *left > 0 {
            *left -= 1;
            true
        } else {
            self.has_room_now(q, hctx, info)
        }
    }

    /// Near the limit this recounts, for each request, how many requests the driver has, because the flush machine may
    /// give it more at any time. Farther away the hold remembers for how many more requests there is room, whatever the
    /// driver takes meanwhile.
    ///
    /// If the scheduler shares, a part of the room is reserved for clients that have few requests there. Otherwise one
    /// client's requests could fill the room, and others would have nothing waiting that could be ordered.
    #[inline(never)]
    fn has_room_now(&mut self, q: &Queue, index: u16, info: &Info) -> bool {
        let nr_requests = q.settings.nr_requests.load(Ordering::Relaxed);
        let hctx = q.hctxs.get(index);
        let waiting = *self.queued[usize::from(index - self.first)] + hctx.nr_dispatch();
        let Some(scheduler) = self.scheduler() else { return false };
        let shares = scheduler.feedback() == FeedbackKind::Usage;
        let open = if shares { nr_requests - nr_requests / RESERVED } else { nr_requests };
        let left = open.saturating_sub(waiting + u32::from(q.hctxs.depth()));
        let has_room = left > 0 || {
            let reserved = Outstanding { reserved: Some(nr_requests / SHARED), ..self.outstanding(0) };
            let has_share = shares && scheduler.limit_depth(info, reserved) == Admission::Refused;
            waiting + hctx.tags.weight() < if has_share { open } else { nr_requests }
        };
        *self.room = (index, left.saturating_sub(1));
        has_room
    }

    /// Whether the scheduler admits a request.
    #[inline]
    fn is_admitted(&mut self, q: &Queue, info: &Info, now: Time) -> bool {
        if self.wants_reports {
            return self.is_admitted_by_reports(q, info, now);
        }
        info.op == Op::Read || !self.bounds_others(q, info) || self.is_admitted_now(q, info)
    }

    /// As [`is_admitted`](Self::is_admitted), for a scheduler that decides by reports. It refuses a request only after
    /// the reports were taken. So a thread that re-checks behind a fence finds what a completer reported before its
    /// fence ([`prepare_to_wait`](blkmq_sync::liveness::Liveness::prepare_to_wait)).
    #[inline(never)]
    fn is_admitted_by_reports(&mut self, q: &Queue, info: &Info, now: Time) -> bool {
        if self.admits(info, self.most_others(q)) {
            return true;
        }
        self.take_reports(q, now);
        self.is_admitted_now(q, info)
    }

    /// Recounts the completed requests other than reads, unless there is room even by the last count.
    ///
    /// COST: a line of each thread that works with the queue, once for as many requests as there was room for.
    #[inline(never)]
    fn is_admitted_now(&mut self, q: &Queue, info: &Info) -> bool {
        if let Some(over) = self.limited_over.filter(|_| self.gate.is_none() || self.passes_reads_only)
            && self.admits(info, self.limited.wrapping_sub(over))
        {
            return true;
        }
        // Counters lag, so `completed` may be too small. Then a request waits although there is room, which is the safe
        // side.
        let completed = self.nr_limited_completed(q).wrapping_sub(self.base_limited);
        self.limited_over = Some(completed);
        self.admits(info, self.limited.wrapping_sub(completed))
    }

    /// Completed requests other than reads that this scheduler had dispatched. In a split queue, requests that bypassed
    /// the scheduler do not count at all.
    fn nr_limited_completed(&self, q: &Queue) -> u64 {
        if q.settings.is_split() { q.hctxs.get(self.first).nr_limited_completed() } else { q.threads.nr_limited() }
    }

    /// Whether the scheduler can ever refuse a request like this one, i.e. if `limit_depth` fails at the largest number
    /// of requests other than reads.
    #[inline]
    pub(super) fn bounds_others(&self, q: &Queue, info: &Info) -> bool {
        let most = self.outstanding(self.most_others(q));
        self.scheduler.as_ref().is_some_and(|scheduler| scheduler.limit_depth(info, most) != Admission::Admitted)
    }

    /// The largest number of requests other than reads that can be outstanding beside one.
    #[inline]
    fn most_others(&self, q: &Queue) -> u64 {
        u64::from(q.settings.nr_requests.load(Ordering::Relaxed)) * self.queued.len() as u64 - 1
    }

    #[inline]
    fn outstanding(&self, others: u64) -> Outstanding {
        Outstanding { others, nr_hctxs: self.queued.len() as u32, reserved: None }
    }

    #[inline]
    fn admits(&self, info: &Info, others: u64) -> bool {
        let outstanding = self.outstanding(others);
        let admission = self.scheduler.as_ref().map(|scheduler| scheduler.limit_depth(info, outstanding));
        admission != Some(Admission::Refused)
    }
}
