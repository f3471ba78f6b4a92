//! The pools of depth tokens that the hardware queues of a device share, and the control of their depths.
//!
//! A scheduler that limits how many requests of a kind are in flight takes a depth token for each request that it
//! dispatches ([`DispatchContext`]). A request that bypasses the scheduler takes one too. The request keeps its token
//! until it completes, even while it waits on a dispatch list because the driver gave it back. So each token is taken
//! once and put back once. The completer puts tokens back together with tags, in batches, and enters no section for
//! that.
//!
//! The completer also counts the request's latency, on lines that only it writes ([`Latencies`]). From time to time one
//! completer sums the lines of all threads and asks the [`Throttle`] for new depths. The first completion sets the time
//! for that; the completer that finds that it has come wins the turn by an exchange.
//!
//! # Liveness
//! A thread that finds no token prepares to wait, like one that finds no tag, and a thread that puts a token back, or
//! makes a pool deeper, notifies: see [`liveness`](blkmq_sync::liveness). A pool has at least one token, and a token
//! that is out belongs to a dispatched request. So a token comes back.

use std::fmt::{self, Write};

use blkmq_sched::{DispatchContext, Latency, RqId, SchedDomain, Scheduler, Sums, Throttle, Ticket, Time};

use crate::queue::Queue;
use crate::queue::accounting::add;
use crate::request::PoolToken;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::pool::{Claim, Pool};
use blkmq_sync::{Line, Mutex, place_anew, unless_mutated};

/// The state of the control of the depths.
#[derive(Debug, Default)]
struct Control {
    throttle: Throttle,
    /// The counts when the scheduler was installed.
    base: Sums,
}

/// The pools, by the index of the kind, and what decides their depths.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: [Pool; SchedDomain::ALL.len()],
    /// In nanoseconds, by the index of those kinds that are measured. Written when a knob is set.
    targets: Line<[AtomicU64; SchedDomain::MEASURED.len()]>,
    /// In nanoseconds: when to fold; `u64::MAX` if nothing has completed since the last fold.
    fold_at: Line<AtomicU64>,
    control: Mutex<Control>,
}

impl Pools {
    pub(in crate::queue) fn new() -> Self {
        let most = SchedDomain::ALL.map(Throttle::most_tokens);
        Self {
            pools: most.map(|most| Pool::new(most, most)),
            targets: Line::new("pools.targets", Default::default()),
            fold_at: Line::new("pools.fold_at", AtomicU64::new(u64::MAX)),
            control: Mutex::new(Control::default()),
        }
    }

    /// Names what lies on no line of its own, for rigs. The queue has its place.
    pub(in crate::queue) fn name_places(&self) {
        self.pools.iter().for_each(Pool::name_places);
        place_anew("pools.control", &self.control);
    }

    fn pool(&self, of: SchedDomain) -> &Pool {
        &self.pools[of.index()]
    }

    /// How many tokens of each kind are out.
    fn nr_out(&self) -> [u32; SchedDomain::ALL.len()] {
        std::array::from_fn(|kind| self.pools[kind].nr_out())
    }

    /// Takes a token. `home` spreads threads, or hardware queues, over the words of the pool.
    #[inline]
    fn take(&self, of: SchedDomain, home: u16) -> Option<PoolToken> {
        self.pool(of).take(home).map(|word| PoolToken { of, word })
    }

