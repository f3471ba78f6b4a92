//! A scheduler that tells the witness every decision it makes.

mod inner;
mod roster;
mod shares;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use blkmq_sched::{
    Admission, Class, ClientId, ClientSettings, DispatchContext, Fairness, FastRequest, Feedback, FeedbackKind,
    GroupId, GroupSettings, Info, InsertAt, Join, Knob, KnobError, Latency, Merge, NewDepths, Op, Outstanding, Passing,
    PerHctx, RqId, SchedDomain, Scheduler, Setting, Sums, Tally, Throttle, Ticket, Time,
};
use blkmq_virtual::{LimiterStep, LimiterWatcher, watch_limiters};

use self::inner::Inner;
use self::roster::Roster;
use self::shares::Shares;
use super::check::Violation;
use super::event::Event;
use super::witness::Witness;

/// A wrapper that watches another scheduler. The wrapper decides nothing.
pub(crate) struct Watched {
    inner: Inner,
    witness: Witness,
    /// The latest time that the scheduler was told.
    now: Time,
    /// The number of this value. `None` until it is used: a queue also makes values only to ask them something.
    value: Option<u16>,
    /// The number of the next value of the same scheduler that is used.
    next_value: Arc<AtomicU16>,
    /// How often the depths of the tokens were quartered before the scheduler is in place.
    shallow: u32,
    /// The control of the tokens was made, of which the witness was told. A queue uses the first one.
    is_throttled: Arc<AtomicBool>,
    roster: Roster,
    shares: Shares,
    /// Clients and classes of the requests that wait in fair.
    flows: BTreeMap<RqId, (ClientId, Class)>,
}

thread_local! {
    /// The witness of the world that this thread plays.
    static WITNESS: RefCell<Option<Witness>> = const { RefCell::new(None) };
}

/// Sets the witness that is told what the control of tokens decides, and what limiters do. All CPUs of a world are on
/// one thread.
pub(crate) fn set_witness(witness: Option<Witness>) {
    watch_limiters(witness.as_ref().map(|_| tell_limiter as LimiterWatcher));
    WITNESS.with(|known| *known.borrow_mut() = witness);
}

/// Tells the witness what a limiter does.
fn tell_limiter(step: LimiterStep) {
    let witness = WITNESS.with(|known| known.borrow().clone());
    if let Some(witness) = witness {
        match step {
            LimiterStep::Sent { rq, cost, bound, phase } => witness.tell(Event::Sent { rq, cost, bound, phase }),
            LimiterStep::Created => witness.tell(Event::Limited),
            LimiterStep::Withheld { until } => witness.tell(Event::Withheld { until }),
            LimiterStep::Learned { progress, phase } => {
                witness.tell(Event::Learned { progress: &progress, phase });
            }
        }
    }
}

fn tell_fold(sums: &Sums, now: Time, depths: NewDepths) {
    let witness = WITNESS.with(|known| known.borrow().clone());
    if let Some(witness) = witness {
        witness.tell(Event::Adjusted { sums, now, depths });
    }
}

impl Watched {
    /// Watches the scheduler of this name, if there is one. If it takes tokens, there are few of them from the
    /// beginning: the depths were quartered `shallow` times.
    pub(crate) fn named(name: &str, witness: Witness, shallow: u32) -> Option<Box<Self>> {
        let (inner, now, next_value) = (Inner::named(name)?, Time(0), Arc::default());
        Some(Box::new(Self {
            inner,
            witness,
            now,
            value: None,
            next_value,
            shallow,
            is_throttled: Arc::default(),
            roster: Roster::default(),
            shares: Shares::default(),
            flows: BTreeMap::new(),
        }))
    }

    fn value(&mut self) -> u16 {
        *self.value.get_or_insert_with(|| self.next_value.fetch_add(1, Ordering::Relaxed))
    }
}

/// Lets the control of tokens see a device that is too slow with discards, and with nothing else. The control sees one
/// completion of each kind, and looks three times, so that it waits for no more.
fn quarter(throttle: &mut Throttle, sums: &mut Sums) {
    sums.add(SchedDomain::Discard, Latency::Io, Throttle::BUCKETS - 1);
    SchedDomain::MEASURED.into_iter().for_each(|of| sums.add(of, Latency::Total, 0));
    for seconds in 0..3 {
        // The pools are made with the depths that the control has in the end.
        let _ = throttle.fold(sums, Time(seconds * 1_000_000_000));
    }
}

