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

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::text::Request;
use super::table::{Table, grown, pool};
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "room";

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
#[derive(Debug, Clone, Copy, Default)]
struct AsyncDepth {
    /// The value that was set.
    depth: Option<u64>,
    /// How many quarters of `nr_requests` it is if none was set.
    quarters: u64,
    /// The value that is being set, or that may be in effect already.
    coming: Option<u64>,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The hardware queue of each value of the scheduler, as far as it is known, if each has a value.
    hctx_of_values: Vec<Option<u16>>,
    async_depth: AsyncDepth,
    requests: Table<Known>,
    hctxs: Vec<HwQueue>,
    /// How often the scheduler was told or asked something.
    looks: u64,
    limited: u64,
    /// Parts of operations that are outstanding. And the most that were outstanding at a time since a step: each entry
    /// has a smaller number than the one before.
    outstanding: u64,
    peaks: VecDeque<(u64, u64)>,
    /// The step since which no CPU changes the queue.
    quiet_since: Option<u64>,
    /// Whether a change was made, so that the next request that comes in shows that the queue runs again.
    is_changed: bool,
}

impl AsyncDepth {
    /// The largest possible limit while `nr_requests` has this value.
    fn most(&self, nr_requests: u64) -> u64 {
        self.now(nr_requests).max(self.coming.unwrap_or(0))
    }

    fn now(&self, nr_requests: u64) -> u64 {
        self.depth.unwrap_or((nr_requests * self.quarters / 4).max(1))
    }
}

/// The hardware queue of a request that is not polled.
const fn hctx_of(rq: RqId, op: Op, topology: &Topology) -> u16 {
    let &Topology { default_queues, read_queues, .. } = topology;
    let (first, nr_queues) = match op {
        Op::Read if read_queues > 0 => (default_queues, read_queues),
        _ => (0, default_queues),
    };
    first + pool(rq).wrapping_sub(1) % nr_queues
}

impl Room {
    pub(super) fn new() -> Self {
        Self { quiet_since: Some(0), ..Self::default() }
    }

    fn hw_queue(&mut self, hctx: u16, is_split: bool) -> &mut HwQueue {
        let queue = grown(&mut self.hctxs, hctx, HwQueue::default);
        let looks = if is_split { queue.own_looks } else { self.looks };
        if queue.looks != looks {
            (queue.looks, queue.recent) = (looks, 0);
        }
        queue
    }

    /// The scheduler was told or asked something: its value with this number, or its value for the hardware queue of
    /// this request. If the hardware queue of a value is not known, this look is not counted.
    fn note_look(&mut self, value: Option<u16>, rq: Option<RqId>, is_split: bool) {
        self.looks += 1;
        let by_value = value.and_then(|value| *self.hctx_of_values.get(usize::from(value))?);
        let by_request = rq.and_then(|rq| self.requests.get(rq)).filter(|known| known.is_hctx_certain);
        if let Some(hctx) = by_value.or_else(|| Some(by_request?.hctx)).filter(|_| is_split) {
            self.hw_queue(hctx, is_split).own_looks += 1;
        }
    }

