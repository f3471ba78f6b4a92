//! What a device decides. No other CPU runs while a function of this module does.

use blkmq_sched::{Op, RqId, Time};
use blkmq_vcpu::{CpuId, Random, cpu};
use blkmq_virtual::Status;
use blkmq_virtual::driver::{Request, TimeoutAction, Topology, TopologyError};

use super::super::check::Violation;
use super::super::event::{Action, DeviceState, Event};
use super::super::witness::Witness;
use super::config::{DeviceConfig, Faults, Limit, Timing};
use super::held::{Held, HwQueue, NEVER, Work};
use super::medium::Medium;
use super::{RULE, stamps};

/// How often a device that never gives up a request is asked about the request before the request completes.
const MOST_ASKED: u32 = 3;

/// The number of requests that are over and still remembered, to be completed again.
const MOST_OVER: usize = 16;

/// What happens to a request that is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Finish(Status),
    Start,
    GiveBack,
    Refuse,
}

/// What a look at a hardware queue found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// This request completes.
    Due(RqId, Status),
    /// This request is completed once more, although it is over.
    Over(RqId, Status),
}

/// A request that is over and will be completed again.
#[derive(Debug, Clone, Copy)]
struct Over {
    id: RqId,
    when: Time,
    /// The CPU whose timeout scan may still hold the request. The scan would then take a status that arrives. Once this
    /// CPU calls the device again, its scan no longer holds the request.
    asker: Option<CpuId>,
}

/// How much of its work a request has done when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Nothing,
    Some,
    All,
}

pub(crate) struct Inner {
    timing: Timing,
    faults: Faults,
    random: Random,
    witness: Witness,
    medium: Medium,
    topology: Topology,
    queues: Vec<HwQueue>,
    nr_held: usize,
    nr_started: u64,
    over: Vec<Over>,
    next_power_loss: Time,
    /// How slow it is, if it has a limit, and when that changes.
    slowness: u64,
    next_jump: Time,
    /// Whether a request was taken since the last loss of power. If none was, another loss of power would find nothing
    /// new to take away.
    is_dirty: bool,
    spare: Vec<Work>,
    segments: Vec<usize>,
}

impl Inner {
    pub(crate) fn new(config: &DeviceConfig, random: Random, witness: Witness) -> Self {
        let DeviceConfig { limits, topology, timing, faults, .. } = config;
        let mut inner = Self {
            timing: timing.clone(),
            faults: faults.clone(),
            random,
            witness,
            medium: Medium::new(limits.capacity_sectors as usize, limits.write_cache),
            topology: *topology,
            queues: Vec::new(),
            nr_held: 0,
            nr_started: 0,
            over: Vec::with_capacity(MOST_OVER),
            next_power_loss: NEVER,
            slowness: 1,
            next_jump: Time(0),
            is_dirty: false,
            spare: Vec::new(),
            segments: Vec::new(),
        };
        inner.prepare();
        inner.plan_power_loss(Time(0));
        inner
    }

    /// Makes the hardware queues that the topology asks for.
    fn prepare(&mut self) {
        let Topology { depth, .. } = self.topology;
        self.queues.resize_with(self.topology.nr_queues(), || HwQueue::new(usize::from(depth)));
    }

    fn accuse(&self, what: String, rq: RqId) {
        self.witness.accuse(Violation::new(RULE, what).request(rq));
    }

    fn acted(&self, rq: RqId, action: Action) {
        self.witness.tell(Event::Acted { rq, action });
    }

    /// What every call into the device does first.
    pub(crate) fn enter(&mut self, now: Time) {
        let me = cpu();
        for over in &mut self.over {
            over.asker = over.asker.filter(|asker| *asker != me);
        }
        if now >= self.next_power_loss && self.is_dirty {
            self.is_dirty = false;
            self.lose_power();
            self.plan_power_loss(now);
        }
    }

    /// A CPU begins a call for an owned hardware queue.
    pub(crate) fn begin_call(&mut self, hctx: u16) {
        let Some(queue) = self.queues.get_mut(usize::from(hctx)) else { return };
        if let Some(other) = queue.caller.replace(cpu()) {
            let what =
                format!("CPU {} calls for hardware queue {hctx} beside CPU {other}, which one thread owns", cpu());
            self.witness.accuse(Violation::new("owner", what));
        }
    }

