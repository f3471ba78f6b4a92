//! Counting requests as they begin and as they end, a batch at a time.

use blkmq_sched::{Op, Time};

use crate::queue::Queue;
use crate::queue::accounting::{Count, Gauge, Group, Sums};
use crate::queue::threads::ThreadState;
use crate::request::{FlushStep, Request, StatClass};
use blkmq_sync::atomic::Ordering;

/// The queue decides once, when a request enters the queue. So what was counted in is counted out, whatever is switched
/// meanwhile.
impl StatClass {
    /// The request is not counted.
    const NONE: Self = Self(0);
    /// The request is counted in the thread's sums and nowhere else.
    const PLAIN: Self = Self(1);
    /// The request is counted in the thread's sums, and in the shared line or a range if there are any.
    const SPECIAL: Self = Self(2);

    /// Also in the range that has this place.
    const fn in_range(place: usize) -> Self {
        std::debug_assert!(place <= u8::MAX as usize - 3, "the place of a range fits the mark");
        Self(3 + place as u8)
    }

    fn is_counted(self) -> bool {
        self != Self::NONE
    }

    const fn is_special(self) -> bool {
        self.0 >= Self::SPECIAL.0
    }

    /// The place of the range in which the request is counted.
    fn place(self) -> Option<usize> {
        self.0.checked_sub(3).map(usize::from)
    }
}

/// How a request of the queue that enters now is counted, as far as its sectors do not matter.
#[inline]
fn mark_now(q: &Queue) -> StatClass {
    let account = &q.account;
    match (q.settings.iostats.load(Ordering::Relaxed), account.gauge.shared().is_used() || account.ranges.any()) {
        (0, _) => StatClass::NONE,
        (_, false) => StatClass::PLAIN,
        (_, true) => StatClass::SPECIAL,
    }
}

/// How one of the queue's own flushes that begins now is counted: as a flush, and never as in flight.
pub(crate) fn mark_of_flush(q: &Queue) -> StatClass {
    if mark_now(q).is_counted() { StatClass::PLAIN } else { StatClass::NONE }
}

/// The gauge and this thread's sums of a range.
fn range<'q>(q: &'q Queue, thread: &'q ThreadState, place: usize) -> (&'q Gauge, &'q Sums) {
    let sums = thread.range_sums(place).expect("sums are made before a range has a place");
    (q.account.ranges.gauge(place), sums)
}

/// Requests that begin in one go. How many operations enter the queue is counted elsewhere, by `Counters`. Each
/// operation is a request, unless it merges or is not counted. So here only merges, and operations that are not
/// counted, are added up. For a range of sectors the operations that enter it are added up too.
///
/// COST: per request a mark on its line and two looks at it; per batch the settings' line and a look at the clock's
/// tick.
pub(crate) struct StartBatch<'q> {
    pub(crate) q: &'q Queue,
    pub(crate) now: Time,
    pub(crate) thread: &'q ThreadState,
    /// How requests are counted now, if they are in no range.
    mark: StatClass,
}

impl<'q> StartBatch<'q> {
    /// Requests begin at `now`. Called before any other thread can see the first of them.
    #[inline]
    pub(crate) fn new(q: &'q Queue, thread: &'q ThreadState, now: Time) -> Self {
        let mark = mark_now(q);
        if mark.is_counted() {
            let gauge = &q.account.gauge;
            gauge.advance(now, || q.threads.nr_queued(gauge) > 0);
        }
        Self { q, now, thread, mark }
    }

    /// A request enters the queue, and no other thread has it yet.
    #[inline]
    pub(crate) fn add(&self, rq: &mut Request<'_>) {
        if self.mark(rq) {
            self.add_special(rq);
        }
    }

    /// The first half of [`add`](Self::add), which no other thread can see yet. Returns whether there is a second half.
    #[inline]
    pub(crate) fn mark(&self, rq: &mut Request<'_>) -> bool {
        let body = rq.body_mut();
        debug_assert!(body.nr_parts > 0, "a request is one operation at least");
        body.mark = self.mark;
        self.mark.is_special() || body.nr_parts > 1
    }

