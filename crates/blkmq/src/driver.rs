//! The contract between the block layer and a device.

#[cfg(test)]
mod cases;
pub mod harness;
pub mod hdd;
pub mod null;
pub mod ram;
mod random;
pub mod spec;
pub mod ssd;
mod started;
mod store;

use std::fmt;
#[cfg(feature = "eventfd")]
use std::os::fd::BorrowedFd;
use std::time::Duration;

use blkmq_sched::Time;

pub use crate::request::buffer::{Arena, Registration, Segment};
use crate::request::limits::{Limits, MAX_DEPTH, MAX_HW_QUEUES, MAX_MEMBERS};
use crate::request::status::Status;
use crate::request::{Lent, Place, RqList, Slots};
pub use crate::request::{Request, RqId};
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::tags::Tag;
pub(crate) use started::Started;

/// How many hardware queues a device has, of which type, and how deep each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Queues for everything that the other types do not take; at least one.
    pub default_queues: u16,
    /// Queues for plain reads. If there are none, reads go to the default queues.
    pub read_queues: u16,
    /// Queues for polled operations. If there are none, these go to the default queues.
    pub poll_queues: u16,
    /// Tags of each queue, 1 to [`MAX_DEPTH`].
    pub depth: u16,
}

impl Topology {
    /// Queues of all types.
    #[must_use]
    pub const fn nr_queues(&self) -> usize {
        self.default_queues as usize + self.read_queues as usize + self.poll_queues as usize
    }
}

/// Checks that a device can have these hardware queues.
pub(crate) fn check_topology(topology: Topology) -> Result<(), String> {
    let Topology { default_queues, read_queues, poll_queues, depth } = topology;
    if default_queues == 0 {
        return Err("there must be a hardware queue of the default type".to_owned());
    }
    if topology.nr_queues() > MAX_HW_QUEUES {
        return Err(format!(
            "{default_queues} default, {read_queues} read and {poll_queues} polled hardware queues are more than \
             {MAX_HW_QUEUES}"
        ));
    }
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(format!("a hardware queue has 1 to {MAX_DEPTH} tags, not {depth}"));
    }
    Ok(())
}

/// What a driver says about a request that it has had for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The driver has given the request up: it will not touch the request's buffers or complete it any more. For a
    /// request that was [lent](Batch::lend) this answer means nothing, and the driver is asked again.
    Done,
    /// The driver needs more time.
    ResetTimer,
}

/// The state of a device, beyond the answers to single requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Health {
    /// The device is as it should be.
    #[default]
    Good,
    /// The device cannot be reached at present, and the driver goes on trying. The text says since when and why, in one
    /// sentence.
    Away(String),
    /// The device has lost what it had acknowledged, or can do no more, until it is opened anew. The text says what
    /// happened, in one sentence.
    Failed(String),
}

impl Health {
    /// The word for the state in statistics: `good`, `away` or `failed`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Away(_) => "away",
            Self::Failed(_) => "failed",
        }
    }

    /// What is wrong, if anything is.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Good => None,
            Self::Away(text) | Self::Failed(text) => Some(text),
        }
    }
}

/// When a device will next have something for [`Driver::poll`], as far as its driver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextEvent {
    /// At this time.
    At(Time),
    /// At no time that is known: nothing is in flight, or no poll will complete what is. A driver that will have
    /// something all the same, without a request that was started, says so by [`Done::plan_anew`].
    Never,
    /// The driver cannot tell. If it has a [descriptor](Driver::ready_fd), the descriptor tells. Otherwise it is
    /// polled: a thread that waits polls every [`POLL_PERIOD`] while requests are in flight.
    Unknown,
}

/// How often a driver is polled that does not tell when it completes requests. Such a request takes at most so much
/// longer. A thread that wakes a thousand times in a second takes about a hundredth of a processor.
pub const POLL_PERIOD: Duration = Duration::from_millis(1);

impl NextEvent {
    /// The time, if one is known.
    #[must_use]
    pub const fn time(self) -> Option<Time> {
        match self {
            Self::At(time) => Some(time),
            Self::Never | Self::Unknown => None,
        }
    }
}

/// For a driver that knows all times: the time of what is next, or never.
impl From<Option<Time>> for NextEvent {
    fn from(time: Option<Time>) -> Self {
        time.map_or(Self::Never, Self::At)
    }
}

/// A stretch of a device, and what is known of it without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub bytes: u64,
    /// The stretch takes up no room, so that a write to it may find the device full.
    pub is_hole: bool,
    /// The stretch reads as zeroes.
    pub is_zero: bool,
}

