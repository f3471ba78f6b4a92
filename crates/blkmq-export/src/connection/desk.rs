//! Where requests become operations of the queue, and where finished operations become replies.

mod payload;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use blkmq::limits::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Flags, Op, RejectReason, RequestQueue, Status, Submitter, Time};

pub(super) use self::payload::Piece;
use super::edges::{Edges, Hands, changes, changing};
use super::failures::Failures;
use super::offer::terms;
use super::outbox::Outbox;
use super::plan::Plan;
use super::pool::{Pool, footprint, footprints};
use super::shared::Bounds;
use super::task::{Task, TaskId, Tasks};
use super::turns::Turns;
use crate::clients::Entry;
use crate::export::Export;
use crate::nbd::Errno;
use crate::nbd::command::{Command, Request, Terms};
use crate::nbd::extents::{EXTENT_SIZE, MAX_EXTENTS, describe};
use crate::nbd::negotiation::Agreement;
use crate::nbd::reply::{Head, Refusal};

/// What a connection is working on between its socket and the queue.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) terms: Terms,
    /// Used to ask what the device has allocated.
    queue: Arc<RequestQueue>,
    plan: Plan,
    most_bytes: usize,
    /// Bytes that all tasks together are charged for.
    bytes: usize,
    tasks: Tasks,
    pool: Pool,
    edges: Edges,
    /// Operations that the submitter has not taken yet.
    waiting: VecDeque<Bio>,
    pub(super) outbox: Outbox,
    /// The client is gone. Operations that only this client would have used are not begun.
    is_abandoned: bool,
    /// The time, as of the last look at the clock.
    pub(super) now: Time,
    entry: Arc<Entry>,
    failures: Failures,
}

impl Desk {
    /// A desk for a client that has chosen an export, with a submitter of this many slots.
    pub(super) fn new(
        export: &Export,
        agreement: &Agreement,
        nr_slots: usize,
        pool: Pool,
        bounds: Bounds,
        entry: Arc<Entry>,
        failures: Failures,
    ) -> Self {
        let (queue, terms) = (Arc::clone(&export.queue), terms(export, agreement));
        let edges = Edges::new(terms.block, Turns::of(&queue).join(Arc::clone(&entry.bell)));
        let mut plan = Plan::new(&queue.limits(), nr_slots);
        // With the edges of its range, which take at most 128 KiB, a step fits into the connection's own part. So it
        // never waits for memory for ever.
        plan.idle = plan.idle.min(pool.own() as u64 / 2);
        Self {
            terms,
            plan,
            most_bytes: bounds.bytes,
            bytes: 0,
            tasks: Tasks::new(bounds.requests),
            pool,
            queue,
            edges,
            waiting: VecDeque::with_capacity(bounds.requests.into()),
            outbox: Outbox::default(),
            is_abandoned: false,
            now: Time(0),
            entry,
            failures,
        }
    }

