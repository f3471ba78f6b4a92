//! A scheduler holds no more requests than it may. For each hardware queue the limit is `nr_requests`, with the
//! requests that its device has. For requests other than reads the limit is what the scheduler's `async_depth` allows:
//! under kyber, three quarters of `nr_requests`.
//! A request that must not wait for room is refused only when there may have been no room.
//!
//! The queue looks for room under the scheduler's lock. A request that had a tag when the scheduler was last told
//! something, and that still has the tag, was counted in that look. A request that was chosen and has no tag yet was
//! not, so the sums alone may be larger. For a request that may be polled, this checker does not know the hardware
//! queue. So where that matters, only `async_depth` is checked.

use std::collections::VecDeque;

use blkmq_sched::{Info, Op, RqId};
use blkmq_virtual::Status;
use blkmq_virtual::driver::Topology;

use super::super::event::{Action, Asked, Control, Event, Phase, Stamp};
use super::super::settings::orders_one_hctx;
use super::super::text::Request;
use super::book::Book;
use super::parts::parts;
use super::table::{Table, grown, pool};
use super::{Checker, Facts, Violation};

const RULE: &str = "room";

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Chosen,
    /// The request has had a tag since the scheduler was told or asked something for the time with this number.
    Device(u64),
    GivenBack,
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    place: Place,
    hctx: u16,
    /// The request went through the scheduler, and is not a read.
    is_limited: bool,
    /// The hardware queue is certain.
    is_hctx_certain: bool,
}

/// A hardware queue.
#[derive(Debug, Clone, Copy, Default)]
struct HwQueue {
    waiting: u64,
    with_tags: u64,
    /// How many of the requests with tags have had theirs only since the look with this number.
    recent: u64,
    looks: u64,
    /// How often the scheduler's value for this hardware queue was told or asked something, if it has one of its own.
    own_looks: u64,
}

/// The bound on requests other than reads.
#[derive(Debug, Clone, Copy)]
struct AsyncDepth {
    /// The value that was set.
    depth: Option<u64>,
    /// How many quarters of `nr_requests` it is if none was set.
    quarters: u64,
    /// The value that is being set, or that may be in effect already.
    coming: Option<u64>,
}

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    nr_parts: u64,
    step: u64,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Room {
    facts: Facts,
    topology: Topology,
    has_scheduler: bool,
    /// Whether the scheduler admits requests by shares. What it must admit is checked where it is asked.
    admits_by_share: bool,
    /// Each hardware queue has a value of the scheduler. Then this is the hardware queue of each value, as far as that
    /// is known.
    hctx_of_values: Option<Vec<Option<u16>>>,
    nr_requests: u64,
    async_depth: AsyncDepth,
    requests: Table<Known>,
    hctxs: Vec<HwQueue>,
    /// How often the scheduler was told or asked something.
    looks: u64,
    limited: u64,
    operations: Book<Operation>,
    /// Parts of operations that are outstanding. And the most that were outstanding at a time since a step: each entry
    /// has a smaller number than the one before.
    outstanding: u64,
    peaks: VecDeque<(u64, u64)>,
    /// The step since which no CPU changes the queue.
    quiet_since: Option<u64>,
    /// Whether a change was made, so that the next request that comes in shows that the queue runs again.
    is_changed: bool,
    /// Freezes and changes that have begun and not ended.
    nr_open: u32,
}

impl AsyncDepth {
    /// That of a scheduler of this name, before it is set.
    const fn of(is_kyber: bool) -> Self {
        Self { depth: None, quarters: if is_kyber { 3 } else { 4 }, coming: None }
    }

    /// The largest possible limit while `nr_requests` has this value.
    fn most(&self, nr_requests: u64) -> u64 {
        self.now(nr_requests).max(self.coming.unwrap_or(0))
    }

    fn now(&self, nr_requests: u64) -> u64 {
        self.depth.unwrap_or((nr_requests * self.quarters / 4).max(1))
    }
}