impl Extent {
    /// Data, or bytes of which nothing is known.
    #[must_use]
    pub const fn data(bytes: u64) -> Self {
        Self { bytes, is_hole: false, is_zero: false }
    }

    /// A hole, which reads as zeroes.
    #[must_use]
    pub const fn hole(bytes: u64) -> Self {
        Self { bytes, is_hole: true, is_zero: true }
    }
}

/// A device.
///
/// Requests come by [`queue_rqs`](Self::queue_rqs) in the order in which the scheduler chose them. For each request a
/// driver does one of these:
/// - It finishes the request at once ([`Batch::finish`]).
/// - It starts the request ([`Batch::start`]) and completes it later from [`poll`](Self::poll).
/// - It takes the request as a loan, if its device reads and writes memory by itself ([`Batch::lend`]).
/// - It sends the request back ([`Batch::requeue`]).
/// - It refuses the request and all behind it ([`Batch::refuse`]).
///
/// A request that the driver drops instead is never over, so [dropping it panics](Request).
///
/// A driver serves one queue at a time, so the tags of a hardware queue and the ids of requests name one request each.
/// A driver in front of another one must keep to that.
///
/// The methods that have a default are for devices that keep requests, change, or take calls from several threads at
/// once.
pub trait Driver: Send + Sync + fmt::Debug {
    /// The name in device specs.
    fn name(&self) -> &'static str;

    /// What the device accepts. Fixed while the queue exists, except for the capacity, which is looked up at each call.
    /// A server asks whenever a client chooses an export, and that client waits for the answer.
    fn limits(&self) -> Limits;

    /// The device's present state. Operators ask for it now and then, from any thread.
    fn health(&self) -> Health {
        Health::Good
    }

    /// The device's hardware queues at the start.
    fn topology(&self) -> Topology;

    /// Prepares for another number of hardware queues. Nothing is in flight then, and no thread calls
    /// [`queue_rqs`](Self::queue_rqs), [`poll`](Self::poll) or [`timeout`](Self::timeout).
    ///
    /// # Errors
    /// Why the device cannot have that many, in one sentence.
    fn set_topology(&self, topology: Topology) -> Result<(), String> {
        let _ = topology;
        Err(format!("the device '{}' has a fixed number of hardware queues", self.name()))
    }

    /// True if several threads may call [`queue_rqs`](Self::queue_rqs) for one hardware queue at once. The block layer
    /// then takes no lock around the call.
    fn is_concurrent(&self) -> bool {
        false
    }

    /// True if each hardware queue belongs to one submitter. Only that submitter's requests go to the queue, and only
    /// that submitter calls [`queue_rqs`](Self::queue_rqs) and [`poll`](Self::poll) for it, one after the other.
    /// Requests that other threads choose for the queue wait for the owner's next poll. There are then no more
    /// submitters than hardware queues of the type that has the fewest, and no [background
    /// threads](crate::RequestQueue::start_threads). Any thread may still call the other methods.
    fn is_owned(&self) -> bool {
        false
    }

    /// Whether what is written can be read again. A device that only takes time says false.
    fn keeps_data(&self) -> bool {
        true
    }

    /// The first stretch of the `bytes` bytes from byte `start` on, at least 1, that is alike, as far as is known. The
    /// stretch is no longer than `bytes`, and shorter if a longer one takes longer to find. Clients that copy a device
    /// ask for it, from any thread, and that thread waits for the answer. The answer covers all that completed before
    /// the call. The answer may or may not cover what is in flight meanwhile.
    fn extent(&self, start: u64, bytes: u64) -> Extent {
        let _ = start;
        Extent::data(bytes)
    }

    /// Whether requests take time by the queue's clock. If the device says no, that clock may be a coarse one.
    fn takes_time(&self) -> bool {
        true
    }

    /// Takes requests for hardware queue `hctx` from `batch`, in order, until it is empty or one is refused:
    /// `while let Some(rq) = batch.next_request()`.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time);

