//! No request waits while it could go on. The checker looks when every CPU sleeps and nothing has happened or will
//! happen for longer than any thread sleeps by its own decision, or until a thread tries a refused request again. Then
//! everything that is outstanding waits for the device or for the scheduler's policy, and a thread has planned for what
//! happens next. A thread that looks at the queue meanwhile, or that wakes in vain, does not change that.

use blkmq_sched::{Op, RqId, SchedDomain, Time};

use super::super::event::{Action, Asked, Control, Event, Phase, Stamp};
use super::book::Book;
use super::lent::{Lent, NR_KINDS};
use super::offers::Offers;
use super::parts::parts;
use super::table::{Table, grown};
use super::{Checker, Facts, Violation};

const RULE: &str = "stall";

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

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    /// The submitter leaves, so the operation may be over.
    is_vague: bool,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Stall {
    facts: Facts,
    operations: Book<Operation>,
    offers: Offers,
    timers: Table<Timer>,
    /// Also the value of the scheduler that each came into.
    places: Table<(Place, u16)>,
    /// Requests that the scheduler chose and that have not reached the device.
    nr_chosen: u64,
    /// The values of the scheduler.
    values: Vec<Value>,
    lent: Lent,
    has_scheduler: bool,
    /// Whether a limiter may hold requests back for a while, whatever the device does.
    has_limiter: bool,
    /// Whether the scheduler may wait for a client while the device has nothing to do. `idling` knows for how long.
    idles: bool,
    nr_requests: u64,
    /// Whether the scheduler may limit requests other than reads to fewer than `nr_requests`.
    has_async_depth: bool,
    io_timeout_ns: u64,
    /// The longest timeout since every CPU slept: a thread that issues may use a value that it read before a change.
    longest_timeout_ns: u64,
    /// Changes that have begun and not ended; and how many of them are quiescences.
    nr_changes: u32,
    nr_quiesces: u32,
    /// When every CPU slept for the first time since something happened. `None`: something has happened since.
    quiet_since: Option<Time>,
}