/// Tells the witness which tokens are taken, and keeps the ticket.
struct WatchedContext<'a> {
    inner: &'a mut dyn DispatchContext,
    witness: &'a Witness,
    value: u16,
    ticket: Option<Ticket>,
}

impl DispatchContext for WatchedContext<'_> {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        let is_given = self.inner.take_token(of);
        self.witness.tell(Event::Token { value: self.value, of, is_given });
        is_given
    }

    fn set_ticket(&mut self, ticket: Ticket) {
        self.ticket = Some(ticket);
        self.inner.set_ticket(ticket);
    }
}

impl Watched {
    fn tell_choice(&mut self, chosen: Option<RqId>, ticket: Option<Ticket>, now: Time) {
        let (value, waiting, wakeup) = (self.value(), self.inner.len(), self.inner.next_wakeup());
        match chosen {
            Some(rq) => {
                self.roster.dispatch(rq);
                self.witness.tell(Event::Chosen { rq, now });
                self.tell_tag(rq, false);
                self.flows.remove(&rq);
                if self.inner.feedback() == FeedbackKind::Events {
                    self.witness.tell(Event::Ticketed { rq, ticket });
                }
            }
            None => self.witness.tell(Event::HeldBack { value, waiting, now, wakeup }),
        }
    }

    /// Tells the tag of the flow of a request, if there are tags.
    fn tell_tag(&self, rq: RqId, passes: bool) {
        if let Some((client, class)) = self.flows.get(&rq).copied()
            && let Some((tag, is_special, is_exclusive)) = self.inner.tag(client, class)
        {
            self.witness.tell(Event::Tagged { rq, tag, is_special, is_exclusive, passes });
        }
    }

    /// Tells that times of service have ended, and notes the time that the scheduler was told.
    fn tell_ends(&mut self, now: Time) {
        self.now = self.now.max(now);
        for reason in self.inner.ends_of_service() {
            self.witness.tell(Event::Expired { reason });
        }
    }

    /// What lets requests pass hands them out if they come to it after all.
    fn judge_passing(&self, class: Class, client: ClientId, passing: Passing) {
        let clients = match passing {
            Passing::Nobody => return,
            Passing::Client => [Some(client), None],
            Passing::All => [Some(client), self.roster.another(client)],
        };
        for client in clients.into_iter().flatten() {
            if self.inner.is_empty() && !self.inner.would_hand_out(class, client, Op::Read, self.now) {
                let what =
                    format!("lets requests of client {} and class {class:?} pass, and would hold them back", client.0);
                self.witness.accuse(Violation::new("gate", format!("the scheduler {what}")));
            }
        }
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        self.inner.show(&mut text).expect("a text takes everything");
        text
    }

    fn judge(&self, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.witness.accuse(Violation::new("tenants", what));
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Scheduler for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn reserve(&mut self, capacity: usize) {
        self.inner.reserve(capacity);
    }

    fn configure(&mut self, setting: Setting) {
        self.inner.configure(setting);
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        let merge = self.inner.merge(info)?;
        self.witness.tell(Event::Merged { into: merge.into, info: *info, how: merge.how });
        if let Some(Join { survivor, absorbed }) = merge.joined {
            self.roster.absorb(absorbed);
            self.flows.remove(&absorbed);
            self.witness.tell(Event::Absorbed { into: survivor, absorbed });
        }
        Some(merge)
    }

    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        let before = self.inner.shows_shares() && self.shares.asks(info, at);
        let before = before.then(|| self.shown());
        self.inner.insert(rq, info, at, now);
        if let Some(before) = before
            && let Err(what) = self.shares.judge(rq, info, [&before, &self.shown()])
        {
            self.witness.accuse(Violation::new("shares", what).request(rq));
        }
        self.tell_ends(now);
        let verdict = self.roster.insert(rq, info.client);
        self.judge(verdict);
        let value = self.value();
        self.witness.tell(Event::Inserted { value, rq, info: *info, at, now });
        if matches!(self.inner, Inner::Fair(_)) && at == InsertAt::Sorted {
            self.flows.insert(rq, (info.client, info.priority.class));
            self.tell_tag(rq, false);
        }
    }

    fn dispatch(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        let value = self.value();
        let mut context = WatchedContext { inner: context, witness: &self.witness, value, ticket: None };
        let chosen = self.inner.dispatch(&mut context, now);
        let ticket = context.ticket;
        self.tell_ends(now);
        self.tell_choice(chosen, ticket, now);
        chosen
    }

