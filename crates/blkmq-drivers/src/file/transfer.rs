//! A request while the kernel has it, through a ring or a thread: what of it is still to be done.
//!
//! A request may take several operations: a rest after a short read, a sync behind a write, another try. A transfer
//! says which operation is next, and takes the answer. Each tag has a transfer, which the engine keeps under a lock.
#![expect(unsafe_code, reason = "pieces of memory are named by address for the kernel, on whatever thread")]

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Batch, BorrowedRequest, Done, Request};
use blkmq::{Buffer, Op, Status};
use io_uring::{opcode, squeue, types};

use super::chain::{self, Chain, LINKS, Link};
use super::journal::{Asked, asked};
use super::pool::Operation;
use super::registered::{Table, pages_slot};
use super::status::status_of;
use super::target::{MAX_SEGMENTS, Target};
use super::writeback_errors::{Promise, WritebackErrors};
use crate::try_lock;

/// The indices of a target's descriptors among the descriptors that a ring knows.
const DIRECT: types::Fixed = types::Fixed(0);
const BUFFERED: types::Fixed = types::Fixed(1);
const CLAIMING: types::Fixed = types::Fixed(2);

/// Two modes of fallocate. The first makes a range read as zeroes, and keeps its blocks or gives it new ones. The
/// second makes the range a hole.
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// How often the kernel may put the same request off. A ring itself waits for operations that would block. So only
/// operations come back that were interrupted because the thread that had asked for them ended: once for each such
/// thread. If an operation comes back more often than this, the reason is a file system or a bad buffer, and it would
/// come back forever, as fast as it is asked for.
const MOST_TRIES: u16 = 1000;

/// How long a sync that is done waits before it checks again whether the syncs that were in progress with it are
/// answered.
const PAUSE: Duration = Duration::from_millis(1);
static KERNEL_PAUSE: types::Timespec = types::Timespec::new().nsec(PAUSE.as_nanos() as u32);

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Read,
    Write,
    Sync,
    /// Nothing, for a while. The sync is done, and other syncs have to be answered before it is believed.
    Pause,
    /// A change of a range, with the mode of fallocate, and the mode to use instead if the file system does not know
    /// the first.
    Range(i32, Option<i32>),
}

/// A request with a tag, from its start to its completion.
///
/// # Invariant
/// This holds while the request is borrowed, either here or with the thread that has just taken it for an answer. The
/// memory of the request's buffers lives as long as the borrow, and does not move. Without a stand-in, `pieces` name
/// that memory. With a stand-in, `pieces` name the stand-in, which lives until the kernel has answered and does not
/// move, and `meant` names the memory of the buffers. `pieces` themselves do not move either, because the kernel may
/// read them.
#[derive(Debug)]
pub(super) struct Transfer {
    /// The request, borrowed. `None` while the tag is free.
    borrowed: Option<BorrowedRequest>,
    task: Task,
    /// Whether written data has to be durable when the kernel answers the write.
    is_durable: bool,
    /// Whether a sync has to follow when the request is done, to make it durable.
    is_synced_behind: bool,
    /// The number of the sync that the kernel is asked for, if [`WritebackErrors`] counts syncs.
    sync: Option<u64>,
    /// After that sync is done, all syncs with lower numbers than this have to be answered first.
    until: u64,
    /// How often the kernel has put off the present operation.
    tries: u16,
    /// Operations on the file begin and end at multiples of this number of bytes.
    block: u64,
    /// Where in the file the request begins, and its number of bytes.
    offset: u64,
    bytes: u64,
    pieces: Vec<libc::iovec>,
    /// How many of these bytes are done.
    through: usize,
    /// The slot of the registered memory that contains the only piece, or the slot for the request's pages.
    registered: Option<u16>,
    /// Whether the data is in pages of the kernel. The only piece then has a number of bytes in the place of an
    /// address.
    has_pages: bool,
    /// Memory that direct I/O accepts, instead of the request's memory. `meant` names the request's memory then.
    stand_in: Option<Buffer>,
    meant: Vec<libc::iovec>,
    /// The entries around the one that moves the data, if it is in pages.
    chain: Option<Box<Chain>>,
}

