//! Each rule refuses histories that break it: worlds are played, and one event or one kind of events is changed before
//! a checker sees it. The tests of the rig play whole worlds that no checker may refuse, and `tests/mutants.rs` plays
//! worlds in which the block layer itself is broken.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_sched::limiter::Progress;
use blkmq_sched::{Class, ClientId, InsertAt, Op, Passing, Time};
use blkmq_virtual::{DiskStats, Flags, IoPriority, RejectReason, Status};

use super::super::event::{Action, Asked, Control, Counts, Event, Phase, RangeCount};
use super::super::history::Entry;
use super::super::memory::CountingAllocator;
use super::super::plan::Plan;
use super::super::play::{facts, play_apart};
use super::super::settings::Settings;
use super::*;

/// What a checker sees in place of an event; `None`: the event is as it was.
type Change = for<'a> fn(Event<'a>) -> Option<Vec<Event<'a>>>;

/// A way to break a rule.
#[derive(Clone, Copy)]
struct Case {
    rule: &'static str,
    /// A part of the violation.
    says: &'static str,
    /// Only one event is changed, and not all of its kind.
    is_once: bool,
    change: Change,
}

const fn once(rule: &'static str, says: &'static str, change: Change) -> Case {
    Case { rule, says, is_once: true, change }
}

const fn always(rule: &'static str, says: &'static str, change: Change) -> Case {
    Case { rule, says, is_once: false, change }
}

/// Changes fields of an event.
macro_rules! set {
    ($($event:pat_param)|+ $(if $guard:expr)? => $change:expr) => {
        |mut event| match &mut event {
            $($event)|+ $(if $guard)? => {
                $change;
                Some(vec![event])
            }
            _ => None,
        }
    };
}

/// Leaves an event out.
macro_rules! omit {
    ($event:pat) => {
        |event| matches!(event, $event).then(Vec::new)
    };
}

/// Shows an event twice.
macro_rules! repeat {
    ($event:pat) => {
        |event| matches!(event, $event).then(|| vec![event, event])
    };
}

/// Shows another event in place of one.
macro_rules! swap {
    ($from:pat => $to:expr) => {
        |event| match event {
            $from => Some(vec![$to]),
            _ => None,
        }
    };
}

