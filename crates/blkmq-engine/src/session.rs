//! Where requests become operations of the queue, and where operations that are over end them. A front-end's thread
//! calls in, with the requests of one connection.

mod ending;
mod external;
mod failures;
mod finished;
mod payload;
mod plan;
mod range_locks;
mod rmw;
mod task;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Buffers, Flags, Op, QueueError, RequestQueue, Status, Submitter, Time};

use self::failures::{Failures, note_failure};
pub use self::payload::Piece;
use self::plan::Plan;
use self::range_locks::RangeLocks;
use self::rmw::{Context, ReadModifyWrite, changes, changing};
pub use self::task::TaskId;
use self::task::Tasks;
use crate::ask::{Ask, Request};
use crate::clients::{Entry, ThreadCounters};
use crate::engine::{Bounds, Engine};
use crate::failure::{Cause, Failure};
use crate::memory::account::Account;
use crate::memory::pool::{Pool, footprint, footprints};

/// No device is larger than this many bytes, so that sums of bytes do not overflow.
const MAX_END: u64 = 1 << 62;

/// What a connection is working on between its front-end and the queue.
///
/// A request that is [taken](Self::take) becomes a *task*, whose number the front-end gets. When the task is over,
/// [`next_finished`](Self::next_finished) returns that number once. The task keeps its place, its memory, and what was
/// read until the front-end has answered the client and [forgets](Self::forget) it.
///
/// The data of a request lies in one of two places:
///
/// - In memory of the engine, which counts against what the connection may have. The data of a write then comes piece
///   by piece: [`next_piece`](Self::next_piece), [`take_piece`](Self::take_piece), and at the end
///   [`end_payload`](Self::end_payload). What was read is in the task's [`pieces`](Self::pieces).
/// - In buffers that the front-end brings ([`take_external`](Self::take_external)), as memory of a virtual machine.
///
/// A thread of a front-end repeats these steps: it takes requests, [submits](Self::submit) them together,
/// [drives](Self::drive) the queue, and answers what is finished. If a step found nothing to do, it
/// [sleeps](crate::sleep).
///
/// Nothing is allocated for a request once there were as many requests as large before, except for changes of parts of
/// blocks and for failures.
#[derive(Debug)]
pub struct Session<F> {
    queue: RequestQueue,
    /// No request ends behind this byte.
    end: u64,
    /// Whether the client may change nothing.
    is_read_only: bool,
    plan: Plan,
    /// Whether the device can make zeroes that are not sent to it.
    can_zero: bool,
    most_bytes: usize,
    /// Bytes that all tasks together are charged for.
    bytes: usize,
    tasks: Tasks,
    /// Tasks whose data is still to come.
    nr_receiving: u16,
    /// What the front-end keeps with each task.
    own: Vec<F>,
    pool: Pool,
    rmw: ReadModifyWrite,
    /// Operations that the submitter has not taken yet.
    waiting: VecDeque<Bio>,
    /// Tasks that are over, and that the front-end has not heard of yet.
    finished: VecDeque<TaskId>,
    /// The client is gone. Operations that only this client would have used are not begun.
    is_abandoned: bool,
    /// The time when the clock was last read.
    now: Time,
    /// The thread may have slept since then, so the next request reads the clock.
    is_time_stale: bool,
    /// What this session's thread counts.
    counters: Arc<ThreadCounters>,
    failures: Failures,
}