    /// The call for an owned hardware queue is over.
    pub(crate) fn end_call(&mut self, hctx: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(hctx)) {
            queue.caller = None;
        }
    }

    fn plan_power_loss(&mut self, now: Time) {
        if self.faults.power_ns > 0 {
            self.next_power_loss = now.after(self.random.around(self.faults.power_ns));
        }
    }

    /// Looks at a request, and decides what happens to it. A request that is to be started may not complete before
    /// [`started`](Self::started) is called.
    pub(crate) fn offer(&mut self, hctx: u16, rq: &mut Request<'_>, now: Time) -> Verdict {
        let (id, op) = (rq.id(), rq.op());
        let mut work = self.spare.pop().unwrap_or_default();
        self.look(hctx, rq, &mut work, now);
        let random = &mut self.random;
        let Some(queue) = self.queues.get_mut(usize::from(hctx)) else {
            self.accuse(format!("offered on hardware queue {hctx}, which the device does not have"), id);
            return Verdict::Finish(Status::IoError);
        };
        if now < queue.busy_until || self.nr_held >= self.faults.room {
            self.forget(work);
            self.acted(id, Action::Refused);
            return Verdict::Refuse;
        }
        self.is_dirty = true;
        if self.faults.busy.strikes(random) {
            queue.busy_until = now.after(self.faults.busy_ns);
        }
        if self.faults.gives_back.strikes(random) {
            self.forget(work);
            self.acted(id, Action::GivenBack);
            return Verdict::GiveBack;
        }
        let failures = [Status::Medium, Status::IoError, Status::NoSpace];
        let status = if self.faults.fails.strikes(random) { *random.pick(&failures) } else { Status::Ok };
        if op == Op::Read && !status.is_ok() {
            // No operation ever wrote this number, and no client may see it.
            stamps::fill(rq, &mut self.segments, |_| u64::MAX);
        }
        if self.random.below(100) < self.timing.at_once {
            self.work(&mut work, status);
            self.forget(work);
            self.is_over(id, now, None);
            self.acted(id, Action::FinishedAtOnce(status));
            return Verdict::Finish(status);
        }
        self.start(hctx, id, status, work, now);
        Verdict::Start
    }

    /// Reads what the request asks for, and tells the witness. A read gets its data here.
    fn look(&mut self, hctx: u16, rq: &mut Request<'_>, work: &mut Work, now: Time) {
        let (op, flags) = (rq.op(), rq.flags());
        (work.op, work.through, work.is_done, work.mark) = (Some(op), flags.fua, false, self.medium.mark());
        work.ranges.clear();
        work.ranges.extend(rq.ranges());
        work.stamps.clear();
        self.segments.clear();
        if op == Op::Read {
            let (first, medium) = (rq.sector(), &self.medium);
            stamps::fill(rq, &mut self.segments, |place| medium.read(first + place as u64).unwrap_or(u64::MAX));
        } else {
            stamps::gather(rq, &mut self.segments, &mut work.stamps);
        }
        if rq.hctx() != hctx {
            self.accuse(format!("a request of hardware queue {} was offered on {hctx}", rq.hctx()), rq.id());
        }
        self.witness.tell(Event::Offered {
            rq: rq.id(),
            hctx,
            tag: rq.tag(),
            op,
            flags,
            sector: rq.sector(),
            nr_sectors: rq.nr_sectors(),
            ranges: &work.ranges,
            segments: &self.segments,
            data: &work.stamps,
            now,
        });
    }

    fn start(&mut self, hctx: u16, id: RqId, status: Status, mut work: Work, now: Time) {
        let hangs = self.faults.hangs.strikes(&mut self.random);
        let due = match hangs {
            false => self.due(hctx, now),
            true if self.faults.too_late.strikes(&mut self.random) => {
                now.after(self.timing.too_late_ns(&mut self.random))
            }
            true => NEVER,
        };
        if work.op == Some(Op::Flush) && status.is_ok() && !hangs && self.random.one_in(2) {
            self.work(&mut work, status);
        }
        let queue = &mut self.queues[usize::from(hctx)];
        if !hangs {
            queue.last_due = due;
        }
        let number = self.nr_started;
        queue.held.push(Held { id, number, due, status, is_starting: true, asked: 0, work });
        self.nr_started += 1;
        self.nr_held += 1;
        self.acted(id, Action::Started { due: (due != NEVER).then_some(due) });
    }

    /// How many times as slow the device is now as it can be.
    fn slowness(&mut self, limit: Limit, now: Time) -> u64 {
        if limit.jumps_ns > 0 && now >= self.next_jump {
            self.slowness = *self.random.pick(&[1, 1, 2, 4]);
            self.next_jump = now.after(self.random.around(limit.jumps_ns));
        }
        self.slowness
    }

    /// When a request completes that is started now.
    fn due(&mut self, hctx: u16, now: Time) -> Time {
        if let Some(limit) = self.timing.limit {
            let each_ns = limit.each_ns * self.slowness(limit, now);
            let queue = &mut self.queues[usize::from(hctx)];
            queue.works_until = queue.works_until.max(now).after(each_ns);
            return queue.works_until.after(limit.after_ns);
        }
        let due = now.after(self.timing.time_ns(hctx, &mut self.random));
        if self.timing.in_order { due.max(self.queues[usize::from(hctx)].last_due) } else { due }
    }

    /// Called when the queue knows that a request was started. From now on the request may complete.
    pub(crate) fn started(&mut self, hctx: u16, id: RqId) {
        let queue = &mut self.queues[usize::from(hctx)];
        // The request is no longer here if the device was asked about it meanwhile, and gave it up.
        if let Some(place) = queue.find(id) {
            queue.held[place].is_starting = false;
            queue.next_due = queue.next_due.min(queue.held[place].due);
        }
    }

    /// The request that completes next on a hardware queue. The medium already shows what the request did.
    pub(crate) fn take_due(&mut self, hctx: u16, now: Time) -> Option<Found> {
        if let Some(place) = self.over.iter().position(|over| over.asker.is_none() && over.when <= now) {
            return Some(Found::Over(self.over.swap_remove(place).id, Status::Ok));
        }
        let queue = self.queues.get_mut(usize::from(hctx)).filter(|queue| queue.next_due <= now)?;
        let place = if self.timing.in_order {
            queue.due(now).min_by_key(|place| queue.held[*place].number)?
        } else {
            let nr_due = queue.due(now).count() as u64;
            queue.due(now).nth(self.random.below(nr_due) as usize)?
        };
        let held = queue.take(place);
        let (id, status) = (held.id, held.status);
        self.end(held, status, Action::Completed(status));
        Some(Found::Due(id, status))
    }

    /// Called when the queue was told that a request is completed.
    pub(crate) fn completed(&mut self, id: RqId, is_known: bool, now: Time) {
        if is_known {
            self.is_over(id, now, None);
        } else {
            self.accuse("the queue knows nothing of a request that the device completes for the first time".into(), id);
        }
    }

    /// Called when the queue was told once more that a request is completed, although the request is over.
    pub(crate) fn completed_again(&mut self, id: RqId, is_known: bool) {
        if is_known {
            self.accuse("a request that was over was completed once more".into(), id);
        } else {
            self.acted(id, Action::Stale);
        }
    }

    /// Called when a request is over for the device. The device may complete the request once more.
    fn is_over(&mut self, id: RqId, now: Time, asker: Option<CpuId>) {
        if self.over.len() < MOST_OVER && self.faults.completes_again.strikes(&mut self.random) {
            // Either at once, or at a time when the slot may already serve another operation.
            let when = now.after(*self.random.pick(&[0, 1000, 100_000]));
            self.over.push(Over { id, when, asker });
        }
    }

    fn end(&mut self, held: Held, status: Status, action: Action) {
        let Held { id, mut work, .. } = held;
        self.nr_held -= 1;
        self.work(&mut work, status);
        self.forget(work);
        self.acted(id, action);
    }

    fn forget(&mut self, work: Work) {
        self.spare.push(work);
    }

    /// Changes the medium as a request asks. If the request fails, any part of the change may have happened.
    fn work(&mut self, work: &mut Work, status: Status) {
        let extent = match status {
            _ if std::mem::replace(&mut work.is_done, true) => Extent::Nothing,
            Status::Ok => Extent::All,
            _ => *self.random.pick(&[Extent::Nothing, Extent::Some, Extent::All]),
        };
        match work.op {
            None | Some(Op::Read) => (),
            Some(Op::Flush) if extent == Extent::Nothing => (),
            Some(Op::Flush) => self.medium.flush(work.mark),
            Some(Op::Write | Op::Discard | Op::WriteZeroes) if extent == Extent::Nothing => (),
            Some(Op::Write | Op::Discard | Op::WriteZeroes) => {
                let sectors = work.ranges.iter().flat_map(|(first, nr_sectors)| *first..first + u64::from(*nr_sectors));
                // Sectors of a request without data become zero.
                let stamps = work.stamps.iter().copied().chain(std::iter::repeat(0));
                for (sector, stamp) in sectors.zip(stamps) {
                    if extent == Extent::All || self.random.one_in(2) {
                        self.medium.write(sector, stamp, work.through);
                    }
                }
            }
        }
    }

    /// The power goes and comes back at once. Some of the requests in progress fail, after any part of their work. The
    /// others begin again. But a flush does not begin again, because what it was to make durable is gone.
    pub(crate) fn lose_power(&mut self) {
        for queue in 0..self.queues.len() {
            for place in 0..self.queues[queue].held.len() {
                let held = &mut self.queues[queue].held[place];
                let is_flush = held.work.op == Some(Op::Flush) && !held.work.is_done;
                if is_flush || self.random.one_in(2) {
                    held.status = Status::IoError;
                    let mut work = std::mem::take(&mut held.work);
                    self.work(&mut work, Status::IoError);
                    self.queues[queue].held[place].work = work;
                }
            }
        }
        let Self { random, medium, witness, .. } = self;
        let survivors = *random.pick(&[0, 0, 50, 90]);
        let content = medium.lose_power(|| random.below(100) < survivors);
        witness.tell(Event::PowerLost { content });
    }

    /// Called when the queue asks the device about a request that has taken too long.
    pub(crate) fn asked(&mut self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        self.witness.tell(Event::Overdue { rq: id, now });
        let queue = self.queues.get_mut(usize::from(hctx));
        let Some((place, queue)) = queue.and_then(|queue| Some((queue.find(id)?, queue))) else {
            // The request has completed since the queue took it for overdue, and the queue knows its status.
            return TimeoutAction::ResetTimer;
        };
        if self.faults.gives_up.strikes(&mut self.random) {
            let held = queue.take(place);
            self.end(held, Status::Timeout, Action::GaveUp);
            self.is_over(id, now, Some(cpu()));
            return TimeoutAction::Done;
        }
        let held = &mut queue.held[place];
        held.asked += 1;
        if held.due == NEVER && (held.asked >= MOST_ASKED || self.random.one_in(2)) {
            let due = self.due(hctx, now);
            let queue = &mut self.queues[usize::from(hctx)];
            queue.held[place].due = due;
            queue.note_next_due();
        }
        let due = self.queues[usize::from(hctx)].held[place].due;
        self.acted(id, Action::WantsTime { due: (due != NEVER).then_some(due) });
        TimeoutAction::ResetTimer
    }

    /// Makes the hardware queues for another topology.
    pub(crate) fn set_topology(&mut self, topology: Topology) -> Result<(), TopologyError> {
        if let Some(held) = self.queues.iter().find_map(|queue| queue.held.first()) {
            self.accuse("the hardware queues change while the device works on a request".into(), held.id);
        }
        if self.faults.refuses_topology.strikes(&mut self.random) {
            return Err(TopologyError::refused("the device keeps its hardware queues this time"));
        }
        self.topology = topology;
        self.queues.clear();
        self.prepare();
        Ok(())
    }

    /// The requests that complete by themselves, and when.
    pub(crate) fn due_times(&self, hctx: u16) -> impl Iterator<Item = (RqId, Time)> {
        let held = self.queues.get(usize::from(hctx)).into_iter().flat_map(|queue| &queue.held);
        held.filter(|held| !held.is_starting && held.due != NEVER).map(|held| (held.id, held.due))
    }

    /// When the device is to be called again for a hardware queue.
    pub(crate) fn next_due(&self, hctx: u16) -> Option<Time> {
        let due = self.queues.get(usize::from(hctx))?.next_due;
        (due != NEVER).then_some(due)
    }

    /// What the device has to do.
    pub(crate) fn state(&self) -> DeviceState {
        let held = || self.queues.iter().flat_map(|queue| &queue.held);
        let next_due = held().map(|held| held.due).filter(|due| *due != NEVER).min();
        let hung = held().filter(|held| held.due == NEVER).count() as u32;
        DeviceState { held: self.nr_held as u32, hung, next_due }
    }
}