/// Shows one more request that comes into the scheduler, in the same slot.
fn with_phantom(event: Event<'_>) -> Option<Vec<Event<'_>>> {
    let mut phantom = event;
    let Event::Inserted { rq, .. } = &mut phantom else { return None };
    rq.0 |= 1 << 63;
    Some(vec![event, phantom])
}

/// How many bytes a world seems to leak: more each time.
fn leaked() -> i64 {
    static BYTES: AtomicI64 = AtomicI64::new(0);
    BYTES.fetch_add(1 << 30, Ordering::Relaxed)
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Shows another dump of the queue.
macro_rules! dump {
    ($from:expr, $to:expr) => {
        set!(Event::Dumped(text) => *text = leak(text.replace($from, $to)))
    };
}

/// Shows other counts.
macro_rules! count {
    ($change:expr) => {
        set!(Event::Counted(counts) => *counts = {
            let (mut changed, change): (_, fn(&mut Counts)) = (**counts, $change);
            change(&mut changed);
            leak(changed)
        })
    };
}

/// Whether the first range has counted something, so that it is no new one.
fn has_counted(counts: &[RangeCount]) -> bool {
    counts.first().is_some_and(|count| count.stat != DiskStats::default())
}

/// What no operation writes.
static OTHER: [u64; 8192] = [1 << 40; 8192];
const END: Time = Time(1 << 60);
const ASKED: Asked = Asked {
    op: Op::Read,
    sector: 0,
    nr_sectors: 8,
    flags: Flags::NONE,
    priority: IoPriority { class: Class::BestEffort, level: 4 },
    group: 0,
};

const CASES: &[Case] = &[
    once("lost", "is over or was never taken", repeat!(Event::Reaped { .. })),
    once("lost", "for submitter", set!(Event::Reaped { submitter, .. } => *submitter += 1)),
    once("lost", "no request of it ended so", set!(Event::Reaped { status, .. } => *status = Status::BadBuffer)),
    once("lost", "it may wait", set!(Event::Reaped { status, .. } => *status = Status::Again)),
    once("lost", "not done with all of its sectors", omit!(Event::Acted { action: Action::Completed(_), .. })),
    once("lost", "was taken twice", repeat!(Event::Named { .. })),
    once("lost", "and taken as", set!(Event::Reaped { id, .. } => id.0 += 1 << 32)),
    once(
        "lost",
        "was handed back undone",
        swap!(Event::Reaped { submitter, bio, .. } => {
            Event::HandedBack { submitter, bio }
        }),
    ),
    once(
        "lost",
        "is a good one, and was rejected",
        swap!(Event::Named { submitter, bio, .. } => Event::Rejected {
            submitter, bio, asked: ASKED, reason: RejectReason::Bad(Status::BeyondEnd)
        }),
    ),
    once(
        "lost",
        "after it was taken",
        swap!(Event::Reaped { submitter, bio, .. } => Event::Rejected {
            submitter, bio, asked: ASKED, reason: RejectReason::Full
        }),
    ),
    always("lost", "neither done nor handed back", omit!(Event::HandedBack { .. })),
    always("lost", "operations are missing at the end", omit!(Event::Left { .. })),
    once("data", "found", set!(Event::Reaped { data, .. } if !data.is_empty() => *data = &OTHER[..data.len()])),
    once("data", "has data for", set!(Event::Reaped { data, .. } if !data.is_empty() => *data = &data[1..])),
    once("data", "is to read sector", omit!(Event::Submitted { asked: Asked { op: Op::Read, .. }, .. })),
    once("data", "is to change sector", omit!(Event::Submitted { asked: Asked { op: Op::Write, .. }, .. })),
    once("data", "brings data for", set!(Event::Offered { data, .. } if !data.is_empty() => *data = &data[1..])),
    once(
        "data",
        "is to be written where",
        set!(Event::Offered { data, .. } if !data.is_empty() => {
            *data = &OTHER[..data.len()];
        }),
    ),
    once("data", "behind the end", set!(Event::Offered { op: Op::Read, ranges, .. } => *ranges = &[(1 << 20, 8)])),
    once(
        "data",
        "asked for a write",
        set!(Event::Offered { op: op @ Op::Write, data, .. } => {
            (*op, *data) = (Op::Discard, &[]);
        }),
    ),
    always("flush", "after it was submitted", omit!(Event::Offered { op: Op::Flush, .. })),
    always("flush", "before the flush that it asked for", omit!(Event::Offered { op: Op::Flush, .. })),
    always("flush", "after its data was written", omit!(Event::Offered { op: Op::Flush, .. })),
    once("flush", "lost its power and holds", set!(Event::PowerLost { content } => *content = &OTHER[..content.len()])),
    always("tags", "two requests have tag", set!(Event::Offered { tag, .. } => *tag = 0)),
    once("tags", "which there is not", set!(Event::Offered { hctx, .. } => *hctx = 99)),
    once("tags", "and belongs to", set!(Event::Offered { hctx, .. } => *hctx ^= 1)),
    once("tags", "a request has tag", set!(Event::Offered { tag, .. } => *tag = 999)),
    once("tags", "tags are out", count!(|counts| counts.in_flight = 1)),
    once("slots", "joined twice", repeat!(Event::Joined { .. })),
    once(
        "slots",
        "there are slots for it",
        swap!(Event::Named { submitter, bio, .. } => Event::Rejected {
            submitter, bio, asked: ASKED, reason: RejectReason::Full
        }),
    ),
    once("slots", "is in slot", set!(Event::Named { id, .. } => id.0 |= 0xffff)),
    once("slots", "and others of its submitter", set!(Event::Named { id, .. } => id.0 ^= 1 << 30)),
    once("slots", "is not newer than", set!(Event::Named { id, .. } => id.0 &= 0xffff_ffff)),
    once("slots", "by an id that is older", set!(Event::Reaped { id, .. } => id.0 &= 0xffff_ffff)),
    once(
        "slots",
        "outstanding, and submitted",
        set!(Event::Outstanding { nr_outstanding, .. } => {
            *nr_outstanding += 5000;
        }),
    ),
    once("limits", "or empty", set!(Event::Offered { op: Op::Read, nr_sectors, .. } => *nr_sectors = 0)),
    once("limits", "is larger than", set!(Event::Offered { op: Op::Read, nr_sectors, .. } => *nr_sectors += 1 << 20)),
    once("limits", "bytes of data", set!(Event::Offered { op: Op::Read, segments, .. } => *segments = &[])),
    once("limits", "has sectors", set!(Event::Offered { op: Op::Flush, nr_sectors, .. } => *nr_sectors = 1)),
    once("limits", "does not do", set!(Event::Offered { op: Op::Read, flags, .. } => flags.preflush = true)),
    once("limits", "has the flags", set!(Event::Offered { op: Op::Write, flags, .. } => flags.nowait ^= true)),
    once("limits", "they are not alike", set!(Event::Merged { info, .. } => info.merge_key += 1)),
    always("limits", "must stay alone", set!(Event::Submitted { asked, .. } => asked.flags.nomerge = true)),
    always(
        "limits",
        "whose priorities differ",
        set!(Event::Submitted { asked, bio, .. } if *bio % 2 == 0 => {
            asked.priority.level ^= 1;
        }),
    ),
    always(
        "limits",
        "whose groups differ",
        set!(Event::Submitted { asked, bio, .. } if *bio % 2 == 0 => {
            asked.group += 1;
        }),
    ),
    once("order", "a request that does not wait there", omit!(Event::Inserted { .. })),
    once("order", "a request that came by before", repeat!(Event::Inserted { .. })),
    once("order", "a request that is elsewhere", omit!(Event::Chosen { .. })),
    once("order", "was inserted at", set!(Event::Inserted { at: at @ InsertAt::Sorted, .. } => *at = InsertAt::Head)),
    once(
        "order",
        "while another is at the head",
        set!(Event::Inserted { at: at @ InsertAt::Sorted, .. } => {
            *at = InsertAt::Head;
        }),
    ),
    once("order", "by its own count", set!(Event::HeldBack { waiting, .. } => *waiting += 1)),
    once("order", "the queue has drained, and", omit!(Event::Offered { .. })),
    always("alone", "in another order", set!(Event::Offered { hctx, .. } => *hctx = 0)),
    always("deadlines", "had expired", set!(Event::Chosen { now, .. } => *now = END)),
    always("freeze", "of a frozen queue", omit!(Event::Changed { control: Control::Thaw, .. })),
    always("freeze", "of a quiesced queue", omit!(Event::Changed { control: Control::Unquiesce, .. })),
    always("gate", "which let none of its class", set!(Event::Gated { passing, .. } => *passing = Passing::Nobody)),
    always("gate", "and none may", set!(Event::Changed { control: Control::Bypass(bypass), .. } => *bypass = false)),
    always(
        "gate",
        "was chosen while",
        set!(Event::Inserted { info, .. } => {
            info.priority.class = Class::ALL[info.sector as usize % 3];
        }),
    ),
    once("counters", "completed=", count!(|counts| counts.stats.completed += 5000)),
    once("counters", "issued=", count!(|counts| counts.stats.issued += 1)),
    once("counters", "bypassed=", count!(|counts| counts.stats.bypassed += 1)),
    once("counters", "dispatch_batches=", count!(|counts| counts.stats.dispatch_batches += 5000)),
    once("counters", "read_ios=", count!(|counts| counts.stat.read_ios += 1)),
    once("counters", "write_ios=", count!(|counts| counts.stat.write_ios += 5000)),
    once("counters", "time_in_queue=", count!(|counts| counts.stat.time_in_queue += 9)),
    once("counters", "says that the device has", count!(|counts| counts.inflight = [1, 0])),
    always("stall", "every CPU sleeps until", omit!(Event::Reaped { .. })),
    once("arrivals", "came into the scheduler as", set!(Event::Inserted { info, .. } => info.priority.level ^= 1)),
    once("arrivals", "with sync=", set!(Event::Inserted { info, .. } => info.sync ^= true)),
    once("arrivals", "came into the scheduler at", set!(Event::Inserted { info, .. } => info.sector += 1 << 20)),
    once("arrivals", "as one that merges", set!(Event::Submitted { asked, .. } => asked.flags.nomerge ^= true)),
    once("arrivals", "came as of client", set!(Event::Inserted { info, .. } => info.client = ClientId(77))),
    always("room", "more than nr_requests", with_phantom),
    always("room", "requests other than reads", with_phantom),
    once("room", "may wait, and was told", set!(Event::Reaped { status, .. } => *status = Status::Again)),
    always("room", "and there was room", |mut event| {
        match &mut event {
            Event::Submitted { asked, .. } => asked.flags.nowait = true,
            Event::Reaped { status, .. } => *status = Status::Again,
            _ => return None,
        }
        Some(vec![event])
    }),
    always("busy", "io_ticks grew by 0 ms", count!(|counts| counts.stat.io_ticks = 0)),
    once("groups", "reads and", count!(|counts| counts.stat.read_ios += 5000)),
    once("groups", "ms of writes", count!(|counts| counts.stat.write_ticks += 1 << 30)),
    once("groups", "ms of flushes", count!(|counts| counts.stat.flush_ticks = 0)),
    once("inflight", "the queue says that its device has", set!(Event::Inflight([reads, _]) => *reads += 999)),
    once(
        "ranges",
        "reads more",
        set!(Event::CountedRanges(counts) if has_counted(counts) => {
            let mut changed = counts.to_vec();
            changed[0].stat.read_ios += 1;
            *counts = leak(changed);
        }),
    ),
    once(
        "ranges",
        "in flight: of those",
        set!(Event::CountedRanges(counts) if has_counted(counts) => {
            let mut changed = counts.to_vec();
            changed[0].stat.in_flight = 1;
            *counts = leak(changed);
        }),
    ),
    once("dump", "is not whole", dump!("\nhctx 0: ", "\n")),
    once("dump", "nothing in flight", dump!("\ninflight 0 0", "\ninflight 0 1")),
    once("dump", "empty lists", dump!("dispatch list 0 ", "dispatch list 1 ")),
    once("dump", "no tag that is out", dump!("\nhctx 0: ", "\n  tag 3 \nhctx 0: ")),
    always("wake", "are over and not reaped", omit!(Event::Reaped { .. })),
    once("reports", "the scheduler chose, and was", omit!(Event::Reported { .. })),
    once("reports", "a ticket that no request has", repeat!(Event::Reported { .. })),
    once("reports", "without a ticket", set!(Event::Ticketed { ticket, .. } => *ticket = None)),
    once(
        "reports",
        "of what is to come",
        set!(Event::Reported { reports, .. } => {
            let mut changed = reports.to_vec();
            changed.iter_mut().for_each(|report| report.at = END);
            *reports = leak(changed);
        }),
    ),
    always("idling", "and says no time", set!(Event::HeldBack { wakeup, .. } => *wakeup = None)),
    always("idling", "which is longer than", set!(Event::HeldBack { wakeup, .. } => *wakeup = Some(END))),
    always(
        "idling",
        "under strict_guarantees",
        set!(Event::Changed { control: Control::Knob(name, value), phase: Phase::Done } => {
            (*name, *value) = ("strict_guarantees", 1);
        }),
    ),
    always(
        "lag",
        "sectors more for a unit of its weight",
        set!(Event::GroupJoined { settings, .. } => {
            settings.weight = if settings.weight > 100 { 1 } else { 1000 };
        }),
    ),
    always(
        "fairness",
        "is charged",
        set!(Event::GroupJoined { settings, .. } => {
            settings.weight = if settings.weight > 100 { 1 } else { 1000 };
        }),
    ),
    once("fairness", "is charged", set!(Event::Tagged { tag, .. } => *tag += 1_000_000_000)),
    always(
        "fairness",
        "than client",
        set!(Event::Tagged { tag, is_special, rq, .. } => {
            (*tag, *is_special) = (*tag << (rq.0 >> 16 & 7), true);
        }),
    ),
    once(
        "conservation",
        "though it holds nobody back",
        swap!(Event::Chosen { now, .. } => {
            Event::HeldBack { value: 0, waiting: 1, now, wakeup: None }
        }),
    ),
    always("conservation", "and says no time", set!(Event::HeldBack { wakeup, .. } => *wakeup = None)),
    always("conservation", "which is", set!(Event::HeldBack { wakeup, .. } => *wakeup = Some(END))),
    once("usage", "the scheduler was told of", omit!(Event::Used { .. })),
    once("usage", "the scheduler was told of", repeat!(Event::Used { .. })),
    once("tokens", "was chosen without a token", omit!(Event::Token { is_given: true, .. })),
    once("tokens", "token for a choice, and a", repeat!(Event::Token { is_given: true, .. })),
    always("tokens", "tokens, and there are", omit!(Event::Acted { action: Action::Completed(_), .. })),
    once("tokens", "pools of tokens, not", dump!("_tokens: ", "_tokens ")),
    once("turns", "token was to be asked for", omit!(Event::Token { .. })),
    once(
        "turns",
        "none was chosen",
        swap!(Event::Chosen { now, .. } => {
            Event::HeldBack { value: 0, waiting: 1, now, wakeup: None }
        }),
    ),
    always("turns", "came from software queue", set!(Event::Inserted { info, .. } => info.ctx = 1)),
    once("turns", "took in", set!(Event::Merged { info, .. } => info.ctx ^= 1)),
    once("throttle", "by the rules they are", set!(Event::Adjusted { depths, .. } => depths[0] = Some(77))),
    always("throttle", "the control sees", set!(Event::Reaped { times, .. } => times.issued = Time(0))),
    once("limiter", "at no cost", set!(Event::Sent { cost, .. } => *cost = 0)),
    once("limiter", "within a bound of zero", set!(Event::Sent { bound, .. } => *bound = Some(0))),
    always("limiter", "may be with the device", set!(Event::Sent { bound, .. } => *bound = Some(1))),
    once(
        "limiter",
        "and right would be",
        set!(Event::Learned { progress, .. } => {
            let mut changed = **progress;
            changed.reads.requests += 5000;
            *progress = leak(changed);
        }),
    ),
    always(
        "limiter",
        "ns with the device, which has",
        set!(Event::Learned { progress, .. } => {
            *progress = leak(Progress { in_flight: 0, ..**progress });
        }),
    ),
    once("timeouts", "with a timeout until", set!(Event::Overdue { now, .. } => *now = Time(0))),
    always("timeouts", "which it was not given", omit!(Event::Offered { .. })),
    once("times", "and that was from", set!(Event::Reaped { times, .. } => times.submitted = END)),
    once("times", "and it is", set!(Event::Reaped { times, .. } => times.completed = END)),
    once(
        "times",
        "and the device got it",
        set!(Event::Reaped { times, .. } if times.issued.0 > 1 => {
            times.issued.0 -= 1;
        }),
    ),
    always("memory", "operations ago", set!(Event::Memory { live } => *live += leaked())),
    once("memory", "were at the beginning", set!(Event::Memory { live } => *live -= 1 << 30)),
];

/// A checker that sees changed events, until it reports something.
struct Trial {
    case: Case,
    checkers: Checkers,
    /// How many events that the case could change are left as they are.
    skips: u64,
    is_changed: bool,
    is_over: bool,
    verdict: Verdict,
}

impl Trial {
    fn see(&mut self, at: Stamp, event: Event<'_>) {
        // After a change the checker may count on what has not happened.
        self.is_over |= self.is_changed && matches!(event, Event::Changed { control: Control::Topology(..), .. });
        if self.is_over || self.verdict.is_err() {
            return;
        }
        let is_spent = self.case.is_once && self.is_changed;
        let changed = if is_spent { None } else { (self.case.change)(event) };
        let events = match changed {
            Some(events) if self.skips == 0 => {
                self.is_changed = true;
                events
            }
            Some(_) => {
                self.skips -= 1;
                vec![event]
            }
            None => vec![event],
        };
        self.verdict = events.iter().try_for_each(|event| self.checkers.see(at, event));
    }
}

/// The rule `memory` needs worlds in which memory is counted.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Plays a world, and returns the cases that no checker has reported in it.
fn unreported(cases: Vec<Case>, seed: u64, scheduler: Option<&str>) -> Vec<Case> {
    let scheduler = scheduler.map(str::to_owned);
    let settings = Settings { cpus: 4, scheduler, locking: None, mutant: None, live: Some(CountingAllocator::live) };
    let facts = facts(&Plan::draw(seed, &settings));
    let trial = |case: Case| {
        let checkers = all(&facts).into_iter().filter(|(rule, _)| *rule == case.rule).collect();
        let checkers = Checkers { tracker: Tracker::new(&facts), checkers };
        let skips = if case.is_once { [0, 2, 15, 100][seed as usize % 4] } else { 0 };
        Trial { case, checkers, skips, is_changed: false, is_over: false, verdict: Ok(()) }
    };
    let trials: Arc<Mutex<Vec<Trial>>> = Arc::new(Mutex::new(cases.into_iter().map(trial).collect()));
    let shared = Arc::clone(&trials);
    let reader = move |entry: Entry<'_>| {
        if let Entry::Event(at, event) = entry {
            shared.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|trial| trial.see(at, event));
        }
    };
    let outcome = play_apart(seed, 700, &settings, Some(Box::new(reader)));
    assert_eq!(outcome.violation, None, "seed {seed}");
    let mut trials = trials.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = Vec::new();
    for Trial { case, checkers, verdict, .. } in trials.iter_mut() {
        let verdict = std::mem::replace(verdict, Ok(())).and_then(|()| checkers.end());
        let is_reported =
            verdict.is_err_and(|Violation { rule, what, .. }| rule == case.rule && what.contains(case.says));
        if !is_reported {
            left.push(*case);
        }
    }
    left
}

/// Red if a checker does not report an event that breaks its rule, or if a rule has no case here.
#[test]
fn each_rule_refuses_what_breaks_it() {
    let settings = Settings { cpus: 4, scheduler: None, locking: None, mutant: None, live: None };
    for (rule, _) in all(&facts(&Plan::draw(1, &settings))) {
        assert!(CASES.iter().any(|case| case.rule == rule), "no case for {rule}");
    }
    let mut left = CASES.to_vec();
    for seed in 0..150 {
        let others = [None, Some("bfq"), Some("kyber"), Some("mq-deadline")][seed as usize / 4 % 4];
        let scheduler = if seed < 120 { others } else { Some("fair") };
        left = unreported(left, seed, scheduler);
        if left.is_empty() {
            return;
        }
    }
    let left: Vec<_> = left.iter().map(|case| (case.rule, case.says)).collect();
    panic!("no checker has reported these: {left:#?}");
}
