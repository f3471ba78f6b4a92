//! Operations of any number of bytes, at any byte, on a device of whole blocks.
//!
//! As under a page cache, a read reads the blocks that its bytes lie in, and a write of parts of blocks is a
//! read-modify-write of them. To the job it is one operation of its own bytes, from its submission to the completion of
//! its last request.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blkmq::{Bio, Buffer, Buffers, Completion, Flags, IoPriority, Op, RejectReason, Rejected, Status, Submitter, Time};

use super::pattern::Operation;
use super::plan::{Plan, SECTOR};
use super::range_locks::{RangeLocks, Ticket};
use super::recorder::device_ns;
use crate::job::Direction;

/// An operation of the job that is not over.
#[derive(Debug)]
struct Work {
    operation: Operation,
    /// The flags of its last request.
    flags: Flags,
    /// The job's buffer, beside that of the blocks. `None` if the operation is whole blocks: the device has the job's
    /// buffer.
    data: Option<Buffer>,
    lock: Option<Ticket>,
    /// When it was submitted. `None` until one of its requests has completed, unless it had to wait for its lock.
    submitted: Option<Time>,
    device_ns: u64,
    /// The request that is submitted when the lock is granted or there is room.
    next: Option<Bio>,
}

/// A completed operation of the job, or flush.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) op: Op,
    /// The job's own bytes: the first one, and how many.
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) status: Status,
    /// A write that failed because its blocks could not be read.
    pub(super) failed_in_read: bool,
    pub(super) completed: Time,
    pub(super) latency_ns: u64,
    /// The part of the latency that the requests spent in the device.
    pub(super) device_ns: u64,
    /// The job's buffer, with what a read has read.
    pub(super) buffers: Buffers,
}

/// The operations of a job some of which are no whole number of blocks, or that changes blocks of which another such
/// job changes parts.
#[derive(Debug)]
pub(super) struct Partials {
    /// The device's logical block size, in bytes.
    block: u64,
    /// `None` if the job needs no locks.
    locks: Option<Arc<RangeLocks>>,
    read_flags: Flags,
    works: Vec<Option<Work>>,
    /// Indices of `works` that are not in use.
    places: Vec<usize>,
    /// Works whose lock is not granted.
    waiting: Vec<(Ticket, usize)>,
    /// Works for which the queue had no room.
    stalled: VecDeque<usize>,
    /// Works whose request the queue refused, because it can never succeed.
    refused: Vec<(usize, Status)>,
    /// Buffers for blocks that are not in use.
    spare: Vec<Buffer>,
}

impl Partials {
    /// `None` if all operations of the plan go to the device as they are. `spare`: buffers of the plan's
    /// [longest](Plan::longest) operation, as many as are outstanding at once.
    pub(super) fn new(plan: &Plan, locks: &Arc<RangeLocks>, read_flags: Flags, spare: Vec<Buffer>) -> Option<Self> {
        (plan.is_partial || plan.locks_ranges).then(|| Self {
            block: plan.block,
            locks: plan.locks_ranges.then(|| Arc::clone(locks)),
            read_flags,
            works: Vec::new(),
            places: Vec::new(),
            waiting: Vec::new(),
            stalled: VecDeque::new(),
            refused: Vec::new(),
            spare,
        })
    }

    /// Takes an operation. `buffers`: the job's buffer, as long as the operation; none for a trim. The first request
    /// goes into the submitter's plug, unless the operation has to wait for its lock.
    pub(super) fn submit(
        &mut self,
        submitter: &mut Submitter,
        operation: Operation,
        flags: Flags,
        priority: Option<IoPriority>,
        buffers: Buffers,
    ) {
        let blocks = self.around(&operation);
        let is_whole = blocks.end - blocks.start == operation.bytes;
        let place = self.places.pop().unwrap_or_else(|| {
            self.works.push(None);
            self.works.len() - 1
        });
        let (op, flags_of_first, data, buffers) = match (operation.direction, buffers) {
            (Direction::Trim, _) => (Op::Discard, flags, None, Buffers::None),
            (Direction::Write, buffers) if is_whole => (Op::Write, flags, None, buffers),
            (Direction::Read, buffers) if is_whole => (Op::Read, flags, None, buffers),
            (_, Buffers::One(data)) => (Op::Read, self.read_flags, Some(data), Buffers::One(self.buffer(&blocks))),
            (_, _) => unreachable!("a read or write of a job has one buffer"),
        };
        let (sector, nr_sectors) = (blocks.start / SECTOR, (blocks.end - blocks.start) / SECTOR);
        let bio = Bio { op, sector, nr_sectors, flags: flags_of_first, priority, buffers, user_data: place as u64 + 1 };
        let mut work = Work { operation, flags, data, lock: None, submitted: None, device_ns: 0, next: Some(bio) };
        let mut is_granted = true;
        if operation.direction != Direction::Read
            && let Some(locks) = &self.locks
        {
            let ticket;
            (ticket, is_granted) = locks.request(blocks);
            work.lock = Some(ticket);
            if !is_granted {
                work.submitted = Some(submitter.queue().clock().now());
                self.waiting.push((ticket, place));
            }
        }
        self.works[place] = Some(work);
        if is_granted {
            self.resume(submitter, place);
        }
    }