    /// Takes up to `count` tokens, as they are asked for.
    #[inline]
    pub(crate) fn take_some(&self, of: SchedDomain, home: u16, count: usize) -> TakenTokens<'_> {
        TakenTokens { of, taken: self.pool(of).take_some(home, count) }
    }

    /// Puts an unused token back. The caller notifies.
    pub(crate) fn put(&self, token: PoolToken) {
        self.pool(token.of).put(token.word, 1);
    }

    fn target(&self, of: SchedDomain) -> Option<u64> {
        self.targets.get(of.index()).map(|target| target.load(Ordering::Relaxed))
    }

    fn note_targets(&self, throttle: &Throttle) {
        for (of, target) in SchedDomain::MEASURED.into_iter().zip(&*self.targets) {
            target.store(throttle.target(of).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Sets the time of the next fold, or folds if it has come. Called by a completer that has counted something.
    ///
    /// COST: a load of a line that is written twice in 100 ms.
    #[inline]
    fn look(&self, q: &Queue, now: Time) {
        let at = self.fold_at.load(Ordering::Relaxed);
        if at == u64::MAX || at <= now.0 {
            self.turn(q, at, now);
        }
    }

    #[cold]
    fn turn(&self, q: &Queue, at: u64, now: Time) {
        let next = if at == u64::MAX { Throttle::next_fold(now).0 } else { u64::MAX };
        // Relaxed: the control's lock orders folds.
        let won = self.fold_at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // If the control is locked, a knob is being set or a dump is made. Then the next completion sets another time.
        if won
            && next == u64::MAX
            && let Some(mut control) = self.control.try_lock()
        {
            let sums = latencies_since(q, &control.base);
            let depths = control.throttle.fold(&sums, now);
            for (pool, depth) in self.pools.iter().zip(depths) {
                depth.into_iter().filter(|_| unless_mutated("tokens.depth")).for_each(|depth| pool.set_depth(depth));
            }
        }
    }

    /// The scheduler changes, and takes tokens under this control, or takes none. Called when nothing is in flight.
    ///
    /// # Panics
    /// If a token is out: it was lost, or put back twice.
    pub(in crate::queue) fn install_throttle(&self, q: &Queue, throttle: Option<Throttle>) {
        let out = self.nr_out();
        assert!(out == [0; SchedDomain::ALL.len()], "nothing is in flight, and so many tokens are out: {out:?}");
        let mut control = self.control.lock();
        let throttle = throttle.unwrap_or_default();
        for of in SchedDomain::ALL {
            self.pool(of).set_depth(throttle.depth(of));
        }
        self.note_targets(&throttle);
        self.fold_at.store(u64::MAX, Ordering::Relaxed);
        *control = Control { throttle, base: latencies_since(q, &Sums::default()) };
    }

    /// Calls `ask` with the control of the tokens.
    pub(in crate::queue) fn with_throttle<R>(&self, ask: impl FnOnce(&mut Throttle) -> R) -> R {
        let mut control = self.control.lock();
        let answer = ask(&mut control.throttle);
        self.note_targets(&control.throttle);
        answer
    }

    /// For dumps.
    pub(in crate::queue) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        self.with_throttle(|throttle| throttle.show(self.nr_out(), out))
    }
}

/// Tokens that are being taken.
#[must_use = "tokens that were claimed go back at the end"]
pub(crate) struct TakenTokens<'a> {
    of: SchedDomain,
    taken: Claim<'a>,
}

impl TakenTokens<'_> {
    #[inline]
    pub(crate) fn next(&mut self) -> Option<PoolToken> {
        self.taken.next().map(|word| PoolToken { of: self.of, word })
    }

    /// As of [`Claim::end`].
    pub(crate) fn end(self) -> bool {
        self.taken.end()
    }
}

/// The context of one dispatch: where the scheduler takes the token and sets the ticket of the request that it
/// dispatches.
pub(in crate::queue) struct Lender<'q> {
    /// `None`: the scheduler takes no tokens.
    pools: Option<&'q Pools>,
    home: u16,
    /// The token that was taken, until the request has it.
    token: Option<PoolToken>,
    ticket: Option<Ticket>,
}

impl<'q> Lender<'q> {
    #[inline]
    pub(in crate::queue) fn new(q: &'q Queue, home: u16) -> Self {
        Self { pools: q.pools(), home, token: None, ticket: None }
    }

    /// Asks the scheduler. Puts an unused token back.
    #[inline]
    pub(in crate::queue) fn lend(&mut self, q: &Queue, scheduler: &mut dyn Scheduler, now: Time) -> Option<RqId> {
        let chosen = scheduler.dispatch(self, now);
        if chosen.is_none()
            && let (Some(pools), Some(token)) = (self.pools, self.token.take())
        {
            pools.put(token);
            q.live.fence_before_notify();
        }
        chosen
    }

    /// The token and the ticket of the dispatched request.
    pub(in crate::queue) fn given(self) -> (Option<PoolToken>, Option<Ticket>) {
        debug_assert_eq!(
            self.token.is_some(),
            self.pools.is_some(),
            "a policy that takes tokens takes one for each choice"
        );
        (self.token, self.ticket)
    }
}

impl DispatchContext for Lender<'_> {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        debug_assert!(self.token.is_none(), "a choice takes one token");
        let Some(pools) = self.pools else { return true };
        self.token = pools.take(of, self.home);
        self.token.is_some()
    }

    fn set_ticket(&mut self, ticket: Ticket) {
        debug_assert!(self.ticket.is_none(), "a choice has one ticket");
        self.ticket = Some(ticket);
    }
}