    /// The second half, for requests that have one.
    #[inline(never)]
    fn add_special(&self, rq: &mut Request<'_>) {
        if !self.mark.is_counted() {
            return;
        }
        let account = &self.q.account;
        let (group, merges) = (Group::of(rq.op()), u64::from(rq.body().nr_parts) - 1);
        self.thread.sums.merged(group, merges);
        account.gauge.shared().start();
        if !self.mark.is_special() || rq.nr_sectors() == 0 {
            return;
        }
        let Some(place) = account.ranges.find(rq.sector()) else { return };
        rq.body_mut().mark = StatClass::in_range(place);
        let (gauge, sums) = range(self.q, self.thread, place);
        gauge.advance(self.now, || self.q.threads.nr_queued_in(place, gauge) > 0);
        gauge.shared().start();
        sums.merged(group, merges);
        sums.entered(merges + 1);
    }

    /// The operations of a newcomer join a request in the scheduler, which may be counted or not.
    pub(crate) fn merge(&self, into: &Request<'_>, newcomer: &Request<'_>) {
        let (mark, operations) = (into.body().mark, u64::from(newcomer.body().nr_parts));
        if !self.mark.is_counted() {
            return;
        }
        if !mark.is_counted() {
            return self.thread.sums.skipped(operations);
        }
        let group = Group::of(into.op());
        self.thread.sums.merged(group, operations);
        if let Some(place) = mark.place() {
            let (_, sums) = range(self.q, self.thread, place);
            sums.entered(operations);
            sums.merged(group, operations);
        }
    }

    /// A request that was to enter ends instead: it would have had to wait.
    pub(crate) fn refuse(&self, rq: &Request<'_>) {
        if self.mark.is_counted() {
            self.thread.sums.skipped(rq.body().nr_parts.into());
        }
    }

    /// `operations`, all those of the batch, are counted as entered.
    #[inline]
    pub(crate) fn finish(self, entered: u64) {
        if !self.mark.is_counted() {
            self.thread.sums.skipped(entered);
        }
    }
}

/// Requests that end in one go, counted as runs of one operation.
///
/// COST: per request a few additions; per batch a look at the clock's tick, and per run the thread's own line. The
/// fields keep their order so that no two sums are neighbours. Neighbouring sums would be added as one vector. The load
/// of that vector waits until the narrower stores of the earlier sums have left the processor's store buffer.
#[repr(C)]
pub(crate) struct EndBatch<'q> {
    requests: u64,
    q: &'q Queue,
    sectors: u64,
    thread: &'q ThreadState,
    /// The times of their submission, summed.
    submitted: u64,
    pub(crate) now: Time,
    op: Op,
}

impl<'q> EndBatch<'q> {
    /// Requests end at `now`.
    #[inline]
    pub(crate) fn new(q: &'q Queue, thread: &'q ThreadState, now: Time) -> Self {
        Self { requests: 0, q, sectors: 0, thread, submitted: 0, now, op: Op::Read }
    }

    /// A request is over.
    #[inline]
    pub(crate) fn add(&mut self, rq: &Request<'_>) {
        let body = rq.body();
        if body.mark != StatClass::PLAIN {
            if body.mark == StatClass::NONE {
                return;
            }
            self.add_special(rq);
        }
        if rq.op() != self.op {
            self.turn_to(rq.op());
        }
        self.requests += 1;
        self.sectors += u64::from(rq.nr_sectors());
        self.submitted = self.submitted.wrapping_add(body.submitted.0);
    }

    /// The run is over, and a run of another operation begins.
    #[cold]
    fn turn_to(&mut self, op: Op) {
        self.publish();
        self.op = op;
    }

    #[inline(never)]
    fn add_special(&self, rq: &Request<'_>) {
        let (account, body) = (&self.q.account, rq.body());
        let group = Group::of(rq.op());
        // The whole queue's time is counted before the request is gone from the shared line.
        account.gauge.advance(self.now, || true);
        account.gauge.shared().end();
        let Some(place) = body.mark.place() else { return };
        let (gauge, sums) = range(self.q, self.thread, place);
        gauge.advance(self.now, || true);
        gauge.shared().end();
        sums.ended(group, 1, rq.nr_sectors().into(), self.now.since(body.submitted));
    }