    /// Returns the next completed operation, after submitting the requests that have become possible.
    pub(super) fn reap(&mut self, submitter: &mut Submitter) -> Option<Finished> {
        self.resume_all(submitter);
        if let Some((place, status)) = self.refused.pop() {
            let now = submitter.queue().clock().now();
            let bio = self.works[place].as_mut().and_then(|work| work.next.take());
            let (op, buffers) = bio.map_or((Op::Read, Buffers::None), |bio| (bio.op, bio.buffers));
            return Some(self.finish(place, op, buffers, status, (now, now)));
        }
        loop {
            let done = submitter.reap()?;
            if let Some(finished) = self.advance(submitter, done) {
                return Some(finished);
            }
        }
    }

    /// Whether an operation waits for the lock on its blocks.
    pub(super) fn waits_for_lock(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sleeps until an operation gets the lock on its blocks, for `at_most` at the longest.
    pub(super) fn wait_for_lock(&self, at_most: Duration) {
        if let Some(locks) = &self.locks {
            locks.wait(self.waiting.iter().map(|(ticket, _)| *ticket), at_most);
        }
    }

    /// The blocks that an operation lies in, as a range of bytes.
    fn around(&self, operation: &Operation) -> Range<u64> {
        operation.at - operation.at % self.block..operation.end().next_multiple_of(self.block)
    }

    /// A buffer for these blocks. It is zeroed, so that a device that does not fill it leaves nothing that looks right.
    fn buffer(&mut self, blocks: &Range<u64>) -> Buffer {
        let len = usize::try_from(blocks.end - blocks.start).expect("an operation fits memory");
        let spare = self.spare.pop().and_then(|mut buffer| buffer.set_len(len).then_some(buffer));
        let mut buffer = spare.unwrap_or_else(|| Buffer::zeroed(len));
        buffer.zero();
        buffer
    }

    /// Submits a work's next request.
    fn resume(&mut self, submitter: &mut Submitter, place: usize) {
        let Some(work) = &mut self.works[place] else { return };
        let Some(bio) = work.next.take() else { return };
        if let Err(Rejected { bio, reason }) = submitter.submit(bio) {
            work.next = Some(bio);
            match reason {
                RejectReason::Full => self.stalled.push_back(place),
                RejectReason::Bad(status) => self.refused.push((place, status)),
            }
        }
    }

    /// Resumes the works whose lock is granted, and those for which there may be room.
    fn resume_all(&mut self, submitter: &mut Submitter) {
        if self.waiting.is_empty() && self.stalled.is_empty() {
            return;
        }
        for _ in 0..self.stalled.len() {
            let place = self.stalled.pop_front();
            place.into_iter().for_each(|place| self.resume(submitter, place));
        }
        while let Some(locks) = &self.locks
            && let Some(at) = locks.first_granted(self.waiting.iter().map(|(ticket, _)| *ticket))
        {
            let (_, place) = self.waiting.remove(at);
            self.resume(submitter, place);
        }
        submitter.flush_batch();
    }

    /// Called when a request has completed. Returns the operation after its last request, and submits its write before
    /// that.
    fn advance(&mut self, submitter: &mut Submitter, done: Completion) -> Option<Finished> {
        let device_ns = device_ns(&done);
        let Completion { status, submitted, completed, bio, .. } = done;
        let Some(place) = bio.user_data.checked_sub(1) else {
            // A flush, which is the job's as it is.
            let (op, latency_ns) = (bio.op, completed.since(submitted));
            let (at, bytes, failed_in_read, buffers) = (0, 0, false, Buffers::None);
            let finished =
                Finished { op, at, bytes, status, failed_in_read, completed, latency_ns, device_ns, buffers };
            return Some(finished);
        };
        let place = place as usize;
        let work = self.works[place].as_mut().expect("a work ends with its last request");
        work.device_ns += device_ns;
        let submitted = *work.submitted.get_or_insert(submitted);
        let is_first_of_two = work.operation.direction == Direction::Write && bio.op == Op::Read;
        if !is_first_of_two || !status.is_ok() {
            return Some(self.finish(place, bio.op, bio.buffers, status, (submitted, completed)));
        }
        let mut write = Bio { op: Op::Write, flags: work.flags, ..bio };
        if let (Buffers::One(blocks), Some(data)) = (&mut write.buffers, &work.data) {
            let skip = (work.operation.at % self.block) as usize;
            blocks[skip..skip + data.len()].copy_from_slice(data);
        }
        work.next = Some(write);
        self.resume(submitter, place);
        submitter.flush_batch();
        None
    }

    /// Ends a work, whose last request was of `op` with these buffers, and which lasted from the first time to the
    /// second one.
    fn finish(
        &mut self,
        place: usize,
        op: Op,
        mut buffers: Buffers,
        status: Status,
        (submitted, completed): (Time, Time),
    ) -> Finished {
        let Work { operation, data, lock, device_ns, .. } = self.works[place].take().expect("a work ends once");
        self.places.push(place);
        if let (Some(locks), Some(ticket)) = (&self.locks, lock) {
            locks.release(ticket);
        }
        let is_read = operation.direction == Direction::Read;
        if let Some(mut data) = data {
            if let Buffers::One(blocks) = std::mem::take(&mut buffers) {
                let skip = (operation.at % self.block) as usize;
                if is_read {
                    data.copy_from_slice(&blocks[skip..skip + operation.bytes as usize]);
                }
                self.spare.push(blocks);
            }
            buffers = Buffers::One(data);
        }
        Finished {
            op: match operation.direction {
                Direction::Read => Op::Read,
                Direction::Write => Op::Write,
                Direction::Trim => Op::Discard,
            },
            at: operation.at,
            bytes: operation.bytes,
            status,
            failed_in_read: op == Op::Read && !is_read,
            completed,
            latency_ns: completed.since(submitted),
            device_ns,
            buffers,
        }
    }
}
