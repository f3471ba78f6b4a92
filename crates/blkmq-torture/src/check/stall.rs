//! No request waits while it could go on. The checker looks when every CPU sleeps and nothing has happened or will
//! happen for longer than any thread sleeps by its own decision, or until a thread tries a refused request again. Then
//! everything that is outstanding waits for the device or for the scheduler's policy, and a thread has planned for what
//! happens next. A thread that looks at the queue meanwhile, or that wakes in vain, does not change that.

use std::collections::BTreeSet;

use blkmq_sched::{Op, RqId, SchedDomain, Time};

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::settings::wants_usage;
use super::depth_tokens::NR_KINDS;
use super::table::{Table, grown};
use super::tracker::{Operation, Stage, Tracker};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "stall";

/// The longest time until a queue tries again what the device refused or gave back, in ns.
const RETRY_NS: u64 = 3_000_000;

/// The place of a request that came into the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Chosen,
    Gone,
}

/// One value of the scheduler.
#[derive(Debug, Clone, Copy, Default)]
struct Value {
    nr_waiting: u64,
    /// The value last said that no request may go before this time.
    held_back: Option<Time>,
    /// There was no token of these kinds, by index, for the choice that is not told yet; and when the value last said
    /// that no request may go.
    refused: [bool; NR_KINDS],
    lacks: [bool; NR_KINDS],
}

/// What will happen to a request that the device works on.
#[derive(Debug, Clone, Copy)]
struct Timer {
    /// When the device completes the request, if it does by itself.
    due: Option<Time>,
    /// When the queue asks about the request.
    overdue: Time,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Stall {
    nap_ns: u64,
    /// The submitters that leave, so that their operations may be over.
    leaving: BTreeSet<u16>,
    timers: Table<Timer>,
    places: Table<Place>,
    /// Requests that the scheduler chose and that have not reached the device.
    nr_chosen: u64,
    /// The values of the scheduler.
    values: Vec<Value>,
    /// Whether `wbt_lat_usec` is not 0, so that a limiter may hold requests back for a while, whatever the device does.
    has_limiter: bool,
    /// Whether the scheduler may limit requests other than reads to fewer than `nr_requests`.
    has_async_depth: bool,
    io_timeout_ns: u64,
    /// The longest timeout since every CPU slept: a thread that issues may use a value that it read before a change.
    longest_timeout_ns: u64,
    /// When every CPU slept for the first time since something happened. `None`: something has happened since.
    quiet_since: Option<Time>,
}

impl Stall {
    pub(super) fn new(facts: &Facts) -> Self {
        let io_timeout_ns = u64::from(facts.io_timeout_ms) * 1_000_000;
        Self {
            nap_ns: facts.nap_ns,
            leaving: BTreeSet::new(),
            timers: Table::new(),
            places: Table::new(),
            nr_chosen: 0,
            values: Vec::new(),
            has_limiter: false,
            has_async_depth: false,
            io_timeout_ns,
            longest_timeout_ns: io_timeout_ns,
            quiet_since: None,
        }
    }

    fn changed(&mut self, control: Control, phase: Phase) {
        match control {
            Control::QueueKnob("io_timeout", ms) => {
                let new = ms.unsigned_abs().saturating_mul(1_000_000);
                match phase {
                    Phase::Begun => self.longest_timeout_ns = self.longest_timeout_ns.max(new),
                    Phase::Done => self.io_timeout_ns = new,
                    Phase::Refused => {}
                }
            }
            Control::WbtLatUsec(usec) if phase == Phase::Done => self.has_limiter = usec != 0,
            Control::Knob("async_depth", _) => self.has_async_depth = true,
            _ => {}
        }
    }

    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    fn place(&mut self, rq: RqId, to: Place, tracker: &Tracker) -> &mut Value {
        let entry = self.places.entry(rq);
        let from = entry.filter(|(id, _)| *id == rq).map(|(_, place)| place);
        *entry = Some((rq, to));
        self.nr_chosen -= u64::from(from == Some(Place::Chosen));
        self.nr_chosen += u64::from(to == Place::Chosen);
        let value = self.value(tracker.arrival(rq).map_or(0, |arrival| arrival.value));
        value.nr_waiting -= u64::from(from == Some(Place::Waiting));
        value.nr_waiting += u64::from(to == Place::Waiting);
        value
    }

