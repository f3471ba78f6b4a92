//! What belongs to a scheduler and is known only under its lock.

use blkmq_sched::{
    Admission, Class, ClientId, FastRequest, Info, InsertAt, Merge, Op, Outstanding, Report, RqId, Scheduler, Tally,
    Time,
};

use super::backlog::Backlog;
use crate::queue::Queue;
use crate::queue::limits::limiter::LimiterState;
use crate::queue::limits::pools::Lender;
use crate::queue::threads::ring;
use crate::request::{Location, Request};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::{Area, changes, fetch, reads, unless_mutated};

/// How many requests of one class must come in behind the first before the gate is opened for that class. While the
/// class changes more often than that, opening the gate would cost more than it saves.
pub(super) const STEADY: u32 = 8;

/// Asks a scheduler for a request by `dispatch`.
#[inline(always)]
fn ask(
    scheduler: &mut Box<dyn Scheduler>,
    now: Time,
    mut dispatch: impl FnMut(&mut Box<dyn Scheduler>) -> Option<RqId>,
) -> Option<RqId> {
    match dispatch(scheduler) {
        None if !scheduler.is_empty() && scheduler.next_wakeup().is_some_and(|time| time <= now) => {
            // This first, vain call may have brought the scheduler to where it lets a request go at once. No thread
            // would plan for a time that has passed, so the scheduler is asked again here.
            dispatch(scheduler)
        }
        id => id,
    }
}

/// A scheduler and what belongs to it, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// The thread that had the hold last.
    last_thread: u16,
    pub(super) scheduler: Option<Box<dyn Scheduler>>,
    scheduler_area: Area,
    /// The domain's first hardware queue, or its only one.
    first: u16,
    /// Requests in the scheduler, by the hardware queue that they will go to, beginning with the first; `elsewhere`
    /// counts those for another hardware queue than the first.
    pub(super) queued: Vec<u32>,
    queued_area: Area,
    pub(super) elsewhere: u32,
    /// A hardware queue, and a lower bound of how many more of its requests have room, as long as this hold goes on.
    pub(super) room: (u16, u32),
    /// Requests other than reads that entered the scheduler since it was installed.
    pub(super) limited: u64,
    /// What had completed when the scheduler was installed.
    pub(super) base: Tally,
    base_limited: u64,
    /// How many of them had completed when that was looked up last, if not fewer are counted now. While the gate lets
    /// such requests pass it may be fewer, since those that pass are subtracted.
    pub(super) limited_over: Option<u64>,
    /// What combiners have taken over from other threads and not inserted yet, and what has to wait behind that.
    pub(crate) backlog: Backlog,
    /// The class whose requests may pass the scheduler by while nothing waits, as in the queue's word.
    pub(super) gate: Option<Class>,
    /// The gate is open for reads alone.
    pub(super) passes_reads_only: bool,
    /// The class of the request that was inserted last.
    pub(super) latest: Class,
    /// The client of the request that was inserted last.
    pub(super) latest_client: ClientId,
    /// How many more requests have to come until the gate may be opened. The first after a change of class does not
    /// count.
    pub(super) until_open: u32,
    /// Requests may have passed of which the scheduler has not been told, and the scheduler has requests of another
    /// class.
    pub(super) is_fold_due: bool,
    /// The gate is open for requests of this client alone.
    pub(super) gate_client: Option<ClientId>,
    /// The scheduler is told what passes it by and what completes.
    pub(super) wants_reports: bool,
    /// The limiter, with what was sent through it.
    pub(super) limiter: Option<Box<LimiterState>>,
    /// The scheduler takes tokens, or is told, or there is a limiter.
    is_special: bool,
    /// The word of its pool from which the latest token came, where the next search begins.
    token_home: u16,
    /// What the scheduler is being told, empty otherwise.
    pub(super) reports: Vec<Report>,
    /// When this hold began, if the scheduler is told.
    pub(super) since: Time,
}

impl Hold {
    pub(super) fn empty(first: u16) -> Self {
        Self {
            scheduler_area: Area::new("sched.root"),
            first,
            queued_area: Area::new("queue.queued"),
            backlog: Backlog::new(),
            token_home: first,
            ..Self::default()
        }
    }