    /// Completes what has finished by `now` on hardware queue `hctx`. Any thread calls this, and several may at once,
    /// unless hardware queues are [owned](Self::is_owned).
    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        let _ = (hctx, done, now);
    }

    /// When [`poll`](Self::poll) will next find something on `hctx`. A thread that waits sleeps until then. A driver
    /// that does not say is polled, unless it has a [descriptor](Self::ready_fd): see [`NextEvent::Unknown`]. `hctx`
    /// may be a hardware queue that is gone since a [`set_topology`](Self::set_topology).
    fn next_event(&self, hctx: u16) -> NextEvent {
        let _ = hctx;
        NextEvent::Unknown
    }

    /// A descriptor that is readable while [`poll`](Self::poll) would find something on `hctx`; `None` for a device
    /// whose completions all come at times that [`next_event`](Self::next_event) tells, or that is polled. The
    /// descriptor stays open as long as the driver lives. A driver has one for each hardware queue or for none, and
    /// that never changes. If some completions must be polled for, `next_event` says so.
    ///
    /// Each thread that is about to sleep until the device has something asks for the descriptor, and sleeps on it. In
    /// some drivers `poll` returns at once when another thread is in it. Such a driver must wait here for that other
    /// thread. Until the other thread is done the descriptor may be readable. A thread that sleeps on it would be awake
    /// at once, again and again, on the processor that the other thread may need to go on.
    #[cfg(feature = "eventfd")]
    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        let _ = hctx;
        None
    }

    /// Memory that operations will use again and again. A driver that can use this makes the memory ready, and returns
    /// a value that undoes that when it is dropped. The value is dropped before the memory is freed, when no request in
    /// flight uses the memory.
    fn register(&self, arena: &Arena) -> Option<Registration> {
        let _ = arena;
        None
    }

    /// A request that was started has not completed in time. Not called for a request that is completing.
    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        let _ = (hctx, id, now);
        TimeoutAction::ResetTimer
    }

    /// Writes the driver's state in readable form.
    ///
    /// # Errors
    /// Only those of `out`.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let _ = out;
        Ok(())
    }
}

/// Which request has a tag of a hardware queue, and whether it is a read. The timeout scan and counts read this.
#[derive(Debug)]
pub(crate) struct StartedTable(Box<[AtomicU64]>);

impl StartedTable {
    /// The entry of a tag that no request has. No id has this value.
    const NOBODY: u64 = u64::MAX;
    /// The bit of an id that says that its request is a read: the uppermost bit of the pool, which is below
    /// [`MAX_MEMBERS`].
    const READ: u64 = 1 << 31;

    pub(crate) fn new(depth: usize) -> Self {
        Self((0..depth).map(|_| AtomicU64::new(Self::NOBODY)).collect())
    }

    fn set(&self, tag: Tag, id: RqId, is_read: bool) {
        let marked = if is_read { id.0 | Self::READ } else { id.0 };
        self.0[usize::from(tag.0)].store(marked, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<RqId> {
        self.get_directed(tag).map(|(id, _)| id)
    }

    /// The request that has `tag`, and whether it is a read.
    pub(crate) fn get_directed(&self, tag: Tag) -> Option<(RqId, bool)> {
        let marked = self.0[usize::from(tag.0)].load(Ordering::Relaxed);
        (marked != Self::NOBODY).then_some((RqId(marked & !Self::READ), marked & Self::READ != 0))
    }
}

const _: () = assert!(MAX_MEMBERS <= 1 << 15);

/// Requests on their way to a driver, and what it does with them. A driver takes one after the other, and says of each
/// what becomes of it:
///
/// ```
/// # use blkmq::{Op, Status, driver::Batch};
/// fn queue_rqs(batch: &mut Batch<'_>) {
///     while let Some(rq) = batch.next_request() {
///         let status = if rq.op() == Op::Read { Status::Ok } else { Status::Unsupported };
///         batch.finish(rq, status);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Batch<'q> {
    pub(crate) slots: &'q Slots,
    pub(crate) table: &'q StartedTable,
    pub(crate) pending: &'q mut RqList,
    pub(crate) finished: &'q mut RqList,
    pub(crate) requeued: &'q mut RqList,
    pub(crate) now: Time,
    pub(crate) timeout_ns: u64,
    /// The thread that issues, and the threads that it will tell of what was started.
    pub(crate) member: u16,
    pub(crate) started: &'q mut Started,
    /// The driver refused a request, and wants to be asked again later.
    pub(crate) refused: bool,
}

impl<'q> Batch<'q> {
    /// Takes the next request, in order; none after a request was refused.
    #[inline]
    pub fn next_request(&mut self) -> Option<Request<'q>> {
        if self.refused { None } else { self.pending.pop_front(self.slots) }
    }

    /// An address has a meaning only in its own queue.
    #[inline]
    fn check(&self, rq: &Request<'_>) {
        assert!(rq.is_of(self.slots), "a driver hands back requests to the queue they came from");
    }

    /// Requests still to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// True if no request is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The request is finished already.
    #[inline]
    pub fn finish(&mut self, mut rq: Request<'q>, status: Status) {
        self.check(&rq);
        rq.body_mut().status = status;
        rq.body_mut().issued = self.now;
        self.finished.push_back(rq, Place::Held);
    }