    fn nr_waiting(&self) -> u64 {
        self.values.iter().map(|value| value.nr_waiting).sum()
    }

    fn idle(&mut self, now: Time, until: Option<Time>, tracker: &Tracker) -> Verdict {
        let since = *self.quiet_since.get_or_insert(now);
        let slack = RETRY_NS + self.nap_ns;
        let until = until.unwrap_or(Time(u64::MAX));
        let Some((bio, Operation { submitter, .. })) = operations(tracker).next() else { return Ok(()) };
        if until.since(since) <= slack || tracker.nr_quiesces > 0 {
            return Ok(());
        }
        let broken = |what: String| Violation::new(RULE, format!("every CPU sleeps until {} ns, and {what}", until.0));
        let mut with_device = vec![0; tracker.topology.nr_queues()];
        for (rq, offer) in tracker.offers(Stage::Begun) {
            let hctx = usize::from(offer.hctx);
            with_device.resize(with_device.len().max(hctx + 1), 0);
            with_device[hctx] += 1_u64;
            let Some(Timer { due, overdue }) = self.timers.get(rq) else { continue };
            let due = due.map_or(*overdue, |due| due.min(*overdue)).max(since).0;
            if until.0 > due.saturating_add(slack) {
                return Err(broken(format!("a request with the device is due, or overdue, at {due} ns")).request(rq));
            }
        }
        let wakeup = self.values.iter().filter_map(|value| value.held_back).min().map(|wakeup| wakeup.max(since));
        let wakeup = wakeup.filter(|_| !self.lacks_tags(&with_device, tracker));
        if let Some(Time(wakeup)) = wakeup.filter(|wakeup| until.0 > wakeup.0.saturating_add(slack)) {
            return Err(broken(format!("the scheduler lets one of {} requests go at {wakeup} ns", self.nr_waiting())));
        }
        // An operation that has not come in stays in its plug until the change is made.
        if tracker.nr_changes > 0 {
            return Ok(());
        }
        let nr_begun: u64 = with_device.iter().sum();
        // bfq may wait for a client: `idling` knows for how long. Who is told what clients got has a limiter, and may
        // let some wait for others.
        let may_idle = self.has_limiter || tracker.scheduler.is_some_and(|name| name == "bfq" || wants_usage(name));
        if nr_begun == 0 && may_idle && wakeup.is_some_and(|wakeup| wakeup < Time(u64::MAX)) {
            return Ok(());
        }
        if nr_begun == 0 {
            let what =
                format!("the device has nothing to do, but operation {bio} of submitter {submitter} is not over");
            return Err(broken(what).bio(bio));
        }
        if self.lacks_tags(&with_device, tracker) {
            return Ok(());
        }
        self.judge_tokens(tracker).map_err(broken)?;
        if self.is_held_up(nr_begun, tracker) {
            return Ok(());
        }
        if self.nr_waiting() > 0 {
            return Err(broken(format!("{} requests wait in the scheduler, though there are tags", self.nr_waiting())));
        }
        self.judge_operations(tracker).map_err(|(bio, what)| broken(what).bio(bio))
    }

    /// Whether room in the scheduler may be missing, or whether the scheduler's policy lets nothing go.
    fn is_held_up(&self, nr_begun: u64, tracker: &Tracker) -> bool {
        // Under kyber, requests other than reads have three quarters of the room. bfq admits requests by shares.
        let (nr_requests, name) = (tracker.nr_requests(), tracker.scheduler.unwrap_or("none"));
        let room = if tracker.tokens.is_watched() { (nr_requests * 3 / 4).max(1) } else { nr_requests };
        let nr_all = self.nr_waiting() + nr_begun + self.nr_elsewhere(tracker);
        let is_full = name != "none" && (self.has_async_depth || name == "bfq" || nr_all >= room);
        is_full || self.values.iter().any(|value| value.held_back.is_some())
    }

    /// Says for what token a request waits of which there is one.
    fn judge_tokens(&self, tracker: &Tracker) -> Result<(), String> {
        let tokens = &tracker.tokens;
        for value in self.values.iter().filter(|value| value.held_back.is_some()) {
            let is_there = |of: &SchedDomain| value.lacks[of.index()] && tokens.nr_out(*of) < tokens.depth(*of);
            if let Some(of) = SchedDomain::ALL.into_iter().find(is_there) {
                let (name, nr_out, depth) = (of.name(), tokens.nr_out(of), tokens.depth(of));
                return Err(format!("a request waits for a {name} token, and {nr_out} of {depth} are out"));
            }
        }
        Ok(())
    }