impl Room {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            facts: facts.clone(),
            topology: facts.topology,
            has_scheduler: false,
            admits_by_share: false,
            hctx_of_values: None,
            nr_requests: 0,
            async_depth: AsyncDepth::of(false),
            requests: Table::new(),
            hctxs: Vec::new(),
            looks: 0,
            limited: 0,
            operations: Book::new(),
            outstanding: 0,
            peaks: VecDeque::new(),
            quiet_since: Some(0),
            is_changed: false,
            nr_open: 0,
        }
    }

    fn installed(&mut self, scheduler: Option<&str>) {
        self.has_scheduler = scheduler.is_some();
        self.admits_by_share = scheduler == Some("bfq");
        self.nr_requests = self.facts.nr_requests(self.has_scheduler);
        self.async_depth = AsyncDepth::of(scheduler == Some("kyber"));
        self.hctx_of_values = scheduler.is_some_and(orders_one_hctx).then(Vec::new);
        self.limited = 0;
    }

    fn set_nr_requests(&mut self, nr_requests: u32) {
        self.facts.nr_requests = Some(nr_requests);
        self.nr_requests = self.facts.nr_requests(self.has_scheduler);
    }

    /// The hardware queue of a request that is not polled.
    fn hctx(&self, rq: RqId, op: Op) -> u16 {
        let Topology { default_queues, read_queues, .. } = self.topology;
        let (first, nr_queues) = match op {
            Op::Read if read_queues > 0 => (default_queues, read_queues),
            _ => (0, default_queues),
        };
        first + pool(rq).wrapping_sub(1) % nr_queues
    }

    fn hw_queue(&mut self, hctx: u16) -> &mut HwQueue {
        let is_split = self.hctx_of_values.is_some();
        let queue = grown(&mut self.hctxs, hctx, HwQueue::default);
        let looks = if is_split { queue.own_looks } else { self.looks };
        if queue.looks != looks {
            (queue.looks, queue.recent) = (looks, 0);
        }
        queue
    }

    /// The scheduler was told or asked something: its value with this number, or its value for the hardware queue of
    /// this request. If the hardware queue of a value is not known, this look is not counted.
    fn note_look(&mut self, value: Option<u16>, rq: Option<RqId>) {
        self.looks += 1;
        let Some(hctx_of_values) = &self.hctx_of_values else { return };
        let by_value = value.and_then(|value| *hctx_of_values.get(usize::from(value))?);
        let by_request = rq.and_then(|rq| self.requests.get(rq)).filter(|known| known.is_hctx_certain);
        if let Some(hctx) = by_value.or_else(|| Some(by_request?.hctx)) {
            self.hw_queue(hctx).own_looks += 1;
        }
    }

    fn note_value(&mut self, value: u16, hctx: u16) {
        let Some(hctx_of_values) = &mut self.hctx_of_values else { return };
        *grown(hctx_of_values, value, || None) = Some(hctx);
    }

    /// Moves a request to another place.
    fn move_to(&mut self, rq: RqId, place: Place) {
        let Some(known) = self.requests.get_mut(rq) else { return };
        let before = *known;
        known.place = place;
        if before.is_limited && place == Place::Over && before.place != Place::Over {
            self.limited -= 1;
        }
        let queue = self.hw_queue(before.hctx);
        let looks = queue.looks;
        match before.place {
            Place::Waiting => queue.waiting -= 1,
            Place::Device(since) => {
                queue.with_tags -= 1;
                queue.recent -= u64::from(since == looks);
            }
            _ => {}
        }
        if let Place::Device(_) = place {
            queue.with_tags += 1;
            queue.recent += 1;
        }
    }

    fn inserted(&mut self, value: u16, rq: RqId, info: &Info) -> Result<(), Violation> {
        let (hctx, is_limited) = (self.hctx(rq, info.op), !info.op.is_read());
        let (nr_requests, topology) = (self.nr_requests, self.topology);
        // A polled read takes a hardware queue for polled requests, or else a default one.
        let is_certain = topology.poll_queues == 0 && (topology.read_queues == 0 || is_limited);
        let known = Known { place: Place::Waiting, hctx, is_limited, is_hctx_certain: is_certain };
        *self.requests.entry(rq) = Some((rq, known));
        if is_certain {
            self.note_value(value, hctx);
        }
        self.limited += u64::from(is_limited);
        let queue = self.hw_queue(hctx);
        queue.waiting += 1;
        let with_tags = queue.with_tags - queue.recent;
        let bad = |what: String| {
            Err(Violation::new(RULE, format!("{} came into the scheduler, and now {what}", Request(rq))).request(rq))
        };
        if is_certain && queue.waiting + with_tags > nr_requests {
            let waiting = queue.waiting;
            return bad(format!(
                "{waiting} requests for hardware queue {hctx} are in it and {with_tags} with the device, more than \
                 nr_requests={nr_requests}"
            ));
        }
        let (depth, nr_hctxs) = (self.async_depth.most(nr_requests), topology.nr_queues() as u64);
        if is_limited && depth < nr_requests && self.limited > depth * nr_hctxs {
            let limited = self.limited;
            return bad(format!(
                "{limited} requests other than reads are on their way, more than async_depth={depth} for {nr_hctxs} \
                 hardware queues"
            ));
        }
        Ok(())
    }

    fn offered(&mut self, rq: RqId, hctx: u16) {
        if let Some(known) = self.requests.get(rq).copied() {
            if !matches!(known.place, Place::Device(_)) {
                // From here on it is known where polled requests go.
                let known = self.requests.entry(rq);
                known.iter_mut().for_each(|(_, known)| (known.hctx, known.is_hctx_certain) = (hctx, true));
                let looks = self.hw_queue(hctx).looks;
                self.move_to(rq, Place::Device(looks));
            }
        } else {
            let known = Known { place: Place::GivenBack, hctx, is_limited: false, is_hctx_certain: true };
            *self.requests.entry(rq) = Some((rq, known));
            let looks = self.hw_queue(hctx).looks;
            self.move_to(rq, Place::Device(looks));
        }
    }

    fn acted(&mut self, rq: RqId, action: Action) {
        match action {
            Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp => self.move_to(rq, Place::Over),
            Action::GivenBack => self.move_to(rq, Place::GivenBack),
            Action::Started { .. } | Action::Refused | Action::Stale | Action::WantsTime { .. } => {}
        }
    }

    fn changed(&mut self, control: Control, phase: Phase) {
        // A freeze may last until the end of the change is told, or a little longer.
        match (control, phase) {
            (Control::Quiesce | Control::Unquiesce, _) | (Control::Freeze, Phase::Done) => {}
            (Control::Thaw, Phase::Done) => self.nr_open -= 1,
            (Control::Thaw, _) => {}
            (_, Phase::Begun) => self.nr_open += 1,
            (_, Phase::Done | Phase::Refused) => self.nr_open -= 1,
        }
        (self.quiet_since, self.is_changed) = (None, self.nr_open == 0);
        match (control, phase) {
            (Control::NrRequests(nr_requests), Phase::Done) => self.set_nr_requests(nr_requests),
            (Control::Topology(default_queues, read_queues, poll_queues), Phase::Done) => {
                self.topology = Topology { default_queues, read_queues, poll_queues, ..self.topology };
                self.hctxs.clear();
            }
            (Control::Knob("async_depth", depth), phase) => {
                let depth = depth.unsigned_abs();
                self.async_depth.coming = (phase == Phase::Begun).then_some(depth);
                if phase == Phase::Done {
                    self.async_depth.depth = Some(depth);
                }
            }
            _ => {}
        }
    }

    fn submitted(&mut self, step: u64, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        let Ok(nr_parts) = parts(&self.facts.limits, &asked, pieces) else { return };
        self.operations.begin(bio, Operation { submitter, asked, nr_parts, step });
        self.outstanding += nr_parts;
        while self.peaks.back().is_some_and(|(_, peak)| *peak <= self.outstanding) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((step, self.outstanding));
    }

    fn end_of(&mut self, step: u64, bio: u64) -> Option<Operation> {
        let operation = self.operations.end(bio)?;
        self.outstanding -= operation.nr_parts;
        self.peaks.push_back((step, self.outstanding));
        Some(operation)
    }

    /// The most parts of operations that were outstanding at a time since this step. A change was made at this step.
    fn most_since(&self, step: u64) -> u64 {
        let at = self.peaks.partition_point(|(at, _)| *at < step);
        self.peaks.get(at).map_or(u64::MAX, |(_, peak)| *peak)
    }

    /// Called when an operation was refused because it would have had to wait.
    fn refused(&self, bio: u64, operation: &Operation, most: u64) -> Result<(), Violation> {
        let Operation { asked, step, .. } = operation;
        let bad = |what: String| Err(Violation::new(RULE, format!("operation {bio} {what}")).bio(bio));
        if !asked.flags.nowait {
            return bad("may wait, and was told to come again".to_owned());
        }
        if !self.has_scheduler || self.quiet_since.is_none_or(|quiet| quiet >= *step) {
            return Ok(());
        }
        if self.admits_by_share {
            return Ok(());
        }
        let others = most - 1;
        let depth = u64::from(self.topology.depth);
        // A value of the scheduler for one hardware queue counts the requests of that one.
        let nr_hctxs = if self.hctx_of_values.is_some() { 1 } else { self.topology.nr_queues() as u64 };
        // A read may have to stay behind a write of the same kind that found no room.
        let is_limited = self.async_depth.most(self.nr_requests) < self.nr_requests;
        let has_room = others + depth < self.nr_requests;
        if !has_room || is_limited && others >= self.async_depth.now(self.nr_requests) * nr_hctxs {
            return Ok(());
        }
        bad(format!(
            "was told to come again, and there was room: never more than {others} others were outstanding, with \
             nr_requests={} and {depth} tags",
            self.nr_requests
        ))
    }
}