impl Stall {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            facts: facts.clone(),
            operations: Book::new(),
            offers: Offers::new(),
            timers: Table::new(),
            places: Table::new(),
            nr_chosen: 0,
            values: Vec::new(),
            lent: Lent::new(facts.limits),
            has_scheduler: false,
            has_limiter: false,
            idles: false,
            nr_requests: u64::from(facts.topology.depth),
            has_async_depth: false,
            io_timeout_ns: u64::from(facts.io_timeout_ms) * 1_000_000,
            longest_timeout_ns: u64::from(facts.io_timeout_ms) * 1_000_000,
            nr_changes: 0,
            nr_quiesces: 0,
            quiet_since: None,
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        if parts(&self.facts.limits, &asked, pieces).is_ok() {
            self.operations.begin(bio, Operation { submitter, asked, is_vague: false });
        }
    }

    fn installed(&mut self, scheduler: Option<&str>) {
        let has_scheduler = scheduler.is_some();
        (self.has_scheduler, self.idles) = (has_scheduler, scheduler == Some("bfq"));
        self.nr_requests = self.facts.nr_requests(has_scheduler);
        // bfq admits requests by shares.
        self.has_async_depth = self.idles;
        self.values.clear();
    }

    fn changed(&mut self, control: Control, phase: Phase) {
        match (control, phase) {
            (Control::Quiesce, Phase::Begun) => self.nr_quiesces += 1,
            (Control::Unquiesce, Phase::Done) => self.nr_quiesces -= 1,
            (Control::Freeze, Phase::Begun) => self.nr_changes += 1,
            (Control::Thaw, Phase::Done) => self.nr_changes -= 1,
            (Control::Quiesce | Control::Unquiesce | Control::Freeze | Control::Thaw, _) => {}
            (_, Phase::Begun) => self.nr_changes += 1,
            (_, Phase::Done | Phase::Refused) => self.nr_changes -= 1,
        }
        match control {
            Control::QueueKnob("io_timeout", ms) => {
                let new = ms.unsigned_abs().saturating_mul(1_000_000);
                match phase {
                    Phase::Begun => self.longest_timeout_ns = self.longest_timeout_ns.max(new),
                    Phase::Done => self.io_timeout_ns = new,
                    Phase::Refused => {}
                }
            }
            Control::NrRequests(nr_requests) if phase == Phase::Done => {
                self.facts.nr_requests = Some(nr_requests);
                self.nr_requests = self.facts.nr_requests(self.has_scheduler);
            }
            Control::WbtLatUsec(usec) if phase == Phase::Done => self.has_limiter = usec != 0,
            Control::Knob("async_depth", _) => self.has_async_depth = true,
            _ => {}
        }
    }

    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    /// The value of the scheduler that a request came into.
    fn value_of(&self, rq: RqId) -> u16 {
        self.places.get(rq).map_or(0, |(_, value)| *value)
    }

    fn place(&mut self, rq: RqId, value: u16, to: Place) {
        let entry = self.places.entry(rq);
        let from = entry.filter(|(id, _)| *id == rq).map(|(_, (place, _))| place);
        *entry = Some((rq, (to, value)));
        self.nr_chosen -= u64::from(from == Some(Place::Chosen));
        self.nr_chosen += u64::from(to == Place::Chosen);
        let value = self.value(value);
        value.nr_waiting -= u64::from(from == Some(Place::Waiting));
        value.nr_waiting += u64::from(to == Place::Waiting);
    }

    fn nr_waiting(&self) -> u64 {
        self.values.iter().map(|value| value.nr_waiting).sum()
    }

    fn acted(&mut self, at: Stamp, rq: RqId, action: Action) {
        let overdue = at.time.after(self.longest_timeout_ns);
        match action {
            Action::Started { due } | Action::WantsTime { due } => {
                *self.timers.entry(rq) = Some((rq, Timer { due, overdue }));
            }
            _ => {}
        }
    }

    fn idle(&mut self, now: Time, until: Option<Time>) -> Result<(), Violation> {
        let since = *self.quiet_since.get_or_insert(now);
        let slack = RETRY_NS + self.facts.nap_ns;
        let until = until.unwrap_or(Time(u64::MAX));
        if until.since(since) <= slack || self.operations.len() == 0 || self.nr_quiesces > 0 {
            return Ok(());
        }
        let bad = |what: String| Violation::new(RULE, format!("every CPU sleeps until {} ns, and {what}", until.0));
        let mut with_device = vec![0; self.facts.topology.nr_queues()];
        for (rq, offer) in self.offers.begun() {
            let hctx = usize::from(offer.hctx);
            with_device.resize(with_device.len().max(hctx + 1), 0);
            with_device[hctx] += 1_u64;
            let Some(Timer { due, overdue }) = self.timers.get(rq) else { continue };
            let due = due.map_or(*overdue, |due| due.min(*overdue)).max(since).0;
            if until.0 > due.saturating_add(slack) {
                return Err(bad(format!("a request with the device is due, or overdue, at {due} ns")).request(rq));
            }
        }
        let wakeup = self.values.iter().filter_map(|value| value.held_back).min().map(|wakeup| wakeup.max(since));
        let wakeup = wakeup.filter(|_| !self.lacks_tags(&with_device));
        if let Some(Time(wakeup)) = wakeup.filter(|wakeup| until.0 > wakeup.0.saturating_add(slack)) {
            return Err(bad(format!("the scheduler lets one of {} requests go at {wakeup} ns", self.nr_waiting())));
        }
        // An operation that has not come in stays in its plug until the change is made.
        if self.nr_changes > 0 {
            return Ok(());
        }
        let nr_begun: u64 = with_device.iter().sum();
        let may_idle = self.idles || self.has_limiter;
        if nr_begun == 0 && may_idle && wakeup.is_some_and(|wakeup| wakeup < Time(u64::MAX)) {
            return Ok(());
        }
        if nr_begun == 0 {
            let (bio, Operation { submitter, .. }) = self.operations.iter().next().expect("some are outstanding");
            let what =
                format!("the device has nothing to do, but operation {bio} of submitter {submitter} is not over");
            return Err(bad(what).bio(bio));
        }
        if self.lacks_tags(&with_device) {
            return Ok(());
        }
        self.judge_tokens().map_err(bad)?;
        if self.is_held_up(nr_begun) {
            return Ok(());
        }
        if self.nr_waiting() > 0 {
            return Err(bad(format!("{} requests wait in the scheduler, though there are tags", self.nr_waiting())));
        }
        self.judge_operations().map_err(|(bio, what)| bad(what).bio(bio))
    }

    /// Whether room in the scheduler may be missing, or whether the scheduler's policy lets nothing go.
    fn is_held_up(&self, nr_begun: u64) -> bool {
        // Under kyber, requests other than reads have three quarters of the room.
        let room = if self.lent.is_watched() { (self.nr_requests * 3 / 4).max(1) } else { self.nr_requests };
        let is_full =
            self.has_scheduler && (self.has_async_depth || self.nr_waiting() + nr_begun + self.nr_elsewhere() >= room);
        is_full || self.values.iter().any(|value| value.held_back.is_some())
    }

    /// Says for what token a request waits of which there is one.
    fn judge_tokens(&self) -> Result<(), String> {
        for value in self.values.iter().filter(|value| value.held_back.is_some()) {
            let is_there = |of: &SchedDomain| value.lacks[of.index()] && self.lent.nr_out(*of) < self.lent.depth(*of);
            if let Some(of) = SchedDomain::ALL.into_iter().find(is_there) {
                let (name, nr_out, depth) = (of.name(), self.lent.nr_out(of), self.lent.depth(of));
                return Err(format!("a request waits for a {name} token, and {nr_out} of {depth} are out"));
            }
        }
        Ok(())
    }

    /// Whether some hardware queue may have no tag.
    fn lacks_tags(&self, with_device: &[u64]) -> bool {
        // There are no more tags than there may be requests, also with a scheduler.
        let nr_tags = u64::from(self.facts.topology.depth).min(self.nr_requests);
        let elsewhere = self.nr_elsewhere();
        with_device.iter().any(|begun| begun + elsewhere >= nr_tags)
    }

    /// Requests that are on their way to the device.
    fn nr_elsewhere(&self) -> u64 {
        self.offers.refused().count() as u64 + self.nr_chosen
    }

    /// With enough tags and enough room, each operation must be with the device. Operations that wait for a flush are
    /// not checked.
    fn judge_operations(&self) -> Result<(), (u64, String)> {
        for (bio, Operation { submitter, asked, is_vague }) in self.operations.iter() {
            let flushes = self.facts.limits.write_cache && (asked.flags.preflush || asked.flags.fua);
            if flushes || *is_vague || asked.op == Op::Flush {
                continue;
            }
            let end = asked.sector + asked.nr_sectors;
            let is_begun = self.offers.begun().filter(|(_, offer)| offer.op == asked.op).any(|(_, offer)| {
                offer
                    .ranges
                    .iter()
                    .any(|&(sector, nr_sectors)| sector < end && asked.sector < sector + u64::from(nr_sectors))
            });
            if !is_begun {
                let what = "is over and not reaped, or could go on and does not";
                return Err((bio, format!("operation {bio} of submitter {submitter} {what}")));
            }
        }
        Ok(())
    }
}