impl<F: Copy + Default> Session<F> {
    /// Creates a session for a client that has [joined](crate::Export::join) the engine's export of this index. From
    /// now on the submitter notifies the bell of `entry`. A client that may only read gets [`Cause::NotPermitted`] for
    /// every change, whatever its front-end has checked.
    ///
    /// Drop the submitter before the session: a session that is dropped releases the range locks of its blocks, and
    /// operations outstanding may still change these.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, export: usize, entry: &Entry, submitter: &mut Submitter) -> Self {
        submitter.set_notify(Some(entry.bell.clone()));
        Self::of_thread(engine, export, (entry, 0), engine.bounds, submitter.nr_slots())
    }

    /// Joins the engine's export of this index for one thread of a block device or a machine that the operator has put
    /// in front of it ([`Clients::enter`](crate::Clients::enter)), and creates the thread's session, with bounds of its
    /// own. The thread has this index among the bells of `entry`, and its submitter notifies that bell. No list has to
    /// allow it.
    ///
    /// # Errors
    /// The queue does not take so many submitters.
    ///
    /// # Panics
    /// If `entry` has no such thread.
    pub fn of_own(
        engine: &Arc<Engine>,
        export: usize,
        (entry, thread): (&Arc<Entry>, usize),
        bounds: Bounds,
    ) -> Result<(Submitter, Self), QueueError> {
        let mut submitter = engine.exports[export].join_own(entry)?;
        submitter.set_notify(Some(entry.counters(thread).bell.clone()));
        let session = Self::of_thread(engine, export, (entry, thread), bounds, submitter.nr_slots());
        Ok((submitter, session))
    }

    /// Creates a session of this thread, with a submitter of this many slots.
    fn of_thread(
        engine: &Arc<Engine>,
        export: usize,
        (entry, thread): (&Entry, usize),
        bounds: Bounds,
        nr_slots: usize,
    ) -> Self {
        let (chosen, counters) = (&engine.exports[export], Arc::clone(entry.counters(thread)));
        let writes = entry.is_own || chosen.is_open(entry) == Some(true);
        let (queue, is_read_only) = (chosen.queue.clone(), chosen.terms(writes).is_read_only);
        let limits = queue.limits();
        let account = Account::new(Arc::clone(&engine.budget), Arc::clone(&counters));
        let pool = Pool::new(queue.driver().keeps_data(), account);
        let rmw =
            ReadModifyWrite::new(limits.logical_block_size, RangeLocks::of(&queue).join(Arc::clone(&counters.bell)));
        let mut plan = Plan::new(&limits, nr_slots);
        // With the unaligned ends of its range, which take at most 128 KiB, a step fits into the connection's own part.
        // So it never waits for memory forever.
        plan.idle = plan.idle.min(pool.own() as u64 / 2);
        Self {
            // The queue takes a request of the whole last sector, and drops what the device has no bytes for.
            end: if limits.missing_bytes > 0 { limits.size_bytes() } else { MAX_END },
            is_read_only,
            plan,
            can_zero: limits.max_write_zeroes_sectors > 0,
            most_bytes: bounds.bytes,
            bytes: 0,
            tasks: Tasks::new(bounds.requests),
            nr_receiving: 0,
            own: Vec::new(),
            pool,
            queue,
            rmw,
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            is_abandoned: false,
            now: Time(0),
            is_time_stale: true,
            failures: Failures::new(Arc::clone(engine), entry.number, export),
            counters,
        }
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &RequestQueue {
        &self.queue
    }

    /// Sets the time from which requests taken now are measured, for a front-end that has just read the clock. Without
    /// it the session reads the clock with the first request after a [`drive`](Self::drive) that found nothing to do.
    pub fn set_now(&mut self, now: Time) {
        (self.now, self.is_time_stale) = (now, false);
    }

    /// Returns the time of the present batch of requests.
    fn now(&mut self) -> Time {
        if self.is_time_stale {
            self.set_now(self.queue.clock().now());
        }
        self.now
    }

    /// Returns true if there is no task.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_idle()
    }

    /// Returns true if the bounds allow one more request. There may be no memory for it all the same.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.tasks.has_room()
    }

    /// Returns true if operations wait because the submitter takes no more. They are at the front of what is submitted
    /// next, so a front-end gains nothing by requests that it takes meanwhile.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What the task was asked for. A task that was refused from the start asks to tell.
    #[must_use]
    pub fn ask(&self, id: TaskId) -> Ask {
        self.tasks.get(id).ask
    }

    /// Returns the first byte of the task's request, and its length.
    #[must_use]
    pub fn range(&self, id: TaskId) -> (u64, u64) {
        let task = self.tasks.get(id);
        (task.offset, task.length)
    }

    /// What the front-end keeps with the task.
    #[must_use]
    pub fn own(&self, id: TaskId) -> &F {
        &self.own[usize::from(id)]
    }

    /// Returns the data of a read that is over, or of an answer, in order; in memory of the engine.
    pub fn pieces(&self, id: TaskId) -> impl Iterator<Item = &[u8]> {
        self.tasks.get(id).wanted()
    }

    /// Returns the number of bytes of buffers that a request is charged for, and how many of them it needs before it
    /// begins. The rest is for the data of a write, which is yet to come.
    fn charge(&self, request: &Request<F>) -> [usize; 2] {
        let bytes = || request.offset..request.offset + request.length;
        let length = || {
            let blocks = self.rmw.around(bytes());
            blocks.end - blocks.start
        };
        match request.ask {
            Ask::Read => [footprints(length(), self.plan.data); 2],
            Ask::Write { .. } => {
                let rmw = self.rmw.charge(bytes());
                [footprints(length(), self.plan.data) + rmw, rmw]
            }
            Ask::Tell { bytes } if bytes > 0 => [footprint(bytes as usize); 2],
            Ask::Cache => [footprint(length().min(self.plan.idle) as usize); 2],
            Ask::WriteZeroes { fast, .. } => {
                // If the device cannot write zeroes after all, it is sent them.
                let sent = if fast { 0 } else { footprint(length().min(self.plan.idle) as usize) };
                [sent + self.rmw.charge(bytes()); 2]
            }
            _ => [0; 2],
        }
    }

    /// Takes a request whose data is to lie in memory of the engine, if the bounds allow one more. `None` if they do
    /// not, or if there is no memory now; then the bell rings when another try may succeed, or a task of this session
    /// has to be forgotten first. Try the same request again before any other one: the session may stand in line for
    /// it. A session that gives the request up leaves the line by [`wait_no_more`](Self::wait_no_more).
    ///
    /// A request that may not be made, ends beyond the device, or needs more memory than there can be
    /// ([`Engine::longest`]) is taken too, and has failed.
    ///
    /// A write of any length waits for its data. Everything else begins. While data of one write is still to come, no
    /// other write is taken: several that have come halfway could have all the memory that each needs to go on.
    ///
    /// The buffers of a request, rounded up and with the blocks at its ends, may exceed the bounds although its length
    /// does not. Such a request is taken when the connection works on nothing else.
    pub fn take(&mut self, request: &Request<F>) -> Option<TaskId> {
        if let Some(failure) = self.fault(request) {
            return self.refuse(request.own, failure, matches!(request.ask, Ask::Write { .. }) && request.length > 0);
        }
        if self.is_abandoned && request.ask.only_tells() {
            return self.refuse(request.own, Failure::gone(), false);
        }
        let is_receiving = matches!(request.ask, Ask::Write { .. }) && request.length > 0;
        if is_receiving && self.nr_receiving > 0 {
            return None;
        }
        let [charge, promised] = self.charge(request);
        if promised > self.pool.account.most() {
            let failure = Failure::new(Cause::Invalid, "the request needs more memory than one connection may have");
            return self.refuse(request.own, failure, is_receiving);
        }
        if !self.tasks.has_room() || (self.bytes > 0 && charge > self.most_bytes.saturating_sub(self.bytes)) {
            return None;
        }
        if !self.pool.promise(promised, true) {
            return None;
        }
        let id = self.enter(request, [charge, promised])?;
        self.begin(id, is_receiving);
        Some(id)
    }

    /// Returns the failure of a request that the client may not make, or that ends beyond the device.
    fn fault(&self, request: &Request<F>) -> Option<Failure> {
        if self.is_read_only && request.ask.changes() {
            return Some(Failure::new(Cause::NotPermitted, "the export is read-only"));
        }
        let fits = request.offset.checked_add(request.length).is_some_and(|end| end <= self.end);
        (!fits).then(|| Failure::new(Cause::Invalid, "the device ends before the request does"))
    }

    /// Makes a task of a request, which has not failed and has no external buffers.
    #[inline]
    fn enter(&mut self, request: &Request<F>, charges: [usize; 2]) -> Option<TaskId> {
        let &Request { ask, offset, length, .. } = request;
        let bytes = offset..offset.saturating_add(length);
        let (mut skip, mut surplus) = (0, 0);
        let range = match ask {
            // One operation, which has no range.
            Ask::Flush => 0..1,
            Ask::Tell { .. } => 0..0,
            Ask::Read | Ask::Cache => {
                let blocks = self.rmw.around(bytes.clone());
                (skip, surplus) = ((bytes.start - blocks.start) as usize, (blocks.end - bytes.end) as usize);
                blocks
            }
            // A block can only be discarded as a whole.
            Ask::Discard { .. } => self.rmw.within(bytes),
            Ask::Write { .. } | Ask::WriteZeroes { .. } => bytes,
        };
        let id = self.enter_whole(request, range, charges)?;
        let task = self.tasks.get_mut(id);
        (task.skip, task.surplus) = (skip, surplus);
        Some(id)
    }

    /// As [`enter`](Self::enter), for operations in this range, which is what the client asked for.
    #[inline]
    fn enter_whole(
        &mut self,
        request: &Request<F>,
        Range { start: next, end }: Range<u64>,
        [charge, promised]: [usize; 2],
    ) -> Option<TaskId> {
        let id = self.tasks.take()?;
        let now = self.now();
        self.bytes += charge;
        self.counters.count_request();
        match self.own.get_mut(usize::from(id)) {
            Some(own) => *own = request.own,
            None => self.own.push(request.own),
        }
        let &Request { ask, offset, length, priority, hints, .. } = request;
        let task = self.tasks.get_mut(id);
        debug_assert!(task.failure.is_none() && task.data.is_empty(), "a task that is forgotten leaves nothing");
        (task.ask, task.offset, task.length) = (ask, offset, length);
        (task.priority, task.hints) = (priority, hints);
        (task.next, task.end, task.skip, task.surplus) = (next, end, 0, 0);
        (task.outstanding, task.is_receiving, task.is_external) = (0, false, false);
        (task.charge, task.promised, task.taken) = (charge, promised, Some(now));
        task.by_writing = !self.can_zero && !matches!(ask, Ask::WriteZeroes { fast: true, .. });
        Some(id)
    }

    fn change_part(&mut self, id: TaskId, bytes: Range<u64>, buffer: Buffer, fua: bool) {
        let Self { tasks, pool, rmw, waiting, .. } = self;
        rmw.change_part(&mut Context { tasks, pool, waiting }, id, bytes, buffer, fua);
    }

    /// Passes an operation of a task on when its turn has come.
    fn push(&mut self, id: TaskId, mut bio: Bio) {
        let Self { tasks, pool, rmw, waiting, .. } = self;
        let task = tasks.get(id);
        (bio.user_data, bio.priority) = (rmw.user_data(id), task.priority);
        bio.flags.meta |= task.hints.meta;
        bio.flags.sync |= task.hints.sync;
        if rmw.is_wary() && changes(bio.op) {
            rmw.change_whole(&mut Context { tasks, pool, waiting }, bio);
        } else {
            waiting.push_back(bio);
        }
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    pub fn submit(&mut self, submitter: &mut Submitter) -> bool {
        let mut has_taken = false;
        loop {
            let Self { tasks, pool, rmw, waiting, .. } = self;
            rmw.look(&mut Context { tasks, pool, waiting });
            if rmw.is_wary() && rmw.max_sleep() == Some(Duration::ZERO) {
                has_taken |= self.fail_stuck(Instant::now());
            }
            if self.waiting.is_empty() {
                break;
            }
            match submitter.submit_batch(&mut self.waiting) {
                Ok(taken) => {
                    has_taken |= taken > 0;
                    break;
                }
                Err(rejected) => {
                    has_taken |= rejected.taken > 0;
                    self.settle(rejected.bio, rejected.status);
                }
            }
        }
        has_taken
    }

    /// Drives the queue, and settles the operations that are over. Returns whether there were any, or the submitter has
    /// taken any.
    pub fn drive(&mut self, submitter: &mut Submitter) -> bool {
        // A thread with nothing to do sleeps next.
        self.is_time_stale = true;
        if submitter.nr_outstanding() == 0 {
            return false;
        }
        submitter.poll();
        self.now = submitter.queue().clock().now();
        let has_any = submitter.reap_all(|done| self.settle(done.bio, done.status)) > 0;
        let is_busy = has_any | self.submit(submitter);
        self.is_time_stale = !is_busy;
        is_busy
    }

    /// Called when an operation that this session has submitted is over.
    pub fn settle(&mut self, mut bio: Bio, mut status: Status) {
        let id = bio.user_data as TaskId;
        if self.rmw.is_wary() {
            let Self { tasks, pool, rmw, waiting, .. } = self;
            if !rmw.settle(&mut Context { tasks, pool, waiting }, &mut bio, &mut status) {
                return;
            }
        }
        let task = self.tasks.get_mut(id);
        task.outstanding -= 1;
        let is_read = task.ask == Ask::Read;
        if !status.is_ok() {
            note_failure(task, &bio, status);
            // The client has caused any other error itself, so only the client is told of it.
            if matches!(Cause::of_status(status), Some(Cause::Io | Cause::NoSpace)) {
                self.failures.note(&bio, status);
            }
        }
        if task.is_external {
            // If the task has more operations, it has the other buffers too, and these are needed no more.
            if matches!(task.external, Buffers::None) {
                task.external = std::mem::take(&mut bio.buffers);
            }
        } else if let Buffers::One(buffer) = std::mem::take(&mut bio.buffers) {
            if matches!(task.ask, Ask::Write { .. }) {
                // The next piece of the write may have the memory.
                let size = footprint(buffer.len()).min(task.promised);
                task.promised -= size;
                self.pool.account.give(size);
                // The client may never send the rest of the write, and others may wait for the memory meanwhile.
                if task.is_receiving {
                    self.pool.shrink();
                }
            }
            if is_read { task.data.push(buffer) } else { self.pool.give(buffer) }
        }
        // Most tasks have one operation.
        let task = self.tasks.get(id);
        if task.outstanding == 0 && task.next >= task.end && !task.is_receiving {
            self.finish(id);
        } else {
            self.go_on(id);
        }
    }

    /// Takes the next step of a task: an operation, or the reply if nothing more is to be done.
    fn go_on(&mut self, id: TaskId) {
        let task = self.tasks.get_mut(id);
        if task.is_receiving {
            return;
        }
        if self.is_abandoned && task.next < task.end && task.ask.only_tells() {
            task.failure.get_or_insert_with(|| Box::new(Failure::gone()));
        }
        let may_start = task.failure.is_none() && task.next < task.end;
        match if may_start { self.next_operation(id) } else { None } {
            Some(bio) => self.push(id, bio),
            None if self.tasks.get(id).outstanding == 0 => self.finish(id),
            None => (),
        }
    }

    /// Returns the next operation of a task that does one operation at a time. `None` if there is none, or if the
    /// operation is already in progress as the change of a part of a block.
    fn next_operation(&mut self, id: TaskId) -> Option<Bio> {
        let Self { tasks, pool, plan, rmw, .. } = self;
        let task = tasks.get_mut(id);
        let mut end = task.end;
        if let (Ask::WriteZeroes { fua, .. }, true) = (task.ask, rmw.skip(task.next | end) > 0) {
            let whole = rmw.within(task.next..end);
            if whole.start > task.next || whole.is_empty() {
                let bytes = task.next..end.min(rmw.up(task.next + 1));
                task.next = bytes.end;
                task.outstanding += 1;
                let mut buffer = pool.take_block(rmw.up(1) as usize);
                buffer.fill(0);
                self.change_part(id, bytes, buffer, fua);
                return None;
            }
            end = whole.end;
        }
        let step = match task.ask {
            Ask::Read => plan.data,
            Ask::Write { .. } if task.is_external => plan.data,
            Ask::Cache => plan.idle,
            Ask::WriteZeroes { .. } if task.by_writing => plan.idle,
            Ask::WriteZeroes { .. } => plan.zeroes,
            Ask::Discard { .. } => plan.discard,
            Ask::Flush => 1,
            Ask::Write { .. } | Ask::Tell { .. } => return None,
        };
        let (sector, len) = (task.next / SECTOR_SIZE as u64, (end - task.next).min(step));
        let nr_sectors = len / SECTOR_SIZE as u64;
        task.next += len;
        task.outstanding += 1;
        if task.is_external {
            return external::next_operation(task, sector * SECTOR_SIZE as u64, len);
        }
        Some(match task.ask {
            Ask::Flush => Bio::flush(),
            Ask::Discard { fua } => Bio::discard(sector, nr_sectors).with_flags(changing(fua)),
            Ask::WriteZeroes { fua, no_hole, .. } if !task.by_writing => {
                let flags = Flags { nounmap: no_hole, ..changing(fua) };
                Bio::write_zeroes(sector, nr_sectors).with_flags(flags)
            }
            ask => {
                let buffer = if ask == Ask::Read { pool.take_for_read(len as usize) } else { pool.take(len as usize) };
                let Some(mut buffer) = buffer else {
                    task.failure = Some(Box::new(Failure::no_memory()));
                    task.outstanding -= 1;
                    return None;
                };
                let (op, flags) = match ask {
                    Ask::WriteZeroes { fua, .. } => {
                        buffer.fill(0);
                        (Op::Write, changing(fua))
                    }
                    Ask::Cache => (Op::Read, Flags { readahead: true, ..Flags::NONE }),
                    _ => (Op::Read, Flags::NONE),
                };
                Bio::new(op, sector, nr_sectors, Buffers::One(buffer)).with_flags(flags)
            }
        })
    }
}