    /// Whether some hardware queue may have no tag.
    fn lacks_tags(&self, with_device: &[u64], tracker: &Tracker) -> bool {
        // There are no more tags than there may be requests, also with a scheduler.
        let nr_tags = u64::from(tracker.topology.depth).min(tracker.nr_requests());
        let elsewhere = self.nr_elsewhere(tracker);
        with_device.iter().any(|begun| begun + elsewhere >= nr_tags)
    }

    /// Requests that are on their way to the device.
    fn nr_elsewhere(&self, tracker: &Tracker) -> u64 {
        tracker.offers(Stage::Offered).count() as u64 + self.nr_chosen
    }

    /// With enough tags and enough room, each operation must be with the device. Operations that wait for a flush are
    /// not checked.
    fn judge_operations(&self, tracker: &Tracker) -> Result<(), (u64, String)> {
        for (bio, operation) in operations(tracker) {
            let (submitter, asked, end) = (operation.submitter, &operation.asked, operation.end());
            let flushes = tracker.limits.write_cache && (asked.flags.preflush || asked.flags.fua);
            if flushes || self.leaving.contains(&submitter) || asked.op == Op::Flush {
                continue;
            }
            let overlaps =
                |(sector, nr_sectors): &(u64, u32)| *sector < end && asked.sector < sector + u64::from(*nr_sectors);
            let mut begun = tracker.offers(Stage::Begun).filter(|(_, offer)| offer.op == asked.op);
            if !begun.any(|(_, offer)| offer.ranges.iter().any(overlaps)) {
                let what = "is over and not reaped, or could go on and does not";
                return Err((bio, format!("operation {bio} of submitter {submitter} {what}")));
            }
        }
        Ok(())
    }
}

/// The operations of which an event will tell that they are over.
fn operations(tracker: &Tracker) -> impl Iterator<Item = (u64, &Operation)> {
    tracker.operations().filter(|(_, operation)| !operation.is_forgotten)
}

impl Checker for Stall {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        if !matches!(event, Event::Idle { .. } | Event::Sleeps { .. } | Event::Wakes { .. } | Event::Memory { .. }) {
            self.quiet_since = None;
        }
        match *event {
            Event::Leaving { submitter } => _ = self.leaving.insert(submitter),
            Event::Left { submitter, .. } => _ = self.leaving.remove(&submitter),
            Event::Installed { .. } => {
                self.has_async_depth = false;
                self.values.clear();
            }
            Event::Inserted { rq, .. } => self.place(rq, Place::Waiting, tracker).held_back = None,
            Event::Absorbed { absorbed, .. } => _ = self.place(absorbed, Place::Gone, tracker),
            Event::Token { value, of, is_given } => self.value(value).refused[of.index()] = !is_given,
            Event::Chosen { rq, .. } => {
                let value = self.place(rq, Place::Chosen, tracker);
                (value.held_back, value.refused) = (None, Default::default());
            }
            Event::HeldBack { value, waiting, wakeup, .. } => {
                let value = self.value(value);
                value.held_back = (waiting > 0).then(|| wakeup.unwrap_or(Time(u64::MAX)));
                value.lacks = std::mem::take(&mut value.refused);
            }
            // Where there is a limiter, the scheduler is one value.
            Event::Withheld { until } => self.value(0).held_back = Some(until.unwrap_or(Time(u64::MAX))),
            Event::Offered { rq, .. } if self.places.get(rq) == Some(&Place::Chosen) => {
                self.place(rq, Place::Gone, tracker);
            }
            Event::Acted { rq, action: Action::Started { due } | Action::WantsTime { due } } => {
                let overdue = at.time.after(self.longest_timeout_ns);
                *self.timers.entry(rq) = Some((rq, Timer { due, overdue }));
            }
            Event::Changed { control, phase } => self.changed(control, phase),
            Event::Idle { until, .. } => {
                self.longest_timeout_ns = self.io_timeout_ns;
                return self.idle(at.time, until, tracker);
            }
            _ => {}
        }
        Ok(())
    }
}