impl Checker for Stall {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        if !matches!(event, Event::Idle { .. } | Event::Sleeps { .. } | Event::Wakes { .. } | Event::Memory { .. }) {
            self.quiet_since = None;
        }
        self.lent.see(event);
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            // No event tells when a forgotten operation is over.
            Event::Reaped { bio, .. }
            | Event::HandedBack { bio, .. }
            | Event::Rejected { bio, .. }
            | Event::Forgotten { bio, .. } => _ = self.operations.end(bio),
            Event::Leaving { submitter } => {
                let theirs = self.operations.iter_mut().filter(|(_, operation)| operation.submitter == submitter);
                theirs.for_each(|(_, operation)| operation.is_vague = true);
            }
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.operations.end(bio));
            }
            Event::Installed { scheduler } => self.installed(scheduler),
            Event::Inserted { value, rq, .. } => {
                self.place(rq, value, Place::Waiting);
                self.value(value).held_back = None;
            }
            Event::Absorbed { absorbed, .. } => self.place(absorbed, self.value_of(absorbed), Place::Gone),
            Event::Token { value, of, is_given } => self.value(value).refused[of.index()] = !is_given,
            Event::Chosen { rq, .. } => {
                let number = self.value_of(rq);
                self.place(rq, number, Place::Chosen);
                let value = self.value(number);
                (value.held_back, value.refused) = (None, Default::default());
            }
            Event::HeldBack { value, waiting, wakeup, .. } => {
                let value = self.value(value);
                value.held_back = (waiting > 0).then(|| wakeup.unwrap_or(Time(u64::MAX)));
                value.lacks = std::mem::take(&mut value.refused);
            }
            // Where there is a limiter, the scheduler is one value.
            Event::Withheld { until } => self.value(0).held_back = Some(until.unwrap_or(Time(u64::MAX))),
            Event::Offered { rq, .. } => {
                if self.places.get(rq).is_some_and(|(place, _)| *place == Place::Chosen) {
                    self.place(rq, self.value_of(rq), Place::Gone);
                }
                self.offers.see(event);
            }
            Event::Acted { rq, action } => {
                self.acted(at, rq, action);
                self.offers.see(event);
            }
            Event::Changed { control, phase } => self.changed(control, phase),
            Event::Idle { until, .. } => {
                self.longest_timeout_ns = self.io_timeout_ns;
                return self.idle(at.time, until);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Status;

    use super::super::super::event::DeviceState;
    use super::super::testing::*;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Tells that every CPU sleeps until this many ms.
    fn idle(ms: u64) -> Event<'static> {
        Event::Idle { until: Some(Time(ms * MS)), device: DeviceState::default() }
    }

    /// A queue with a scheduler; operation 1 is a read.
    fn told() -> Told<Stall> {
        let mut told = Told::new(Stall::new(&FACTS));
        told.good(Event::Installed { scheduler: Some("mq-deadline") }).good(submitted(1, asked(Op::Read, 0, 8)));
        told
    }

    fn due(rq: RqId, ms: u64) -> Event<'static> {
        acted(rq, Action::Started { due: Some(Time(ms * MS)) })
    }

    /// A queue whose device works on the read until this many ms.
    fn with_device(ms: u64) -> Told<Stall> {
        let mut told = told();
        told.good(offered(id(1, 0, 0), Op::Read, 0, 8, &[])).good(due(id(1, 0, 0), ms));
        told
    }

    #[test]
    fn nobody_sleeps_past_what_the_device_does() {
        with_device(50).good(idle(50)).bad(idle(55), "is due, or overdue, at 50000000");
        // The queue asks about the request after 100 ms.
        let mut told = told();
        told.good(offered(id(1, 0, 0), Op::Read, 0, 8, &[])).good(acted(id(1, 0, 0), Action::Started { due: None }));
        told.good(idle(100)).bad(idle(105), "overdue, at 100000000");
        told.now = 100 * MS;
        told.good(acted(id(1, 0, 0), Action::WantsTime { due: None })).good(idle(200)).bad(idle(205), "overdue");
        told.bad(Event::Idle { until: None, device: DeviceState::default() }, "overdue");
        let knob = Control::QueueKnob("io_timeout", 20);
        told.good(changed(knob, Phase::Begun)).good(changed(knob, Phase::Done));
        told.good(acted(id(1, 0, 0), Action::WantsTime { due: None })).good(idle(200)).bad(idle(205), "overdue");
        told.good(acted(id(1, 0, 0), Action::WantsTime { due: None })).good(idle(120)).bad(idle(125), "overdue");
    }

    #[test]
    fn nobody_sleeps_while_the_device_has_nothing_to_do() {
        told().good(idle(4)).bad(idle(5), "operation 1 of submitter 1 is not over");
        told().good(reaped(1, id(1, 0, 0), Status::Ok)).good(idle(1000));
        told().good(Event::Forgotten { submitter: 1, bio: 1 }).good(idle(1000));
        let mut over = with_device(50);
        over.good(completed(id(1, 0, 0), Status::Ok)).bad(idle(50), "the device has nothing to do");
        let mut refused = told();
        refused.good(offered(id(1, 0, 0), Op::Read, 0, 8, &[])).good(acted(id(1, 0, 0), Action::Refused));
        refused.good(idle(4)).bad(idle(5), "nothing to do");
    }

    #[test]
    fn who_wakes_in_vain_hides_nothing() {
        let mut told = told();
        told.good(idle(3)).good(Event::Wakes { submitter: 1 }).good(Event::Sleeps { submitter: 1 });
        told.now = 3 * MS;
        told.bad(idle(5), "operation 1 of submitter 1 is not over");
        // Events in between count as something that happened.
        let mut told = self::told();
        told.good(idle(3)).good(submitted(2, asked(Op::Read, 8, 8)));
        told.now = 3 * MS;
        told.good(idle(5)).good(idle(7)).bad(idle(8), "operation 1");
    }

    #[test]
    fn a_closed_queue_may_sleep() {
        let begun = |control| changed(control, Phase::Begun);
        let done = |control| changed(control, Phase::Done);
        told().good(begun(Control::Freeze)).good(idle(50)).good(done(Control::Freeze)).good(idle(50));
        told()
            .good(begun(Control::Freeze))
            .good(begun(Control::Thaw))
            .good(done(Control::Thaw))
            .bad(idle(50), "not over");
        let mut late = with_device(50);
        late.good(begun(Control::Freeze)).bad(idle(60), "is due");
        late.good(begun(Control::Quiesce)).good(idle(60)).good(done(Control::Quiesce)).good(begun(Control::Unquiesce));
        late.good(idle(60)).good(done(Control::Unquiesce)).bad(idle(60), "is due");
        let change = Control::NrRequests(8);
        told().good(begun(change)).good(idle(50)).good(changed(change, Phase::Refused)).bad(idle(50), "not over");
    }

    #[test]
    fn what_waits_lacks_a_tag_or_room_or_is_held_back() {
        let write = |told: &mut Told<Stall>, bio: u64| {
            told.good(submitted(bio, asked(Op::Write, 16 * bio, 8)));
        };
        let waiting = || {
            let mut told = with_device(50);
            write(&mut told, 2);
            told.good(inserted(id(1, 1, 0), info(Op::Write, 32, 8), 0));
            told
        };
        waiting().bad(idle(50), "1 requests wait in the scheduler");
        waiting().good(Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None }).good(idle(50));
        let at = |ms| Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: Some(Time(ms * MS)) };
        waiting().good(at(40)).good(idle(43)).bad(idle(46), "lets one of 1 requests go at 40000000 ns");
        waiting().good(at(40)).good(chosen(id(1, 1, 0), 0)).bad(idle(50), "operation 2");
        waiting().good(changed(Control::Quiesce, Phase::Begun)).good(at(40)).good(idle(50));
        waiting().good(chosen(id(1, 1, 0), 0)).bad(idle(50), "operation 2 of submitter 1 is over");
        let mut full = waiting();
        for slot in 2..5 {
            full.good(offered(id(1, slot, 0), Op::Read, 8 * slot, 8, &[])).good(due(id(1, slot, 0), 50));
        }
        full.good(idle(50));
        full.good(at(40)).good(idle(50));
        let mut few = waiting();
        few.good(changed(Control::NrRequests(2), Phase::Begun)).good(changed(Control::NrRequests(2), Phase::Done));
        few.good(idle(50));
        // A thread that has no tag does not ask the scheduler, and there are no more tags than there may be requests.
        let mut one = waiting();
        one.good(changed(Control::NrRequests(1), Phase::Begun)).good(changed(Control::NrRequests(1), Phase::Done));
        one.good(at(40)).good(idle(50));
        let mut absorbed = waiting();
        absorbed.good(Event::Absorbed { into: id(1, 0, 0), absorbed: id(1, 1, 0) }).bad(idle(50), "operation 2");
    }

    #[test]
    fn an_operation_that_is_over_wakes_its_submitter() {
        let mut told = with_device(50);
        told.good(submitted(2, asked(Op::Write, 16, 8))).good(offered(id(1, 1, 0), Op::Write, 16, 8, &[]));
        told.good(due(id(1, 1, 0), 30)).good(idle(30)).good(completed(id(1, 1, 0), Status::Ok));
        told.bad(idle(50), "operation 2 of submitter 1 is over and not reaped");
        let mut leaving = with_device(50);
        leaving.good(submitted(2, asked(Op::Write, 16, 8))).bad(idle(50), "operation 2");
        leaving.good(Event::Leaving { submitter: 1 }).good(idle(50)).good(completed(id(1, 0, 0), Status::Ok));
        leaving.bad(idle(50), "nothing to do");
        told.good(reaped(2, id(1, 1, 0), Status::Ok)).good(idle(50));
    }
}