// SAFETY: by the invariant the addresses are valid on every thread. Only the kernel follows them.
unsafe impl Send for Transfer {}

impl Transfer {
    pub(super) fn new() -> Self {
        Self {
            borrowed: None,
            task: Task::Sync,
            is_durable: false,
            is_synced_behind: false,
            sync: None,
            until: 0,
            tries: 0,
            block: 1,
            offset: 0,
            bytes: 0,
            pieces: Vec::with_capacity(MAX_SEGMENTS.into()),
            through: 0,
            registered: None,
            has_pages: false,
            stand_in: None,
            meant: Vec::new(),
            chain: None,
        }
    }

    /// Takes the next request of a batch that lies within the file, and notes it in the place of its tag, which has its
    /// borrowed then. `None` at the end of the batch. Requests that reach past `end`, which [`Target::end`] returned
    /// for the batch, and past the end of the file, are ended here.
    ///
    /// # Errors
    /// The tag, if it is not free.
    pub(super) fn next<'a>(
        transfers: &'a [Mutex<Self>],
        target: &Target,
        batch: &mut Batch<'_>,
        end: u64,
    ) -> Option<Result<(u16, MutexGuard<'a, Self>), u16>> {
        loop {
            let mut rq = batch.next_request()?;
            if !target.still_holds(&rq, end) {
                batch.finish(rq, Status::IoError);
                continue;
            }
            let tag = rq.tag();
            // No thread has the lock of a free tag. A thread that has the lock of a tag in use may wait for a lock that
            // the caller has. So the caller does not wait for the tag's lock.
            let transfer = try_lock(&transfers[usize::from(tag)]).filter(|transfer| transfer.borrowed.is_none());
            let Some(mut transfer) = transfer else {
                batch.refuse(rq);
                return Some(Err(tag));
            };
            transfer.take_down(target, &mut rq);
            transfer.number_sync(target);
            // The borrowed request is stored before another thread can take the answer, because that thread takes the
            // lock first.
            transfer.borrowed = Some(batch.borrow(rq));
            return Some(Ok((tag, transfer)));
        }
    }

    /// Notes what a request asks for.
    ///
    /// COST: for memory that direct I/O does not accept, an allocation and a copy of the data. While there are direct
    /// writes, nothing may go through the page cache: the kernel would write old neighbouring data over them.
    fn take_down(&mut self, target: &Target, rq: &mut Request<'_>) {
        debug_assert!(
            self.borrowed.is_none() && self.stand_in.is_none(),
            "a free tag has no request, and no memory of one"
        );
        self.task = match rq.op() {
            Op::Read => Task::Read,
            Op::Write => Task::Write,
            Op::Flush => Task::Sync,
            Op::Discard => Task::Range(PUNCH, None),
            Op::WriteZeroes if rq.flags().nounmap => Task::Range(ZERO, None),
            Op::WriteZeroes => Task::Range(PUNCH, Some(ZERO)),
        };
        let is_synced_behind = match self.task {
            Task::Range(..) => true,
            Task::Write => !target.writeback_errors().can_be_asked(),
            Task::Read | Task::Sync | Task::Pause => false,
        };
        self.is_durable = rq.flags().fua && !is_synced_behind;
        self.is_synced_behind = rq.flags().fua && is_synced_behind;
        self.until = 0;
        self.tries = 0;
        self.offset = rq.sector() * SECTOR_SIZE as u64;
        self.bytes = u64::from(rq.nr_sectors()) * SECTOR_SIZE as u64;
        self.pieces.clear();
        self.through = 0;
        self.block = target.io_block();
        let missing = target.missing(self.offset + self.bytes);
        let mut fits = true;
        for segment in rq.segments() {
            fits &= target.takes(segment.as_ptr() as usize, segment.len());
            self.pieces.push(libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() });
        }
        self.has_pages = self.pieces.is_empty() && self.moves_data();
        if self.has_pages {
            return self.take_pages(rq);
        }
        if !fits {
            self.stand_in(rq);
        }
        if missing > 0 {
            self.clip(missing, rq);
        }
    }

    /// Notes the pages of the kernel that have the request's data.
    ///
    /// COST: an allocation, the first time for a tag.
    #[cold]
    fn take_pages(&mut self, rq: &Request<'_>) {
        let pages = rq.pages().expect("data that is not in memory is in pages");
        let slot = pages_slot(rq.tag());
        let start = std::ptr::without_provenance_mut(pages.offset());
        self.pieces.push(libc::iovec { iov_base: start, iov_len: pages.len() });
        self.registered = Some(slot);
        let chain = Chain::new(&pages, slot);
        match &mut self.chain {
            Some(place) => **place = chain,
            None => self.chain = Some(Box::new(chain)),
        }
    }

    /// Leaves out the part of a request that is past the end of a file that ends within a sector: its last `missing`
    /// bytes, which are less than a sector. The bytes past the end read as zeroes and are not written. Such a file is
    /// not accessed by direct I/O, so there is no stand-in.
    #[cold]
    fn clip(&mut self, missing: u64, rq: &mut Request<'_>) {
        debug_assert!(self.stand_in.is_none(), "what goes through the page cache may lie anywhere");
        debug_assert!(missing < self.bytes.min(SECTOR_SIZE as u64), "less than a sector is missing, and not all");
        self.bytes -= missing;
        // Segments consist of whole sectors.
        if let (Some(piece), Some(mut segment)) = (self.pieces.last_mut(), rq.segments().last()) {
            piece.iov_len -= missing as usize;
            if self.task == Task::Read {
                segment.copy_from(piece.iov_len, &[0; SECTOR_SIZE][..missing as usize]);
            }
        }
    }

    #[cold]
    fn stand_in(&mut self, rq: &mut Request<'_>) {
        let mut buffer = Buffer::zeroed(self.bytes as usize);
        if self.task == Task::Write {
            let mut free = &mut buffer[..];
            for segment in rq.segments() {
                let (to, rest) = free.split_at_mut(segment.len());
                segment.copy_to(0, to);
                free = rest;
            }
        }
        self.meant = std::mem::take(&mut self.pieces);
        self.pieces.push(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        self.stand_in = Some(buffer);
    }

    /// Checks whether the ring of this transfer has registered the memory.
    pub(super) fn look_up(&mut self, table: &Table) {
        if self.has_pages {
            return;
        }
        self.registered = match self.pieces[..] {
            [piece] if self.moves_data() => table.find(piece.iov_base as usize, piece.iov_len),
            _ => None,
        };
    }

    /// Returns the entry that asks the kernel for what is still to be done. The entry names `self.pieces`, which do not
    /// move until the entry is answered.
    pub(super) fn entry(&self) -> squeue::Entry {
        let pieces = &self.pieces[self.through..];
        let (first, len) = (pieces.as_ptr(), pieces.len() as u32);
        let flags = if self.is_durable { libc::RWF_DSYNC } else { 0 };
        // With a list of one piece the kernel would have to fetch the list as well.
        if let (true, [piece]) = (self.moves_data(), pieces) {
            return self.entry_of_one(piece, flags);
        }
        match self.task {
            Task::Read => opcode::Readv::new(DIRECT, first, len).offset(self.offset).build(),
            Task::Write => opcode::Writev::new(DIRECT, first, len).offset(self.offset).rw_flags(flags).build(),
            Task::Sync => opcode::Fsync::new(BUFFERED).flags(types::FsyncFlags::DATASYNC).build(),
            Task::Pause => opcode::Timeout::new(&raw const KERNEL_PAUSE).build(),
            Task::Range(mode, _) => opcode::Fallocate::new(CLAIMING, self.bytes).offset(self.offset).mode(mode).build(),
        }
    }

    /// Returns the entry for a read or write of one piece of memory, which the ring may have registered.
    fn entry_of_one(&self, piece: &libc::iovec, flags: i32) -> squeue::Entry {
        let (start, len, offset) = (piece.iov_base.cast::<u8>(), piece.iov_len as u32, self.offset);
        match (self.task == Task::Read, self.registered) {
            (true, None) => opcode::Read::new(DIRECT, start, len).offset(offset).build(),
            (true, Some(slot)) => opcode::ReadFixed::new(DIRECT, start, len, slot).offset(offset).build(),
            (false, None) => opcode::Write::new(DIRECT, start, len).offset(offset).rw_flags(flags).build(),
            (false, Some(slot)) => {
                opcode::WriteFixed::new(DIRECT, start, len, slot).offset(offset).rw_flags(flags).build()
            }
        }
    }

    /// Returns the entries that take the place of [`entry`](Self::entry), if the data that is to be moved is in pages.
    pub(super) fn entries(&self, tag: u16) -> Option<[squeue::Entry; LINKS]> {
        if !(self.has_pages && self.moves_data()) {
            return None;
        }
        self.chain.as_ref().map(|chain| chain.entries(self.entry(), tag))
    }

    /// Returns the chain, if these entries are what the kernel has.
    fn chain(&mut self) -> Option<&mut Chain> {
        if self.has_pages && self.moves_data() { self.chain.as_deref_mut() } else { None }
    }

    /// Takes the answer of a link of such entries, or the one answer of any other operation.
    pub(super) fn answered_link(&mut self, link: Link, result: i32) -> chain::Next {
        self.chain().map_or(chain::Next::Over(result), |chain| chain.answered(link, result))
    }

    /// Returns the entry that takes the pages out of the ring's table once more.
    pub(super) fn last_entry(&mut self, tag: u16) -> Option<squeue::Entry> {
        self.chain().map(|chain| chain.last_entry(tag))
    }

    /// What a thread asks the kernel for instead of the entry.
    pub(super) fn operation(&self) -> Operation {
        let pieces = &self.pieces[self.through..];
        let (first, len, offset) = (pieces.as_ptr(), pieces.len(), self.offset);
        match self.task {
            Task::Read => Operation::Read { pieces: first, len, offset },
            Task::Write => {
                let flags = if self.is_durable { libc::RWF_DSYNC } else { 0 };
                Operation::Write { pieces: first, len, offset, flags }
            }
            Task::Sync => Operation::Sync,
            Task::Pause => Operation::Pause(PAUSE),
            Task::Range(mode, _) => Operation::Range { mode, offset, bytes: self.bytes },
        }
    }

    /// What a journal is told of the present operation.
    pub(super) fn asked(&self) -> Asked {
        assert!(self.borrowed.is_some(), "what the entry names lives while the request is borrowed");
        // SAFETY: the invariant.
        unsafe { asked(&self.entry()) }
    }

    /// Returns true if the operation is a read or a write. Only these can be polled for.
    pub(super) fn moves_data(&self) -> bool {
        matches!(self.task, Task::Read | Task::Write)
    }

    /// Returns the promise that the last answer makes, if it makes one.
    pub(super) fn promise(&self) -> Option<Promise> {
        match self.task {
            Task::Sync => Some(Promise::Sync),
            Task::Write if self.is_durable => Some(Promise::Write),
            _ => None,
        }
    }

    /// Called when the kernel has answered with a number of bytes, or with a negative error. The caller has the
    /// borrowed request. Returns the status of a request that is over. `None`: the kernel has done a part of it, or
    /// nothing, and the rest has to be asked for.
    pub(super) fn answered(&mut self, result: i32) -> Option<Status> {
        let next = match (u64::try_from(result), self.task) {
            // A ring reports the end of a timeout as an error.
            (_, Task::Pause) | (Ok(_), Task::Sync) => Ok(true),
            (Err(_), _) => self.failed(-result),
            (Ok(_), Task::Range(..)) => Ok(true),
            // The file has become shorter than it was.
            (Ok(0), _) => Err(Status::IoError),
            (Ok(done), _) => self.advance(done),
        };
        let status = match next {
            Ok(false) => return None,
            Ok(true) if self.is_synced_behind && !matches!(self.task, Task::Sync | Task::Pause) => {
                self.task = Task::Sync;
                return None;
            }
            Ok(true) => Status::Ok,
            Err(status) => status,
        };
        self.end(status);
        Some(status)
    }

    /// Takes an answer. Returns the transfer if more has to be asked for. Otherwise the transfer's request is over.
    pub(super) fn settle<'a>(
        mut transfer: MutexGuard<'a, Self>,
        target: &Target,
        result: i32,
        done: &mut Done<'_>,
    ) -> Option<MutexGuard<'a, Self>> {
        let borrowed = transfer.borrowed.take().expect("the kernel answers what it was asked, once");
        let Some(status) = transfer.conclude(target.writeback_errors(), result) else {
            transfer.borrowed = Some(borrowed);
            transfer.number_sync(target);
            return Some(transfer);
        };
        let end = transfer.offset + transfer.bytes;
        drop(transfer);
        let status = if status.is_ok() { status } else { target.status_of_failed(status, end) };
        done.give_back(borrowed, status);
        None
    }

    /// Takes an answer, and judges what the answer says of data that other clients have written.
    fn conclude(&mut self, writeback_errors: &WritebackErrors, result: i32) -> Option<Status> {
        let mut next = self.answered(result);
        if let (Some(status), Some(promise)) = (&mut next, self.promise()) {
            *status = writeback_errors.judge(promise, *status, result);
        }
        // The answer must not be noted earlier, because other threads use what was just found.
        if let Some(number) = self.sync.take() {
            self.until = writeback_errors.note_answer(number);
        }
        if next != Some(Status::Ok) {
            return next;
        }
        let Some(is_certain) = writeback_errors.is_certain(self.until) else {
            self.task = Task::Pause;
            return None;
        };
        Some(if is_certain { Status::Ok } else { Status::IoError })
    }

    /// Counts a sync that the kernel is asked for next.
    fn number_sync(&mut self, target: &Target) {
        if self.task == Task::Sync {
            self.sync = target.writeback_errors().note_sync();
        }
    }

    /// Hands over what was read into a stand-in, which is not needed any more.
    fn end(&mut self, status: Status) {
        if let Some(buffer) = self.stand_in.take() {
            self.pieces = std::mem::take(&mut self.meant);
            if self.task == Task::Read && status.is_ok() {
                self.hand_over(&buffer);
            }
        }
    }

    /// Copies data that was read to the memory of the request.
    fn hand_over(&self, mut data: &[u8]) {
        debug_assert_eq!(
            self.pieces.iter().map(|piece| piece.iov_len).sum::<usize>(),
            data.len(),
            "a stand-in has as many bytes as its request"
        );
        for piece in &self.pieces {
            let (part, rest) = data.split_at(piece.iov_len);
            // SAFETY: by the invariant the request's memory exists until the borrowed request is given back, which
            // comes after this, and the request has as many bytes as its stand-in. No other thread touches the
            // request's memory meanwhile.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len()) };
            data = rest;
        }
    }

    /// Whether the request ends with this error, and how.
    fn failed(&mut self, errno: i32) -> Result<bool, Status> {
        match (status_of(errno), self.task) {
            (None, _) if self.tries < MOST_TRIES => {
                self.tries += 1;
                // The next try does not use the registered memory, so that memory cannot be the cause then.
                self.registered = self.registered.filter(|_| self.has_pages);
                Ok(false)
            }
            (Some(Status::Unsupported), Task::Range(_, Some(other))) => {
                self.task = Task::Range(other, None);
                Ok(false)
            }
            (status, _) => Err(status.unwrap_or(Status::IoError)),
        }
    }

    /// Called when this many bytes are done. Returns whether these are all. An error if there is no progress, as at the
    /// end of a file that has become shorter and ends within a block.
    fn advance(&mut self, done: u64) -> Result<bool, Status> {
        // An operation that begins within a block would have to go through the page cache. So that block is done once
        // more.
        debug_assert!(self.moves_data() && self.bytes > 0, "a read or write goes on that is not done");
        let done = done.min(self.bytes);
        let done = if done == self.bytes { done } else { done - done % self.block };
        self.offset += done;
        self.bytes -= done;
        self.tries = if done > 0 { 0 } else { self.tries + 1 };
        if self.tries > MOST_TRIES {
            return Err(Status::IoError);
        }
        if self.bytes == 0 {
            return Ok(true);
        }
        let mut left = done as usize;
        while let Some(piece) = self.pieces.get_mut(self.through) {
            if left < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(left);
                piece.iov_len -= left;
                break;
            }
            left -= piece.iov_len;
            self.through += 1;
        }
        Ok(false)
    }
}