    fn init_hctx(&self) -> Option<PerHctx> {
        let PerHctx { scheduler, mut throttle } = self.inner.init_hctx()?;
        if let Some(throttle) = throttle.as_mut().filter(|_| !self.is_throttled.swap(true, Ordering::Relaxed)) {
            self.witness.tell(Event::Throttled);
            throttle.set_observer(tell_fold);
            let mut sums = Sums::default();
            (0..self.shallow).for_each(|_| quarter(throttle, &mut sums));
        }
        let scheduler = Box::new(Self {
            inner: Inner::Any(scheduler),
            witness: self.witness.clone(),
            now: self.now,
            value: None,
            next_value: Arc::clone(&self.next_value),
            shallow: self.shallow,
            is_throttled: Arc::clone(&self.is_throttled),
            roster: Roster::default(),
            shares: Shares::default(),
            flows: BTreeMap::new(),
        });
        Some(PerHctx { scheduler, throttle })
    }

    fn dispatch_fast(&mut self, batch: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        if !self.inner.dispatch_fast(batch, now, order) {
            return false;
        }
        let value = self.value();
        for FastRequest { rq, info } in batch {
            let verdict = self.roster.insert(*rq, info.client);
            self.roster.dispatch(*rq);
            self.judge(verdict);
            self.witness.tell(Event::Inserted { value, rq: *rq, info: *info, at: InsertAt::Sorted, now });
        }
        if matches!(self.inner, Inner::Fair(_)) {
            for FastRequest { rq, info } in batch {
                self.flows.insert(*rq, (info.client, info.priority.class));
                self.tell_tag(*rq, true);
                self.flows.remove(rq);
            }
        }
        for place in order {
            self.witness.tell(Event::Chosen { rq: batch[usize::from(*place)].rq, now });
        }
        true
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn feedback(&self) -> FeedbackKind {
        self.inner.feedback()
    }

    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        if let Feedback::Events(reports, now) = feedback {
            for report in reports {
                self.roster.report(report);
                self.shares.report(report);
            }
            self.witness.tell(Event::Reported { reports, now });
        }
        if let Feedback::Usage(usage, _) = feedback {
            self.witness.tell(Event::Used { usage });
        }
        let fairness = self.inner.observe(feedback);
        match feedback {
            Feedback::Sums(Tally { completed, bypassed }) => {
                self.witness.tell(Event::Folded { completed: *completed, bypassed: *bypassed });
            }
            Feedback::Events(_, now) => self.tell_ends(now),
            Feedback::BypassEnded | Feedback::Usage(..) => {}
        }
        fairness
    }

    fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        let verdict = self.roster.join(client, settings);
        self.judge(verdict);
        self.witness.tell(Event::ClientJoined { client, settings: *settings });
        self.shares.join(client, settings);
        self.inner.join(client, settings);
    }

    fn leave(&mut self, client: ClientId) {
        let verdict = self.roster.leave(client);
        self.judge(verdict);
        self.witness.tell(Event::ClientLeft { client });
        self.shares.leave(client);
        self.inner.leave(client);
    }

    fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        let verdict = self.roster.join_group(group, settings);
        self.judge(verdict);
        self.witness.tell(Event::GroupJoined { group, settings: *settings });
        self.shares.join_group(group, settings);
        self.inner.join_group(group, settings);
    }

    fn leave_group(&mut self, group: GroupId) {
        let verdict = self.roster.leave_group(group);
        self.judge(verdict);
        self.witness.tell(Event::GroupLeft { group });
        self.shares.leave_group(group);
        self.inner.leave_group(group);
    }

    fn may_pass(&self, class: Class, client: ClientId) -> Passing {
        let passing = self.inner.may_pass(class, client);
        self.witness.tell(Event::Gated { class, client, passing });
        self.judge_passing(class, client, passing);
        passing
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.inner.next_wakeup()
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let admission = self.inner.limit_depth(newcomer, outstanding);
        let is_by_client = self.inner.feedback() == FeedbackKind::Events || outstanding.reserved.is_some();
        if admission == Admission::Refused && is_by_client {
            self.judge(self.roster.refuse(newcomer.client));
        }
        admission
    }

    fn knobs(&self) -> &'static [Knob] {
        self.inner.knobs()
    }

    fn knob(&self, name: &str) -> Option<i64> {
        self.inner.knob(name)
    }

    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        self.inner.set_knob(name, value)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.inner.show(out)
    }
}