    /// Whether every request is answered.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.is_idle()
    }

    /// The tasks, which hold what the replies in the outbox send.
    pub(super) fn outgoing(&mut self) -> (&mut Outbox, &Tasks) {
        (&mut self.outbox, &self.tasks)
    }

    /// Bytes of buffers that a request is charged for, and how many of them it needs before it begins. The rest is for
    /// the data of a write, which is yet to come.
    fn charge(&self, request: &Request, command: Command) -> [usize; 2] {
        let bytes = || request.offset..request.offset + u64::from(request.length);
        let length = || {
            let blocks = self.edges.around(bytes());
            blocks.end - blocks.start
        };
        match command {
            Command::Read => [footprints(length(), self.plan.data); 2],
            Command::Write { .. } => {
                let edges = self.edges.charge(bytes());
                [footprints(length(), self.plan.data) + edges, edges]
            }
            Command::BlockStatus { .. } => [footprint(MAX_EXTENTS * EXTENT_SIZE); 2],
            Command::Cache => [footprint(length().min(self.plan.idle) as usize); 2],
            // If the device cannot write zeroes after all, it is sent them.
            Command::WriteZeroes { fast: false, .. } => {
                [footprint(length().min(self.plan.idle) as usize) + self.edges.charge(bytes()); 2]
            }
            _ => [0; 2],
        }
    }

    /// Called when the client is gone, and no client would get an answer. Operations that are with the queue are waited
    /// for. Of the others, only operations that change the export are still begun.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
        for _ in 0..self.waiting.len() {
            let Some(bio) = self.waiting.pop_front() else { break };
            if self.tasks.get(bio.user_data as TaskId).command.only_tells() {
                self.settle(bio, Status::Gone);
            } else {
                self.waiting.push_back(bio);
            }
        }
    }

    /// Takes a request, if the bounds allow one more. `checked` is the result of its check. The buffers of a request,
    /// rounded up and with the blocks at its ends, may exceed the bounds although its length does not. Such a request
    /// is taken when the connection works on nothing else.
    pub(super) fn take(&mut self, request: &Request, mut checked: Result<Command, Refusal>) -> Option<TaskId> {
        if self.is_abandoned && matches!(checked, Ok(command) if command.only_tells()) {
            checked = Err(gone());
        }
        let [charge, promised] = checked.as_ref().map_or([0; 2], |command| self.charge(request, *command));
        if !self.tasks.has_room() || (self.bytes > 0 && charge > self.most_bytes.saturating_sub(self.bytes)) {
            return None;
        }
        if !self.pool.promise(promised, true) {
            return None;
        }
        let id = self.tasks.take()?;
        self.bytes += charge;
        self.entry.count_request();
        let (command, failure) = match checked {
            Ok(command) => (command, None),
            Err(refusal) => (Command::Flush, Some(refusal)),
        };
        let task = self.tasks.get_mut(id);
        let data = std::mem::take(&mut task.data);
        let taken = failure.is_none().then_some(self.now);
        let bytes = request.offset..request.offset.saturating_add(request.length.into());
        let (mut skip, mut surplus) = (0, 0);
        let Range { start: next, end } = match command {
            // One operation, which has no range.
            Command::Flush => 0..1,
            Command::BlockStatus { .. } => 0..0,
            Command::Read | Command::Cache => {
                let blocks = self.edges.around(bytes.clone());
                (skip, surplus) = ((bytes.start - blocks.start) as usize, (blocks.end - bytes.end) as usize);
                blocks
            }
            // A block can only be discarded as a whole.
            Command::Trim { .. } => self.edges.within(bytes),
            Command::Write { .. } | Command::WriteZeroes { .. } | Command::Disconnect => bytes,
        };
        let is_receiving = request.payload() > 0;
        let &Request { cookie, offset, length, .. } = request;
        let outstanding = 0;
        *task = Task {
            cookie,
            command,
            offset,
            length,
            next,
            end,
            outstanding,
            is_receiving,
            taken,
            failure,
            charge,
            promised,
            data,
            skip,
            surplus,
        };
        if !is_receiving {
            self.go_on(id);
        }
        Some(id)
    }

    fn change_part(&mut self, id: TaskId, bytes: Range<u64>, buffer: Buffer, fua: bool) {
        let Self { tasks, pool, edges, waiting, .. } = self;
        edges.change_part(&mut Hands { tasks, pool, waiting }, id, bytes, buffer, fua);
    }

    /// Passes an operation of a task on when its turn has come.
    fn push(&mut self, id: TaskId, bio: Bio) {
        let Self { tasks, pool, edges, waiting, .. } = self;
        let bio = bio.with_user_data(edges.mark(id));
        if edges.is_wary() && changes(bio.op) {
            edges.change_whole(&mut Hands { tasks, pool, waiting }, bio);
        } else {
            waiting.push_back(bio);
        }
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    pub(super) fn submit(&mut self, submitter: &mut Submitter) -> bool {
        let mut has_taken = false;
        loop {
            let Self { tasks, pool, edges, waiting, .. } = self;
            edges.look(&mut Hands { tasks, pool, waiting });
            if self.waiting.is_empty() {
                break;
            }
            let (taken, rejected) = submitter.submit_batch(&mut self.waiting);
            has_taken |= taken > 0;
            match (rejected, self.waiting.pop_front()) {
                (Some(RejectReason::Bad(status)), Some(bio)) => self.settle(bio, status),
                (_, Some(bio)) => {
                    self.waiting.push_front(bio);
                    break;
                }
                (_, None) => break,
            }
        }
        has_taken
    }

    /// Called when an operation is over.
    pub(super) fn settle(&mut self, mut bio: Bio, mut status: Status) {
        let id = bio.user_data as TaskId;
        if self.edges.is_wary() {
            let Self { tasks, pool, edges, waiting, .. } = self;
            if !edges.settle(&mut Hands { tasks, pool, waiting }, &mut bio, &mut status) {
                return;
            }
        }
        let task = self.tasks.get_mut(id);
        task.outstanding -= 1;
        let is_read = task.command == Command::Read;
        if !status.is_ok() {
            note_failure(task, &bio, status);
            // The client has caused any other error itself, so only the client is told of it.
            if matches!(Errno::of_status(status, false), Some(Errno::Io | Errno::NoSpace)) {
                self.failures.note(&bio, status);
            }
        }
        if let blkmq::Buffers::One(buffer) = std::mem::take(&mut bio.buffers) {
            if matches!(task.command, Command::Write { .. }) {
                // The next piece of the write may have the memory.
                let size = footprint(buffer.len()).min(task.promised);
                task.promised -= size;
                self.pool.forgo(size);
                // The client may never send the rest of the write, and others may wait for the memory meanwhile.
                if task.is_receiving {
                    self.pool.shrink();
                }
            }
            if is_read { task.data.push(buffer) } else { self.pool.give(buffer) }
        }
        self.go_on(id);
    }

    /// Takes the next step of a task: an operation, or the reply if nothing more is to be done.
    fn go_on(&mut self, id: TaskId) {
        let task = self.tasks.get_mut(id);
        if task.is_receiving {
            return;
        }
        if self.is_abandoned && task.next < task.end && task.command.only_tells() {
            task.failure.get_or_insert_with(gone);
        }
        let may_start = task.failure.is_none() && task.next < task.end;
        match if may_start { self.next_operation(id) } else { None } {
            Some(bio) => self.push(id, bio),
            None if self.tasks.get(id).outstanding == 0 => self.finish(id),
            None => (),
        }
    }

    /// The next operation of a task that does one operation at a time. `None` if there is none, or if the operation is
    /// already in progress as the change of a part of a block.
    fn next_operation(&mut self, id: TaskId) -> Option<Bio> {
        let Self { tasks, pool, plan, edges, .. } = self;
        let task = tasks.get_mut(id);
        let mut end = task.end;
        if let (Command::WriteZeroes { fua, .. }, true) = (task.command, edges.skip(task.next | end) > 0) {
            let whole = edges.within(task.next..end);
            if whole.start > task.next || whole.is_empty() {
                let bytes = task.next..end.min(edges.up(task.next + 1));
                task.next = bytes.end;
                task.outstanding += 1;
                let mut buffer = pool.take_block(edges.up(1) as usize);
                buffer.fill(0);
                self.change_part(id, bytes, buffer, fua);
                return None;
            }
            end = whole.end;
        }
        let step = match task.command {
            Command::Read => plan.data,
            Command::Cache | Command::WriteZeroes { by_writing: true, .. } => plan.idle,
            Command::WriteZeroes { .. } => plan.zeroes,
            Command::Trim { .. } => plan.discard,
            Command::Flush => 1,
            Command::Write { .. } | Command::Disconnect | Command::BlockStatus { .. } => return None,
        };
        let (sector, len) = (task.next / SECTOR_SIZE as u64, (end - task.next).min(step));
        let nr_sectors = len / SECTOR_SIZE as u64;
        task.next += len;
        task.outstanding += 1;
        Some(match task.command {
            Command::Flush => Bio::flush(),
            Command::Trim { fua } => Bio::discard(sector, nr_sectors).with_flags(changing(fua)),
            Command::WriteZeroes { fua, no_hole, by_writing: false, .. } => {
                let flags = Flags { nounmap: no_hole, ..changing(fua) };
                Bio::write_zeroes(sector, nr_sectors).with_flags(flags)
            }
            command => {
                let buffer =
                    if command == Command::Read { pool.take_for_read(len as usize) } else { pool.take(len as usize) };
                let Some(mut buffer) = buffer else {
                    task.failure = Some(no_memory());
                    task.outstanding -= 1;
                    return None;
                };
                match command {
                    Command::WriteZeroes { fua, .. } => {
                        buffer.fill(0);
                        Bio::write(sector, buffer).with_flags(changing(fua))
                    }
                    Command::Cache => {
                        let flags = Flags { readahead: true, ..Flags::NONE };
                        Bio::read(sector, buffer).with_flags(flags)
                    }
                    _ => Bio::read(sector, buffer),
                }
            }
        })
    }

    /// Called when everything is answered, and no more requests come.
    pub(super) fn leave(&mut self) {
        self.edges.leave();
    }

    /// Writes a task's reply.
    fn finish(&mut self, id: TaskId) {
        let Self { tasks, pool, outbox, terms, queue, now, entry, .. } = self;
        let task = tasks.get_mut(id);
        let &mut Task { cookie, command, offset, length, taken, .. } = task;
        if let Some(taken) = taken {
            entry.count_time(command, taken, *now);
        }
        let mut extents = None;
        if let (Command::BlockStatus { one }, None) = (command, &task.failure) {
            extents = pool.take(if one { 1 } else { MAX_EXTENTS } * EXTENT_SIZE);
            task.failure = extents.is_none().then(no_memory);
        }
        if let Some(Refusal { errno, message }) = task.failure.take() {
            entry.count_error(errno);
            task.data.drain(..).for_each(|buffer| pool.give(buffer));
            let (head, message_len) = if terms.has_structured_replies {
                let (head, sent) = Head::error(cookie, errno, &message);
                (head, sent.len())
            } else {
                (Head::simple(cookie, Some(errno)), 0)
            };
            return outbox.push(head, message, message_len, id, tasks);
        }
        if matches!(command, Command::Read | Command::Write { .. }) {
            entry.count_bytes(length);
        }
        let head = match (command, extents) {
            (Command::Read, _) if terms.has_structured_replies => Head::data(cookie, offset, length),
            (_, Some(mut extents)) => {
                let look = |start, bytes| queue.driver().extent(start, bytes);
                let len = describe(offset, length, terms.block, &mut extents, look);
                let fits = extents.set_len(len);
                debug_assert!(fits, "it becomes no longer");
                task.data.push(extents);
                Head::extents(cookie, len as u32)
            }
            _ => Head::simple(cookie, None),
        };
        outbox.push(head, Cow::Borrowed(""), 0, id, tasks);
    }

    /// Forgets the tasks whose replies are sent. Returns whether there were any.
    pub(super) fn forget_sent(&mut self) -> bool {
        let mut has_any = false;
        while let Some(id) = self.outbox.pop_sent() {
            let Self { tasks, pool, bytes, entry, .. } = self;
            let task = tasks.get_mut(id);
            pool.forgo(std::mem::take(&mut task.promised));
            task.data.drain(..).for_each(|buffer| pool.give(buffer));
            *bytes -= std::mem::take(&mut task.charge);
            tasks.give(id);
            entry.count_answer();
            has_any = true;
        }
        if has_any {
            self.pool.shrink();
        }
        has_any
    }
}

/// The refusal of a request for which the system has no memory.
#[cold]
fn no_memory() -> Refusal {
    Refusal::new(Errno::NoMemory, "the server has no memory for this")
}

/// The refusal of a request whose client is gone.
fn gone() -> Refusal {
    Refusal::new(Errno::Shutdown, "the client is gone")
}

/// Called when an operation of the task ended with an error. The task fails, unless there is another way to do it.
fn note_failure(task: &mut Task, bio: &Bio, status: Status) {
    let is_fast = matches!(task.command, Command::WriteZeroes { fast: true, .. });
    if let (Op::WriteZeroes, Status::Unsupported, Command::WriteZeroes { fua, fast: false, no_hole, .. }) =
        (bio.op, status, task.command)
    {
        // The device cannot write zeroes after all, or not in this way. From here on the zeroes are sent as data. Such
        // a task has one operation at a time.
        task.command = Command::WriteZeroes { fua, fast: false, no_hole, by_writing: true };
        task.next = bio.sector * SECTOR_SIZE as u64;
        return;
    }
    if let Some(errno) = Errno::of_status(status, is_fast) {
        task.failure.get_or_insert_with(|| Refusal::new(errno, status.to_string()));
    }
}