impl Checker for Room {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        if let Event::Inserted { .. } | Event::Merged { .. } | Event::Chosen { .. } | Event::HeldBack { .. } = event {
            let judged = match *event {
                Event::Inserted { value, rq, info, .. } => self.inserted(value, rq, &info),
                Event::Chosen { rq, .. } => {
                    self.move_to(rq, Place::Chosen);
                    Ok(())
                }
                _ => Ok(()),
            };
            match *event {
                Event::Inserted { value, .. } | Event::HeldBack { value, .. } => self.note_look(Some(value), None),
                Event::Chosen { rq, .. } | Event::Merged { into: rq, .. } => self.note_look(None, Some(rq)),
                _ => {}
            }
            if std::mem::take(&mut self.is_changed) {
                self.quiet_since = Some(at.step);
            }
            return judged;
        }
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => {
                self.submitted(at.step, submitter, bio, asked, pieces);
            }
            Event::Reaped { bio, status, .. } => {
                let most = self.operations.get(bio).map_or(0, |operation| self.most_since(operation.step));
                if let Some(operation) = self.end_of(at.step, bio)
                    && status == Status::Again
                {
                    return self.refused(bio, &operation, most);
                }
            }
            Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => _ = self.end_of(at.step, bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.end_of(at.step, bio));
            }
            Event::Installed { scheduler } => self.installed(scheduler),
            Event::Absorbed { absorbed, .. } => self.move_to(absorbed, Place::Over),
            Event::Offered { rq, hctx, .. } => self.offered(rq, hctx),
            Event::Acted { rq, action } => self.acted(rq, action),
            Event::Changed { control, phase } => self.changed(control, phase),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Flags;

    use super::super::testing::*;
    use super::*;

    /// Two hardware queues of 4 tags, mq-deadline, `nr_requests` 8.
    fn told() -> Told<Room> {
        let mut told = Told::new(Room::new(&FACTS));
        told.good(Event::Installed { scheduler: Some("mq-deadline") });
        told
    }

    fn insert(slot: u64, op: Op) -> Event<'static> {
        inserted(id(1, slot, 0), info(op, 8 * slot, 8), 0)
    }

    /// Tells that a request is chosen, and that the device has it.
    fn give(told: &mut Told<Room>, slot: u64) {
        let rq = id(1, slot, 0);
        told.good(chosen(rq, 0)).good(offered(rq, Op::Read, 8 * slot, 8, &[])).good(started(rq));
    }

    fn set(told: &mut Told<Room>, control: Control) {
        told.good(changed(control, Phase::Begun)).good(changed(control, Phase::Done));
    }

    #[test]
    fn nr_requests_bounds_what_waits() {
        let mut told = told();
        (0..8).for_each(|slot| _ = told.good(insert(slot, Op::Read)));
        // Another hardware queue has its own limit.
        told.good(inserted(id(2, 0, 0), info(Op::Read, 0, 8), 0));
        told.bad(insert(8, Op::Read), "request 1/8.0 came into the scheduler, and now 9 requests for hardware queue 0");
        let mut told = self::told();
        set(&mut told, Control::NrRequests(2));
        told.good(insert(0, Op::Read)).good(insert(1, Op::Read)).bad(insert(2, Op::Read), "nr_requests=2");
        let mut told = self::told();
        (0..8).for_each(|slot| _ = told.good(insert(slot, Op::Read)));
        told.good(Event::Absorbed { into: id(1, 0, 0), absorbed: id(1, 1, 0) }).good(insert(8, Op::Read));
    }

    #[test]
    fn what_the_device_has_counts_too() {
        let mut told = told();
        (0..8).for_each(|slot| _ = told.good(insert(slot, Op::Read)));
        give(&mut told, 0);
        // The request may have had no tag yet when there was room. But it has had one since before this insertion.
        told.good(insert(8, Op::Read)).bad(insert(9, Op::Read), "9 requests for hardware queue 0 are in it and 1 with");
        let mut told = self::told();
        (0..8).for_each(|slot| _ = told.good(insert(slot, Op::Read)));
        give(&mut told, 0);
        told.good(Event::HeldBack { value: 0, waiting: 7, now: blkmq_sched::Time(0), wakeup: None });
        told.good(completed(id(1, 0, 0), Status::Ok)).good(insert(8, Op::Read));
        give(&mut told, 1);
        told.good(Event::HeldBack { value: 0, waiting: 7, now: blkmq_sched::Time(0), wakeup: None })
            .bad(insert(9, Op::Read), "1 with");
    }

    #[test]
    fn reads_that_may_be_polled_go_to_an_unknown_queue() {
        let with = |read_queues, poll_queues| {
            let topology = Topology { default_queues: 2, read_queues, poll_queues, depth: 4 };
            let mut told = Told::new(Room::new(&Facts { topology, ..FACTS }));
            told.good(Event::Installed { scheduler: Some("mq-deadline") });
            told
        };
        for (op, queues) in [(Op::Read, (1, 0)), (Op::Write, (0, 1))] {
            let mut told = with(queues.0, queues.1);
            (0..20).for_each(|slot| _ = told.good(insert(slot, op)));
        }
        let mut told = with(1, 0);
        (0..8).for_each(|slot| _ = told.good(insert(slot, Op::Write)));
        told.bad(insert(8, Op::Write), "9 requests for hardware queue 0");
    }

    #[test]
    fn writes_keep_to_async_depth() {
        let mut told = told();
        set(&mut told, Control::Knob("async_depth", 2));
        // Two writes for each of two hardware queues.
        (0..4).for_each(|slot| _ = told.good(insert(slot, Op::Write)));
        told.good(insert(4, Op::Read)).good(chosen(id(1, 0, 0), 0));
        told.bad(insert(5, Op::Write), "5 requests other than reads are on their way, more than async_depth=2 for 2");
        let mut told = self::told();
        set(&mut told, Control::Knob("async_depth", 2));
        (0..4).for_each(|slot| _ = told.good(insert(slot, Op::Write)));
        give(&mut told, 0);
        told.good(completed(id(1, 0, 0), Status::Ok)).good(insert(5, Op::Write));
        // The value of the knob stays when `nr_requests` becomes smaller.
        let mut told = self::told();
        set(&mut told, Control::Knob("async_depth", 2));
        set(&mut told, Control::NrRequests(6));
        (0..4).for_each(|slot| _ = told.good(insert(slot, Op::Write)));
        told.bad(insert(4, Op::Write), "async_depth=2");
    }

    #[test]
    fn nothing_is_refused_while_there_is_room() {
        let flags = Flags { nowait: true, ..Flags::NONE };
        let nowait = |bio| submitted(bio, Asked { flags, ..asked(Op::Read, 0, 8) });
        let again = |bio| reaped(bio, id(1, 0, 0), Status::Again);
        // 3 other requests and 4 tags are fewer than 8.
        let with = |others: u64| {
            let mut told = told();
            (1..=others).for_each(|bio| _ = told.good(submitted(bio, asked(Op::Read, 8, 8))));
            told.good(nowait(100));
            (1..=others).for_each(|bio| _ = told.good(reaped(bio, id(1, bio, 0), Status::Ok)));
            told
        };
        with(3).bad(again(100), "operation 100 was told to come again, and there was room: never more than 3 others");
        with(4).good(again(100));
        told().good(submitted(1, asked(Op::Read, 0, 8))).bad(again(1), "may wait");
        let mut told = self::told();
        told.good(Event::Installed { scheduler: None }).good(nowait(1)).good(again(1));
        // A read that must not wait, behind two writes. There is room for two writes or for four.
        for (depth, is_fine) in [(1, true), (2, false)] {
            let mut told = self::told();
            set(&mut told, Control::Knob("async_depth", depth));
            told.good(insert(0, Op::Read)).good(submitted(1, asked(Op::Write, 8, 8)));
            told.good(submitted(2, asked(Op::Write, 16, 8))).good(nowait(3));
            assert_eq!(told.tell(again(3)).is_ok(), is_fine, "async_depth={depth}");
        }
    }

    #[test]
    fn while_somebody_changes_the_queue_all_may_be_refused() {
        let flags = Flags { nowait: true, ..Flags::NONE };
        let nowait = |bio| submitted(bio, Asked { flags, ..asked(Op::Read, 0, 8) });
        let again = |bio| reaped(bio, id(1, 0, 0), Status::Again);
        let mut told = told();
        told.good(nowait(1)).good(changed(Control::Freeze, Phase::Begun)).good(insert(0, Op::Read)).good(again(1));
        told.good(nowait(2)).good(changed(Control::Freeze, Phase::Done)).good(again(2));
        told.good(changed(Control::Thaw, Phase::Begun)).good(changed(Control::Thaw, Phase::Done));
        told.good(nowait(3)).good(insert(1, Op::Read)).good(again(3));
        told.good(nowait(4)).bad(again(4), "there was room");
        set(&mut told, Control::NrRequests(16));
        told.good(nowait(5)).good(again(5));
    }
}
