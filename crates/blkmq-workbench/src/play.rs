//! Plays the operations of a trace through a queue, in one thread, a submitter for each process.

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq::{
    Bio, Buffers, Client, Clock, IoPriority, Op, QueueCounters, QueueError, RejectReason, Rejected, RequestQueue,
    Status, Submitter, Time,
};

use crate::buffers::BufferPool;
use crate::load::{Cursor, Operation};
use crate::{Latencies, Load};

/// A sleep on the machine's clock ends this much before the time it is for, in ns, because waking takes time.
const WAKING_NS: u64 = 200_000;

/// The longest data of an operation, in sectors (64 MiB). A longer operation in a trace does not transfer data; without
/// this limit, a trace would decide how much memory is taken.
const MAX_DATA_SECTORS: u64 = 131_072;

/// Bytes of buffers that are kept for further operations. Without this limit a trace with many lengths would keep a
/// buffer of each for every operation that it ever had outstanding.
const MAX_SPARE_BYTES: usize = 256 << 20;

/// Time between two reports of progress, in ns.
const REPORT_NS: u64 = 250_000_000;

/// How fast operations are played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// This many times as fast as they were traced.
    Scaled(f64),
    /// As fast as the device takes them. Each process keeps as many operations outstanding as it had at most in the
    /// trace.
    Max,
}

impl Speed {
    /// When an event is played that happened `ns` nanoseconds after the first operation of the trace.
    fn scale(self, ns: u64) -> u64 {
        match self {
            Self::Scaled(factor) => (ns as f64 / factor) as u64,
            Self::Max => 0,
        }
    }
}

/// A text is no speed. Displayed, it says what is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("accepted: a number above 0, such as 1 or 2.5; 0 or max for no waiting")]
#[non_exhaustive]
pub struct NoSpeed;

impl FromStr for Speed {
    type Err = NoSpeed;

    fn from_str(text: &str) -> Result<Self, NoSpeed> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Self::Max),
            Ok(0.0) => Ok(Self::Max),
            Ok(factor) if factor.is_finite() && factor > 0.0 => Ok(Self::Scaled(factor)),
            _ => Err(NoSpeed),
        }
    }
}

/// The results of the operations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Completed operations, including those that failed.
    pub completed: u64,
    /// The operations that failed, by status.
    pub failed: Vec<(Status, u64)>,
    /// Operations that the queue did not take, by status.
    pub refused: Vec<(Status, u64)>,
    /// Nanoseconds from the beginning to the last completion.
    pub duration: u64,
    /// The time from the moment at which an operation was to be submitted to its completion. With [`Speed::Max`], the
    /// time from its submission.
    pub latencies: Latencies,
    /// What the queue counted.
    pub stats: QueueCounters,
}

/// A load cannot be played, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// The queue takes no further submitter.
    #[error("{0}")]
    Queue(QueueError),
    /// The temporary file that holds the operations cannot be read.
    #[error("a temporary file with the trace's operations cannot be read: {0}")]
    Load(io::Error),
}

/// Plays `load` through `q`, which no other thread may use meanwhile. On a virtual clock the result depends on nothing
/// else. `progress` receives the number of finished operations now and then. If `stop` is set, no further operation is
/// submitted, and the outcome is that of those before it.
///
/// # Errors
/// The queue takes no further submitter; or the temporary file of `load` cannot be read, in which case no further
/// operation is submitted and those before it complete.
pub fn play(
    load: &Load,
    q: &RequestQueue,
    speed: Speed,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<Outcome, PlayError> {
    let start = q.clock().now();
    let (buffers, outcome) = (BufferPool::new(MAX_SPARE_BYTES, false), Outcome::default());
    let mut player = Player { start, speed, buffers, outcome, fault: None };
    let mut lanes = lanes(load, q, speed)?;
    let mut report = start.after(REPORT_NS);
    loop {
        let mut moved = false;
        let now = q.clock().now();
        if stop.load(Ordering::Relaxed) || player.fault.is_some() {
            lanes.iter_mut().for_each(|lane| lane.coming.clear());
        }
        for lane in &mut lanes {
            moved |= player.submit(lane, now);
            if lane.submitter.nr_outstanding() > 0 {
                moved |= player.reap(lane, q.clock());
            }
        }
        if lanes.iter().all(Lane::is_over) {
            break;
        }
        if now >= report {
            progress(player.outcome.completed);
            report = now.after(REPORT_NS);
        }
        if !moved {
            rest(&lanes, q.clock(), now, &player);
        }
    }
    match player.fault {
        Some(fault) => Err(PlayError::Load(fault)),
        None => Ok(Outcome { stats: q.counters(), ..player.outcome }),
    }
}

/// One submitter, and the operations that it has not submitted yet.
struct Lane<'l> {
    submitter: Submitter,
    coming: Cursor<'l>,
    /// How many requests the submitter may have outstanding.
    most: usize,
}

impl Lane<'_> {
    fn is_over(&self) -> bool {
        self.coming.front().is_none() && self.submitter.nr_outstanding() == 0
    }
}