    /// Puts a scheduler in place, or none, for so many hardware queues. Nothing is in flight, or nothing has begun.
    pub(super) fn install(&mut self, q: &Queue, scheduler: Option<Box<dyn Scheduler>>, nr_hctxs: usize) {
        debug_assert!(!self.has_waiting(), "a scheduler is replaced only when nothing waits");
        debug_assert!(nr_hctxs > 0, "a domain has a hardware queue");
        // What was noted for the scheduler that goes is not for the one that comes.
        self.take_reports(q, q.clock.now());
        self.end_limiter(q);
        let wants_reports = scheduler.is_some() && q.settings.wants_reports();
        *self = Self {
            scheduler,
            queued: vec![0; nr_hctxs],
            base: q.threads.tally(&Tally::default()),
            base_limited: self.nr_limited_completed(q),
            backlog: std::mem::take(&mut self.backlog),
            // The gate as it is in the queue's word, until the gate is set anew.
            gate: self.gate,
            passes_reads_only: self.passes_reads_only,
            gate_client: self.gate_client,
            wants_reports: wants_reports,
            reports: Vec::with_capacity(if wants_reports { ring() } else { 0 }),
            ..Self::empty(self.first)
        };
        self.note_areas();
        self.note_special(q);
    }

    /// Notes whether a choice is more than to ask the scheduler.
    pub(super) fn note_special(&mut self, q: &Queue) {
        self.is_special = self.wants_reports || q.settings.has_tokens() || self.limiter.is_some();
    }

    /// The number of hardware queues has changed. Nothing waits.
    pub(super) fn set_nr_hctxs(&mut self, nr_hctxs: usize) {
        debug_assert!(nr_hctxs > 0, "a device has a hardware queue");
        debug_assert!(!self.has_waiting(), "hardware queues change only when nothing waits");
        self.queued = vec![0; nr_hctxs];
        self.note_areas();
    }

    /// The scheduler and the counts may lie elsewhere than before.
    fn note_areas(&self) {
        self.queued_area.is_of(&self.queued);
        if let Some(scheduler) = &self.scheduler {
            self.scheduler_area.is(&**scheduler);
        }
    }

    /// The thread with this number takes the hold. If another one had the hold last, asks for all lines of
    /// the hold and of the scheduler, so that they come together.
    ///
    /// COST: a compare if the same thread had the hold last; otherwise a hint to the processor for each line.
    #[inline]
    pub(super) fn note_thread(&mut self, thread: u16) {
        if *reads(&self.last_thread) != thread {
            self.last_thread = thread;
            self.fetch();
        }
    }

    #[inline(never)]
    fn fetch(&self) {
        fetch(self);
        if let Some(scheduler) = reads(&self.scheduler) {
            fetch(&**scheduler);
        }
    }

    /// Tells of what each section on the path of a request touches here. What lies behind it tells itself.
    #[inline(always)]
    pub(super) fn tell_touched(&mut self) {
        reads(&self.scheduler);
        changes(&mut self.room);
        changes(&mut self.limited);
        changes(&mut self.until_open);
        changes(&mut self.elsewhere);
    }

    /// The scheduler, if there is one.
    pub(in crate::queue) fn scheduler(&self) -> Option<&dyn Scheduler> {
        self.scheduler.as_deref()
    }

    /// Tells the scheduler of a client or group, if there is one.
    pub(in crate::queue) fn tell(&mut self, q: &Queue, tell: impl FnOnce(&mut dyn Scheduler)) {
        // What happened until now happened to clients and groups as they were.
        self.take_reports(q, q.clock.now());
        if let Some(scheduler) = &mut self.scheduler {
            tell(scheduler.as_mut());
        }
    }

    /// Tells the scheduler that a client is gone, whose place another one may get.
    pub(in crate::queue) fn tell_gone(&mut self, q: &Queue, client: ClientId) {
        self.tell(q, |scheduler| scheduler.leave(client));
        if self.latest_client == client {
            self.end_gate(q);
            self.latest_client = ClientId::default();
        }
    }

    /// A request for a hardware queue enters the scheduler.
    fn count_in(&mut self, hctx: u16) {
        debug_assert!(self.scheduler.is_some(), "requests enter a scheduler if there is one");
        *changes(&mut self.queued[usize::from(hctx - self.first)]) += 1;
        self.elsewhere += u32::from(hctx != self.first);
    }

