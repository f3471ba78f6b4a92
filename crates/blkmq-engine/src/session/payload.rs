//! The data of a write, piece by piece: where each piece goes, and what becomes of it when it has arrived.

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Buffer};

use super::Session;
use super::rmw::changing;
use super::task::TaskId;
use crate::ask::Ask;
use crate::failure::{Cause, Failure};
use crate::memory::pool::footprint;

/// Bytes for which a write gets memory when it begins.
const FIRST_PIECE: u64 = 256 << 10;
/// Bytes for which a write gets memory if there is not enough for [`FIRST_PIECE`]. No block is longer than this.
const LEAST_PIECE: u64 = 64 << 10;

/// Where the next piece of a write's data goes.
#[derive(Debug)]
pub enum Piece {
    /// Into this buffer, behind its first bytes, which are so many. If the piece begins within a block, these first
    /// bytes are for what the block has before the piece.
    Here(Buffer, usize),
    /// Nowhere. The write has failed, and its remaining data is not used.
    Useless,
    /// There is no memory for the piece now.
    Later,
}

impl<F: Copy + Default> Session<F> {
    /// Begins a task, unless its data is still to come.
    pub(super) fn begin(&mut self, id: TaskId, is_receiving: bool) {
        self.tasks.get_mut(id).is_receiving = is_receiving;
        self.nr_receiving += u16::from(is_receiving);
        self.go_on(id);
    }

    /// Returns where the next piece of a write's data goes. Each piece is an operation of its own, which begins when
    /// the piece has arrived. So a write that is half received holds no more memory than a piece, and it waits for more
    /// memory without holding what others need. The first piece is short, and each further piece is as long as all
    /// pieces before it together: a client gets memory for data that it sends, and not for data that it announces.
    ///
    /// A buffer still has what another request left in it. The front-end fills all of it, or
    /// [breaks](Self::break_payload) the request.
    pub fn next_piece(&mut self, id: TaskId) -> Piece {
        let Self { tasks, pool, rmw, plan, .. } = self;
        let task = tasks.get_mut(id);
        let left = task.end - task.next;
        if task.failure.is_some() || left == 0 {
            return Piece::Useless;
        }
        let skip = rmw.skip(task.next);
        // A piece is no longer than the connection's own part. So a client that stops in the middle of a write holds no
        // memory that others wait for.
        let most = (task.next - task.offset).clamp(FIRST_PIECE, FIRST_PIECE.max(pool.own() as u64));
        for most in [most, LEAST_PIECE] {
            let len = left.min(plan.data.min(rmw.down(most)) - skip);
            let whole = rmw.up(skip + len) as usize;
            if !pool.promise(footprint(whole), false) {
                continue;
            }
            let Some(mut buffer) = pool.take(whole) else {
                pool.account.give(footprint(whole));
                task.failure = Some(Box::new(Failure::no_memory()));
                return Piece::Useless;
            };
            task.promised += footprint(whole);
            let fits = buffer.set_len((skip + len) as usize);
            debug_assert!(fits, "a buffer can be shorter");
            return Piece::Here(buffer, skip as usize);
        }
        Piece::Later
    }

    /// Called when a piece of a write's data has arrived.
    pub fn take_piece(&mut self, id: TaskId, buffer: Buffer) {
        let task = self.tasks.get_mut(id);
        let Ask::Write { fua } = task.ask else { return self.pool.give(buffer) };
        let start = task.next;
        let end = self.rmw.down(start) + buffer.len() as u64;
        task.next = end;
        task.outstanding += 1;
        if self.rmw.skip(start | end) > 0 {
            return self.change_part(id, start..end, buffer, fua);
        }
        self.push(id, Bio::write(start / SECTOR_SIZE as u64, buffer).with_flags(changing(fua)));
    }

    /// Called when all data of a request has arrived, or is skipped. A write that has not failed, and whose last piece
    /// was not [taken](Self::take_piece), fails with [`Cause::Invalid`]: what came of its data is written.
    pub fn end_payload(&mut self, id: TaskId) {
        let now = self.now();
        let task = self.tasks.get_mut(id);
        if matches!(task.ask, Ask::Write { .. }) && task.is_receiving && task.next < task.end {
            let cut = || Box::new(Failure::new(Cause::Invalid, "the data of the write ended before its last byte"));
            task.failure.get_or_insert_with(cut);
        }
        self.nr_receiving -= u16::from(std::mem::take(&mut task.is_receiving));
        task.taken = task.taken.map(|_| now);
        self.go_on(id);
    }

    /// Called when the data of a request will never be complete. `buffer` was to take the data.
    pub fn break_payload(&mut self, id: TaskId, buffer: Option<Buffer>, failure: Failure) {
        if let Some(mut buffer) = buffer {
            let whole = self.rmw.up(buffer.len() as u64);
            buffer.set_len(whole as usize);
            self.pool.give(buffer);
        }
        self.tasks.get_mut(id).failure.get_or_insert_with(|| Box::new(failure));
        self.end_payload(id);
    }
}