fn lanes<'l>(load: &'l Load, q: &RequestQueue, speed: Speed) -> Result<Vec<Lane<'l>>, PlayError> {
    let mut lanes = Vec::new();
    for (number, (coming, peak)) in load.submitters().map_err(PlayError::Load)?.into_iter().enumerate() {
        lanes.push(Lane {
            submitter: q.submitter(&Client::new(format!("process {number}"))).map_err(PlayError::Queue)?,
            coming,
            most: if speed == Speed::Max { peak.max(1) } else { usize::MAX },
        });
    }
    Ok(lanes)
}

struct Player {
    start: Time,
    speed: Speed,
    buffers: BufferPool,
    outcome: Outcome,
    /// The load could not be read on.
    fault: Option<io::Error>,
}

impl Player {
    /// When an event is due that happened `ns` nanoseconds after the first operation of the trace.
    fn due(&self, ns: u64) -> Time {
        self.start.after(self.speed.scale(ns))
    }

    /// Submits the operations that are due and that find room. Returns false if there were none.
    fn submit(&mut self, lane: &mut Lane<'_>, now: Time) -> bool {
        let mut moved = false;
        while let Some(operation) = lane.coming.front().copied()
            && self.due(operation.unplugged) <= now
            && lane.submitter.nr_outstanding() < lane.most
        {
            let since = if self.speed == Speed::Max { now } else { self.due(operation.time) };
            if !self.submit_one(&mut lane.submitter, &operation, since) {
                break;
            }
            moved = true;
            if let Err(fault) = lane.coming.pop_front() {
                self.fault = Some(fault);
            }
            // Operations that shared a plug in the trace share a plug here.
            if lane.coming.front().is_none_or(|next| next.unplugged != operation.unplugged) {
                lane.submitter.flush_plug();
            }
        }
        moved
    }

    /// Submits one operation, or notes why it cannot be done. Returns false if there is no room.
    fn submit_one(&mut self, submitter: &mut Submitter, operation: &Operation, since: Time) -> bool {
        let Operation { op, sector, nr_sectors, flags, class, .. } = *operation;
        let has_data = matches!(op, Op::Read | Op::Write);
        let checked = match submitter.queue().limits().check(op, sector, nr_sectors) {
            Ok(()) if has_data && nr_sectors > MAX_DATA_SECTORS => Err(Status::TooLarge),
            checked => checked,
        };
        if let Err(status) = checked {
            count(&mut self.outcome.refused, status);
            return true;
        }
        let bytes = usize::try_from(nr_sectors * 512).expect("a trace states lengths in 32 bits");
        let buffers = if has_data { self.buffers.take(bytes).into() } else { Buffers::None };
        let bio = Bio::new(op, sector, nr_sectors, buffers)
            .with_flags(flags)
            .with_priority(IoPriority { class, ..IoPriority::default() })
            .with_user_data(since.0);
        match submitter.submit(bio) {
            Ok(_) => true,
            Err(Rejected { bio, reason }) => {
                self.buffers.put(bio.buffers);
                match reason {
                    RejectReason::Full => false,
                    RejectReason::Bad(status) => {
                        count(&mut self.outcome.refused, status);
                        true
                    }
                }
            }
        }
    }

    /// Reaps completed operations. Returns false if there were none.
    fn reap(&mut self, lane: &mut Lane<'_>, clock: &Clock) -> bool {
        if !lane.submitter.poll() {
            return false;
        }
        let now = clock.now();
        while let Some(completion) = lane.submitter.reap() {
            let Bio { op, user_data: since, buffers, .. } = completion.bio;
            self.outcome.completed += 1;
            self.outcome.latencies.record(op, now.0.saturating_sub(since));
            if !completion.status.is_ok() {
                count(&mut self.outcome.failed, completion.status);
            }
            self.buffers.put(buffers);
        }
        self.outcome.duration = now.0 - self.start.0;
        true
    }
}

fn count(counts: &mut Vec<(Status, u64)>, status: Status) {
    match counts.iter_mut().find(|(known, _)| *known == status) {
        Some((_, n)) => *n += 1,
        None => counts.push((status, 1)),
    }
}

/// Waits until something happens, or for a part of that time. `now` is when operations were last submitted.
fn rest(lanes: &[Lane<'_>], clock: &Clock, now: Time, player: &Player) {
    // An operation that was due at `now` and is still here waits for room. A completion makes room.
    let due = |lane: &Lane<'_>| lane.coming.front().map(|next| player.due(next.unplugged)).filter(|due| *due > now);
    let events = lanes.iter().flat_map(|lane| [due(lane), lane.submitter.next_wakeup()]).flatten();
    let Some(until) = events.min() else { return };
    match clock {
        Clock::Virtual(clock) => clock.advance_to(until),
        // A device answers in less time than a thread takes to wake up, so there is no sleep while the device works.
        Clock::Real(_) if lanes.iter().any(|lane| lane.submitter.nr_outstanding() > 0) => std::hint::spin_loop(),
        Clock::Real(_) => {
            let ns = until.0.saturating_sub(now.0).min(REPORT_NS);
            std::thread::sleep(Duration::from_nanos(ns.saturating_sub(WAKING_NS)));
        }
    }
}