/// Tokens to put back, and the latencies of their requests. Both are gathered over runs of requests that are alike.
///
/// COST: for each run of requests whose tokens go to one word of a pool, one read-modify-write of that word; for each
/// run of requests of one kind that began together, two counters of this thread.
pub(crate) struct TokenBatch<'q> {
    pools: Option<&'q Pools>,
    latencies: &'q Latencies,
    now: Time,
    /// The word of the tokens, and how many there are.
    token: Option<PoolToken>,
    nr_tokens: u32,
    /// The kind of the requests, their times of submission and issue, and how many there are.
    like: Option<(SchedDomain, Time, Time)>,
    nr_alike: u32,
    has_measured: bool,
}

impl<'q> TokenBatch<'q> {
    #[inline]
    pub(crate) fn new(q: &'q Queue, latencies: &'q Latencies, now: Time) -> Self {
        let pools = q.pools();
        Self { pools, latencies, now, token: None, nr_tokens: 0, like: None, nr_alike: 0, has_measured: false }
    }

    /// A request with this token has completed.
    #[inline]
    pub(crate) fn add(&mut self, token: PoolToken, submitted: Time, issued: Time) {
        if self.token != Some(token) {
            self.put_run();
            self.token = Some(token);
        }
        self.nr_tokens += 1;
        let like = (token.of, submitted, issued);
        if self.like != Some(like) {
            self.count_run();
            self.like = Some(like);
        }
        self.nr_alike += 1;
        if !unless_mutated("tokens.once")
            && let Some(pools) = self.pools
        {
            pools.put(token);
        }
    }

    /// Puts back the tokens of one word.
    #[inline(never)]
    fn put_run(&mut self) {
        let (Some(token), Some(pools)) = (self.token.take(), self.pools) else { return };
        let number = std::mem::take(&mut self.nr_tokens);
        if unless_mutated("tokens.put") {
            pools.pool(token.of).put(token.word, number);
        }
    }

    /// Counts the latencies of requests that are alike.
    #[inline(never)]
    fn count_run(&mut self) {
        let (Some((of, submitted, issued)), Some(pools)) = (self.like.take(), self.pools) else { return };
        let number = std::mem::take(&mut self.nr_alike);
        if let Some(target) = pools.target(of) {
            for (latency, since) in [(Latency::Total, submitted), (Latency::Io, issued)] {
                let bucket = Throttle::bucket(target, self.now.since(since));
                let of = if unless_mutated("tokens.histogram") { of } else { SchedDomain::Read };
                self.latencies.add(of, latency, bucket, number.into());
            }
            self.has_measured = true;
        }
    }

    /// Puts the rest back, and folds if the time has come. The caller notifies.
    #[inline]
    pub(crate) fn put(&mut self, q: &Queue) {
        if self.token.is_some() {
            self.put_run();
            self.count_run();
        }
        if self.has_measured
            && let Some(pools) = self.pools
        {
            pools.look(q, self.now);
        }
    }
}

/// The counts of all threads since `base`.
fn latencies_since(q: &Queue, base: &Sums) -> Sums {
    let mut sums = Sums::default();
    q.threads.iter().for_each(|(_, thread)| thread.latencies.add_to(&mut sums));
    let base = base.counts.as_flattened().as_flattened().iter();
    for (sum, base) in sums.counts.as_flattened_mut().as_flattened_mut().iter_mut().zip(base) {
        *sum = sum.saturating_sub(*base);
    }
    sums
}

/// Latencies of the requests that one thread completed, counted by the index of the kind and of the latency, and by
/// bucket. Only this thread writes them.
#[derive(Debug)]
pub(crate) struct Latencies(Line<[[[AtomicU64; Throttle::BUCKETS]; Latency::ALL.len()]; SchedDomain::MEASURED.len()]>);

impl Latencies {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("submitter.latencies", Default::default()))
    }

    /// COST: a load and a store.
    #[inline]
    fn add(&self, of: SchedDomain, latency: Latency, bucket: usize, number: u64) {
        add(&self.0[of.index()][latency.index()][bucket], number);
    }

    fn add_to(&self, sums: &mut Sums) {
        let counts = self.0.as_flattened().as_flattened().iter();
        for (sum, count) in sums.counts.as_flattened_mut().as_flattened_mut().iter_mut().zip(counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}