    /// One of the queue's own flushes is over.
    pub(crate) fn add_flush(&self, flush: &Request<'_>) {
        debug_assert_eq!(flush.body().flush, FlushStep::Flush, "the queue's own flushes are counted as such");
        let body = flush.body();
        if body.mark.is_counted() {
            self.thread.sums.ended(Group::Flush, 1, 0, self.now.since(body.submitted));
        }
    }

    /// Shows readers what has been added. Called before the operations are handed to other threads, so that a thread
    /// that has its completions finds them counted.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.requests > 0 {
            self.q.account.gauge.advance(self.now, || true);
            // A batch's time may be older than what another thread submitted meanwhile, by less than the batch took.
            let ns = self.requests.wrapping_mul(self.now.0).wrapping_sub(self.submitted);
            let ns = u64::try_from(ns.cast_signed()).unwrap_or(0);
            self.thread.sums.ended(Group::of(self.op), self.requests, self.sectors, ns);
            (self.requests, self.sectors, self.submitted) = (0, 0, 0);
        }
    }
}

impl ThreadState {
    /// Operations that were to enter a frozen queue end instead.
    pub(crate) fn account_frozen(&self, operations: u64) {
        debug_assert!(operations > 0, "a request is one operation at least");
        self.counters.entered(operations);
        self.sums.skipped(operations);
        self.counters.completed(operations);
        self.counters.count(Count::Errors, operations);
    }

    /// A request that had begun, and was counted among those that entered, ends because it would have to wait. The
    /// request counts as if it had not begun.
    #[cold]
    pub(crate) fn account_refuse(&self, q: &Queue, rq: &mut Request<'_>) {
        let mark = std::mem::replace(&mut rq.body_mut().mark, StatClass::NONE);
        if !mark.is_counted() {
            return;
        }
        let (group, operations) = (Group::of(rq.op()), u64::from(rq.body().nr_parts));
        self.account_end(q, mark, |sums| sums.merged(group, (operations - 1).wrapping_neg()));
        self.sums.skipped(operations);
        if let Some(place) = mark.place() {
            range(q, self, place).1.entered(operations.wrapping_neg());
        }
    }

    /// A request that had begun joins another one in the scheduler, after it has waited for its turn to be inserted.
    pub(crate) fn account_merge(&self, q: &Queue, absorbed: &Request<'_>) {
        let (mark, group) = (absorbed.body().mark, Group::of(absorbed.op()));
        if mark.is_counted() {
            self.account_end(q, mark, |sums| sums.merged(group, 1));
        }
    }

    /// A request with this mark is no request of its own any more: `add` adds that to the sums where it was counted.
    fn account_end(&self, q: &Queue, mark: StatClass, add: impl Fn(&Sums)) {
        debug_assert!(mark.is_counted(), "a request that was counted in is counted out");
        add(&self.sums);
        q.account.gauge.shared().end();
        if let Some(place) = mark.place() {
            let (gauge, sums) = range(q, self, place);
            add(sums);
            gauge.shared().end();
        }
    }

    /// A request in the scheduler joins another one. If the absorbed request is the older one, the other also counts
    /// its time from then on.
    pub(crate) fn account_join(&self, q: &Queue, survivor: &Request<'_>, absorbed: &Request<'_>) {
        self.account_merge(q, absorbed);
        let group = Group::of(absorbed.op());
        let (survivor, absorbed) = (survivor.body(), absorbed.body());
        if !absorbed.mark.is_counted() {
            return;
        }
        let older = if survivor.mark.is_counted() { survivor.submitted.since(absorbed.submitted) } else { 0 };
        self.sums.lasted(group, older);
        if let Some(place) = survivor.mark.place() {
            range(q, self, place).1.lasted(group, older);
        }
    }
}