    /// A request for a hardware queue leaves the scheduler.
    fn count_out(&mut self, hctx: u16) {
        debug_assert!(self.queued[usize::from(hctx - self.first)] > 0, "what leaves the scheduler was counted in");
        *changes(&mut self.queued[usize::from(hctx - self.first)]) -= 1;
        self.elsewhere -= u32::from(hctx != self.first);
    }

    /// `number` requests of a class came in, one after the other.
    #[inline]
    pub(super) fn note_class(&mut self, class: Class, number: u32) {
        debug_assert!(number > 0, "a class is noted when requests of it come");
        if self.latest != class {
            self.latest = class;
            // The first of these requests, which has changed the class, does not count.
            self.until_open = self.until_open.max(STEADY) + 1;
        }
        self.until_open = self.until_open.saturating_sub(number);
    }

    /// A hold begins on the path of a request.
    #[inline]
    pub(crate) fn begin(&mut self, q: &Queue, now: Time) {
        if self.wants_reports {
            self.since = now;
            self.take_reports(q, now);
        }
    }

    /// The scheduler's choice, if it lets a request go now.
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

    /// The choice of a scheduler that takes tokens, or is told what passes it by and what completes, or has a limiter
    /// in front of the driver.
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

    /// What the scheduler would merge a request with.
    #[inline]
    pub(crate) fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.scheduler.as_mut()?.merge(info)
    }

    /// Inserts a request, or gives it back if the scheduler is full. `begin` is called with the request before it is
    /// out of this thread's hands.
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
        if self.scheduler.is_none() || !self.has_room(q, hctx) || !self.is_admitted(q, info, now) {
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
        self.limited += u64::from(limited);
        Ok(())
    }

    /// A request in the scheduler has joined another one there.
    pub(crate) fn note_joined(&mut self, absorbed: &Request<'_>) {
        self.count_out(absorbed.hctx());
        self.limited -= u64::from(absorbed.op() != Op::Read);
    }

    /// Whether requests may be handed through, as far as can be told at once.
    #[inline]
    pub(crate) fn may_dispatch_fast(&self) -> bool {
        !self.is_fold_due
            && self.is_limiter_open()
            && !self.backlog.has_waiting_for_room()
            && self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_empty())
    }

    /// Whether requests like this one may be handed through. Behind requests of another class, which the device may
    /// still have, the scheduler would decline; and it may bound requests other than reads.
    #[inline]
    pub(crate) fn may_dispatch_fast_like(&self, q: &Queue, like: &Info) -> bool {
        let class = like.priority.class;
        let is_limited = like.op != Op::Read && self.bounds_others(q, like);
        !is_limited && self.latest == class && self.gate.is_none_or(|gate| gate == class)
    }

    /// Asks the scheduler in which order it would hand requests out. Returns false if the scheduler declines.
    #[inline]
    pub(crate) fn order_fast(&mut self, known: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        if self.gate.is_some() {
            self.note_end_of_passing();
        }
        let is_ordered = self.scheduler.as_mut().is_some_and(|scheduler| scheduler.dispatch_fast(known, now, order));
        debug_assert!(!(is_ordered && self.wants_reports), "who wants reports has a ticket for each request");
        is_ordered
    }

    /// `number` requests like this one went through.
    #[inline]
    pub(crate) fn note_fast(&mut self, like: &Info, number: usize) {
        debug_assert!(self.is_empty(), "what goes through does not stay in the scheduler");
        self.note_class(like.priority.class, number as u32);
        self.limited += if like.op == Op::Read { 0 } else { number as u64 };
    }

    /// Whether all that waits in the scheduler goes to the first hardware queue.
    #[inline]
    pub(crate) fn is_for_first_hctx(&self) -> bool {
        self.elsewhere == 0
    }

    /// Requests in the scheduler.
    #[inline]
    pub(crate) fn nr_waiting(&self) -> usize {
        self.scheduler.as_ref().map_or(0, |scheduler| scheduler.len())
    }

    /// Whether the scheduler has nothing to choose from.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduler.as_ref().is_none_or(|scheduler| scheduler.is_empty())
    }

    /// Whether requests wait for the scheduler to choose them, or to get into it.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.is_empty() || !self.backlog.is_empty()
    }

    /// Whether the counts say what the scheduler and the backlog hold. For assertions.
    pub(super) fn agrees(&self) -> bool {
        let queued: u32 = self.queued.iter().sum();
        let first = self.queued.first().copied().unwrap_or(0);
        queued as usize == self.nr_waiting() && self.elsewhere == queued - first && self.backlog.agrees()
    }

    /// Whether the scheduler may take one more request for this hardware queue, by `nr_requests`. The caller inserts it
    /// then, unless the scheduler does not admit it.
    #[inline]
    fn has_room(&mut self, q: &Queue, hctx: u16) -> bool {
        let (known, left) = &mut self.room;
        if *known == hctx && *left > 0 {
            *left -= 1;
            true
        } else {
            self.has_room_now(q, hctx)
        }
    }

    /// Near the bound this looks up, for each request, how many requests the driver has, since the flush machine gives
    /// the driver more at any time. Farther away from the bound the hold remembers how many more requests have room,
    /// whatever the driver takes meanwhile.
    #[inline(never)]
    fn has_room_now(&mut self, q: &Queue, index: u16) -> bool {
        let nr_requests = q.settings.nr_requests.load(Ordering::Relaxed);
        let hctx = q.hctxs.get(index);
        let waiting = self.queued[usize::from(index - self.first)] + hctx.nr_dispatch();
        let left = nr_requests.saturating_sub(waiting + u32::from(q.hctxs.depth()));
        self.room = (index, left.saturating_sub(1));
        left > 0 || waiting + hctx.tags.weight() < nr_requests
    }

    /// Whether the scheduler admits a request.
    #[inline]
    fn is_admitted(&mut self, q: &Queue, info: &Info, now: Time) -> bool {
        if self.wants_reports {
            return self.is_admitted_by_reports(q, info, now);
        }
        info.op == Op::Read || !self.bounds_others(q, info) || self.is_admitted_now(q, info)
    }

    /// As [`is_admitted`](Self::is_admitted), for a scheduler that goes by what it is told. A request is refused only
    /// behind a look at what was noted. So a thread that looks again behind a fence finds what a completer noted before
    /// its fence ([`prepare_to_wait`](blkmq_sync::liveness::Liveness::prepare_to_wait)).
    #[inline(never)]
    fn is_admitted_by_reports(&mut self, q: &Queue, info: &Info, now: Time) -> bool {
        if self.admits(info, self.most_others(q)) {
            return true;
        }
        if unless_mutated("reports.admits") {
            self.take_reports(q, now);
        }
        self.is_admitted_now(q, info)
    }

    /// Looks up how many requests other than reads have completed, unless there is room even with as many as had when
    /// this was looked up last.
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

    /// Completed requests other than reads that this scheduler had dispatched. In a split queue, requests that passed
    /// the scheduler by do not count at all.
    fn nr_limited_completed(&self, q: &Queue) -> u64 {
        if q.settings.is_split() { q.hctxs.get(self.first).nr_limited_completed() } else { q.threads.nr_limited() }
    }

    /// Whether there can be so many requests other than reads that the scheduler does not admit one like this.
    #[inline]
    pub(super) fn bounds_others(&self, q: &Queue, info: &Info) -> bool {
        let most = self.outstanding(self.most_others(q));
        self.scheduler.as_ref().is_some_and(|scheduler| scheduler.limit_depth(info, most) != Admission::Admitted)
    }

    /// How many requests other than reads there can be beside one.
    #[inline]
    fn most_others(&self, q: &Queue) -> u64 {
        u64::from(q.settings.nr_requests.load(Ordering::Relaxed)) * self.queued.len() as u64 - 1
    }

    #[inline]
    fn outstanding(&self, others: u64) -> Outstanding {
        Outstanding { others, nr_hctxs: self.queued.len() as u32 }
    }

    #[inline]
    fn admits(&self, info: &Info, others: u64) -> bool {
        let outstanding = self.outstanding(others);
        let admission = self.scheduler.as_ref().map(|scheduler| scheduler.limit_depth(info, outstanding));
        admission != Some(Admission::Refused)
    }
}