    /// Moves a request to another place.
    fn move_to(&mut self, rq: RqId, place: Place, is_split: bool) {
        let Some(known) = self.requests.get_mut(rq) else { return };
        let before = *known;
        known.place = place;
        if before.is_limited && place == Place::Over && before.place != Place::Over {
            self.limited -= 1;
        }
        let queue = self.hw_queue(before.hctx, is_split);
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

    fn inserted(&mut self, value: u16, rq: RqId, info: &Info, tracker: &Tracker) -> Verdict {
        let (nr_requests, topology, is_split) = (tracker.nr_requests(), tracker.topology, tracker.is_split());
        let (hctx, is_limited) = (hctx_of(rq, info.op, &topology), !info.op.is_read());
        // A polled read takes a hardware queue for polled requests, or else a default one.
        let is_certain = topology.poll_queues == 0 && (topology.read_queues == 0 || is_limited);
        let known = Known { place: Place::Waiting, hctx, is_limited, is_hctx_certain: is_certain };
        *self.requests.entry(rq) = Some((rq, known));
        if is_certain && is_split {
            *grown(&mut self.hctx_of_values, value, || None) = Some(hctx);
        }
        self.limited += u64::from(is_limited);
        let queue = self.hw_queue(hctx, is_split);
        queue.waiting += 1;
        let with_tags = queue.with_tags - queue.recent;
        let fail = |what: String| {
            Err(Violation::new(RULE, format!("{} came into the scheduler, and now {what}", Request(rq))).request(rq))
        };
        if is_certain && queue.waiting + with_tags > nr_requests {
            let waiting = queue.waiting;
            return fail(format!(
                "{waiting} requests for hardware queue {hctx} are in it and {with_tags} with the device, more than \
                 nr_requests={nr_requests}"
            ));
        }
        let (depth, nr_hctxs) = (self.async_depth.most(nr_requests), topology.nr_queues() as u64);
        if is_limited && depth < nr_requests && self.limited > depth * nr_hctxs {
            let limited = self.limited;
            return fail(format!(
                "{limited} requests other than reads are on their way, more than async_depth={depth} for {nr_hctxs} \
                 hardware queues"
            ));
        }
        Ok(())
    }

    fn offered(&mut self, rq: RqId, hctx: u16, is_split: bool) {
        // From here on it is known where polled requests go.
        match self.requests.get_mut(rq) {
            Some(Known { place: Place::Device(_), .. }) => return,
            Some(known) => (known.hctx, known.is_hctx_certain) = (hctx, true),
            None => {
                let known = Known { place: Place::GivenBack, hctx, is_limited: false, is_hctx_certain: true };
                *self.requests.entry(rq) = Some((rq, known));
            }
        }
        let looks = self.hw_queue(hctx, is_split).looks;
        self.move_to(rq, Place::Device(looks), is_split);
    }

    fn acted(&mut self, rq: RqId, action: Action, is_split: bool) {
        let place = match action {
            Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp => Place::Over,
            Action::GivenBack => Place::GivenBack,
            Action::Started { .. } | Action::Refused | Action::Stale | Action::WantsTime { .. } => return,
        };
        self.move_to(rq, place, is_split);
    }

    fn changed(&mut self, control: Control, phase: Phase, tracker: &Tracker) {
        // A freeze may last until the end of the change is told, or a little longer.
        (self.quiet_since, self.is_changed) = (None, tracker.nr_changes == 0);
        match (control, phase) {
            (Control::Topology(..), Phase::Done) => self.hctxs.clear(),
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

    fn submitted(&mut self, step: u64, nr_parts: u64) {
        self.outstanding += nr_parts;
        while self.peaks.back().is_some_and(|(_, peak)| *peak <= self.outstanding) {
            self.peaks.pop_back();
        }
        self.peaks.push_back((step, self.outstanding));
    }

    /// The most parts of operations that were outstanding at a time since this step. A change was made at this step.
    fn most_since(&self, step: u64) -> u64 {
        let at = self.peaks.partition_point(|(at, _)| *at < step);
        self.peaks.get(at).map_or(u64::MAX, |(_, peak)| *peak)
    }

    /// Called when an operation was refused because it would have had to wait.
    fn refused(&self, bio: u64, operation: &Operation, most: u64, tracker: &Tracker) -> Verdict {
        let fail = |what: String| Err(Violation::new(RULE, format!("operation {bio} {what}")).bio(bio));
        if !operation.asked.flags.nowait {
            return fail("may wait, and was told to come again".to_owned());
        }
        let is_quiet = self.quiet_since.is_some_and(|quiet| quiet < operation.at.step);
        // bfq admits requests by shares. What it must admit is checked where it is asked.
        if !is_quiet || tracker.scheduler.is_none_or(|name| name == "bfq") {
            return Ok(());
        }
        let (others, nr_requests) = (most - 1, tracker.nr_requests());
        // fair reserves a quarter of the room for clients with few requests.
        let reserved = if tracker.scheduler == Some("fair") { nr_requests / 4 } else { 0 };
        let depth = u64::from(tracker.topology.depth);
        // A value of the scheduler for one hardware queue counts the requests of that one.
        let nr_hctxs = if tracker.is_split() { 1 } else { tracker.topology.nr_queues() as u64 };
        // A read may have to stay behind a write of the same kind that found no room.
        let is_limited = self.async_depth.most(nr_requests) < nr_requests;
        let has_room = others + depth + reserved < nr_requests;
        if !has_room || is_limited && others >= self.async_depth.now(nr_requests) * nr_hctxs {
            return Ok(());
        }
        fail(format!(
            "was told to come again, and there was room: never more than {others} others were outstanding, with \
             nr_requests={nr_requests} and {depth} tags"
        ))
    }
}

impl Checker for Room {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        let is_split = tracker.is_split();
        let of_reaped = tracker.ending.first().and_then(|bio| tracker.operation(*bio));
        let most = of_reaped.map_or(0, |operation| self.most_since(operation.at.step));
        for operation in tracker.ending.iter().filter_map(|bio| tracker.operation(*bio)) {
            self.outstanding -= operation.nr_parts;
            self.peaks.push_back((at.step, self.outstanding));
        }
        let verdict = match *event {
            Event::Submitted { bio, .. } => {
                let nr_parts = tracker.operation(bio).map_or(0, |operation| operation.nr_parts);
                self.submitted(at.step, nr_parts);
                Ok(())
            }
            Event::Reaped { bio, status: Status::Again, .. } => {
                of_reaped.map_or(Ok(()), |operation| self.refused(bio, operation, most, tracker))
            }
            Event::Installed { scheduler } => {
                let quarters = if scheduler == Some("kyber") { 3 } else { 4 };
                (self.async_depth, self.limited) = (AsyncDepth { depth: None, quarters, coming: None }, 0);
                self.hctx_of_values.clear();
                Ok(())
            }
            Event::Inserted { value, rq, info, .. } => self.inserted(value, rq, &info, tracker),
            _ => Ok(()),
        };
        match *event {
            Event::Chosen { rq, .. } => self.move_to(rq, Place::Chosen, is_split),
            Event::Absorbed { absorbed, .. } => self.move_to(absorbed, Place::Over, is_split),
            Event::Offered { rq, hctx, .. } => self.offered(rq, hctx, is_split),
            Event::Acted { rq, action } => self.acted(rq, action, is_split),
            Event::Changed { control, phase } => self.changed(control, phase, tracker),
            _ => {}
        }
        match *event {
            Event::Inserted { value, .. } | Event::HeldBack { value, .. } => {
                self.note_look(Some(value), None, is_split)
            }
            Event::Chosen { rq, .. } | Event::Merged { into: rq, .. } => self.note_look(None, Some(rq), is_split),
            _ => return verdict,
        }
        if std::mem::take(&mut self.is_changed) {
            self.quiet_since = Some(at.step);
        }
        verdict
    }
}