    /// All requests that are still to come are finished already.
    #[inline]
    pub fn finish_all(&mut self, status: Status) {
        if !self.refused {
            let all = self.pending.take_while(self.slots, |rq| {
                let body = rq.body_mut();
                body.status = status;
                body.issued = self.now;
                true
            });
            self.finished.append(all);
        }
    }

    /// The device works on the request from now on. Note the id before any thread can complete the request: the driver
    /// hands the id to [`Done::complete`] later, and must not touch the request's data after that.
    #[must_use = "the id is the only way to complete the request"]
    pub fn start(&mut self, mut rq: Request<'q>) -> RqId {
        self.note(&mut rq);
        rq.issue(self.now.after(self.timeout_ns), false)
    }

    /// Like [`start`](Self::start), for a device that reads and writes the request's data by itself. While the loan
    /// exists, the memory stays where it is, and no other code uses it, whatever a driver in front of this one does. A
    /// thread of the driver's own may read and write the data by [`Loan::segments`].
    pub fn lend(&mut self, mut rq: Request<'q>) -> Loan {
        self.note(&mut rq);
        Loan(rq.lend(self.now.after(self.timeout_ns)))
    }

    /// Notes that the request is issued now.
    #[inline]
    fn note(&mut self, rq: &mut Request<'q>) {
        self.check(rq);
        self.started.note(rq.index().pool(), self.member);
        rq.body_mut().issued = self.now;
        let tag = rq.body().tag.expect("what is issued has a tag");
        self.table.set(tag, rq.id(), rq.body().op.is_read());
    }

    /// The device cannot take the request at present. The request comes first when the driver is asked again. The batch
    /// ends.
    pub fn refuse(&mut self, rq: Request<'q>) {
        self.check(&rq);
        self.pending.push_front(rq, Place::IssueList);
        self.refused = true;
    }

    /// The device gives the request back for another try. The request loses its tag and waits in front of the
    /// scheduler.
    pub fn requeue(&mut self, rq: Request<'q>) {
        self.check(&rq);
        self.requeued.push_back(rq, Place::Held);
    }
}

/// A request with data that a device reads and writes by itself. Only the holder of this value completes the request,
/// by [`Done::give_back`]. If the value is dropped, the request is never over.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it is the only way to complete the request"]
pub struct Loan(Lent);

impl Loan {
    /// The request's id.
    #[must_use]
    pub const fn id(&self) -> RqId {
        self.0.id()
    }

    /// The request's data in the order of the sectors, as of [`Request::segments`].
    pub fn segments(&mut self) -> impl Iterator<Item = Segment<'_>> {
        self.0.segments()
    }
}

/// The id names no request that the driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleRequest(pub RqId);

impl fmt::Display for StaleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {:#x} is not with the driver", self.0.0)
    }
}

impl std::error::Error for StaleRequest {}

/// Where a driver puts what has finished.
#[derive(Debug)]
pub struct Done<'q> {
    pub(crate) slots: &'q Slots,
    pub(crate) finished: &'q mut RqList,
    /// The device's next event is earlier than the one that sleepers know of.
    pub(crate) is_early: bool,
}

impl Done<'_> {
    /// A request that was started has finished.
    ///
    /// # Errors
    /// The driver has no such request: it was completed before, given up to a timeout, or lent.
    pub fn complete(&mut self, id: RqId, status: Status) -> Result<(), StaleRequest> {
        if let Some(rq) = self.slots.complete(id, status, false).map_err(|()| StaleRequest(id))? {
            self.finished.push_back(rq, Place::Held);
        }
        Ok(())
    }

    /// A request that was lent has finished, and the device no longer uses its data.
    ///
    /// # Panics
    /// The loan is of another queue.
    pub fn give_back(&mut self, loan: Loan, status: Status) {
        assert!(loan.0.is_of(self.slots), "a driver hands back requests to the queue they came from");
        let rq = self
            .slots
            .complete(loan.id(), status, true)
            .expect("there is one loan of a request, and nobody else ends it");
        if let Some(rq) = rq {
            self.finished.push_back(rq, Place::Held);
        }
    }

    /// [`Driver::next_event`] of this hardware queue is earlier now, although no request has been started. Sleepers are
    /// woken, so that they plan for it. The thread that polls may have no other reason to come again.
    pub fn plan_anew(&mut self) {
        self.is_early = true;
    }

    /// Requests completed so far in this call.
    #[must_use]
    pub fn len(&self) -> usize {
        self.finished.len()
    }

    /// True if no request was completed so far in this call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty()
    }
}
