//! Requests that begin or end within a block of the device. A change of a part of a block reads the block, puts the
//! client's bytes in, and writes the block back. [`RangeLocks`](super::range_locks::RangeLocks) decides whose turn it
//! is at a block.

mod stuck;

use std::collections::VecDeque;
use std::ops::Range;

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Buffers, Flags, Op, Status};

use self::stuck::StallTimer;
use super::range_locks::{Seat, Ticket};
use super::task::{TaskId, Tasks};
use crate::memory::pool::{Pool, footprint};

/// The most changes of one connection that have a claim in the table at a time. Further changes wait in this
/// connection. The number bounds the length of the table, which every change of a part goes through.
const MAX_CLAIMS: usize = 16;

/// What an operation is for, stored in its `user_data`: its task, the index of its work if it has a claim, and the
/// epoch if it is a free change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UserData {
    task: TaskId,
    place: Option<usize>,
    epoch: u32,
}

/// The parts of `user_data`: 16 bits are for the task, and half of the others each for the place of the work and for
/// the epoch. A connection has far less than 2^24 pieces of work at a time.
const PLACE_BITS: u32 = 24;
const EPOCH_BITS: u32 = 24;

impl UserData {
    #[inline]
    fn of(user_data: u64) -> Self {
        let place = (user_data >> 16) as usize & ((1 << PLACE_BITS) - 1);
        let epoch = (user_data >> (16 + PLACE_BITS)) as u32;
        Self { task: user_data as TaskId, place: place.checked_sub(1), epoch }
    }

    #[inline]
    fn bits(self) -> u64 {
        let place = self.place.map_or(0, |place| place as u64 + 1);
        u64::from(self.task) | place << 16 | u64::from(self.epoch) << (16 + PLACE_BITS)
    }
}

/// Returns true if one epoch came before another. The two are never further apart than half of all possible numbers.
fn is_before(one: u32, other: u32) -> bool {
    let distance = other.wrapping_sub(one) & ((1 << EPOCH_BITS) - 1);
    distance != 0 && distance < 1 << (EPOCH_BITS - 1)
}

/// A claim that this connection passes when the free changes are over that were in progress when the claim came.
#[derive(Debug)]
struct Grace {
    ticket: Ticket,
    /// Free changes of epochs before this one count.
    epoch: u32,
    remaining: usize,
}

/// A change of bytes of a block.
#[derive(Debug)]
struct Part {
    /// The bytes that change.
    bytes: Range<u64>,
    /// Whole blocks, with the client's bytes in their places.
    buffer: Buffer,
    fua: bool,
    /// Reads of blocks that are in progress.
    reads: u32,
    /// The first read that failed.
    failed: Option<(u64, Status)>,
}

#[derive(Debug)]
enum Change {
    /// A change of whole blocks that waits for its turn.
    Whole(Bio),
    /// A change of a part, which waits for its turn or for the contents of its blocks.
    Part(Part),
    /// The write is in progress.
    Last,
}

/// A change that is not free.
#[derive(Debug)]
struct Work {
    task: TaskId,
    /// The claimed blocks, in bytes.
    blocks: Range<u64>,
    change: Change,
    timer: StallTimer,
}

/// The state of a connection that [`ReadModifyWrite`] works with.
pub(super) struct Context<'a> {
    pub(super) tasks: &'a Tasks,
    pub(super) pool: &'a mut Pool,
    pub(super) waiting: &'a mut VecDeque<Bio>,
}

/// What a connection does at blocks that it changes in part, and with whole blocks of which other connections change a
/// part.
#[derive(Debug)]
pub(super) struct ReadModifyWrite {
    /// Size of a block in bytes, a power of two.
    block: u64,
    seat: Seat,
    /// Whether there may be claims, so that changes look into the table. False while no connection changes a part of a
    /// block.
    is_wary: bool,
    /// The epoch of new free changes. Each grace adds one.
    epoch: u32,
    graces: Vec<Grace>,
    works: Vec<Option<Work>>,
    /// Indices of `works` that are not in use.
    places: Vec<usize>,
    /// The works that have a claim.
    claims: Vec<(Ticket, usize)>,
    /// The works that wait for a claim.
    backlog: VecDeque<usize>,
    /// Used within a look, and empty between two looks.
    ready: Vec<Ticket>,
}

#[inline]
pub(super) const fn changes(op: Op) -> bool {
    matches!(op, Op::Write | Op::Discard | Op::WriteZeroes)
}

/// Returns the flags of an operation that changes the device. The client waits for it: no cache is between, so Linux
/// calls such a write synchronous, and a scheduler that shares by client knows whose it is.
#[inline]
pub(super) const fn changing(fua: bool) -> Flags {
    Flags { sync: true, fua, ..Flags::NONE }
}

impl ReadModifyWrite {
    pub(super) fn new(block: u32, seat: Seat) -> Self {
        Self {
            block: block.into(),
            seat,
            // The claims in the table did not count this connection when they came. So this connection has to look
            // before its first change.
            is_wary: true,
            epoch: 0,
            graces: Vec::new(),
            works: Vec::new(),
            places: Vec::new(),
            claims: Vec::new(),
            backlog: VecDeque::new(),
            ready: Vec::new(),
        }
    }

    /// Returns the number of bytes from the start of the block to this byte.
    #[inline]
    pub(super) fn skip(&self, byte: u64) -> u64 {
        byte & (self.block - 1)
    }

    /// Returns the start of the block that the byte is in.
    #[inline]
    pub(super) fn down(&self, byte: u64) -> u64 {
        byte & !(self.block - 1)
    }

    /// Returns the end of the last block that the bytes before this one reach into.
    #[inline]
    pub(super) fn up(&self, byte: u64) -> u64 {
        self.down(byte + (self.block - 1))
    }

    /// Returns the whole blocks that hold the bytes; none if there are no bytes.
    #[inline]
    pub(super) fn around(&self, bytes: Range<u64>) -> Range<u64> {
        if bytes.is_empty() { bytes } else { self.down(bytes.start)..self.up(bytes.end) }
    }

    /// Returns the whole blocks among the bytes.
    #[inline]
    pub(super) fn within(&self, bytes: Range<u64>) -> Range<u64> {
        let start = self.up(bytes.start);
        start..self.down(bytes.end).max(start)
    }

    /// Returns the number of bytes of the buffers for the blocks that a change of these bytes reads.
    #[inline]
    pub(super) fn charge(&self, bytes: Range<u64>) -> usize {
        let rmw = [bytes.start, bytes.end].into_iter().filter(|byte| self.skip(*byte) > 0).count();
        if bytes.is_empty() { 0 } else { rmw * footprint(self.block as usize) }
    }

    #[inline]
    pub(super) fn is_wary(&self) -> bool {
        self.is_wary
    }

    /// Returns the `user_data` of a task's operation that has no claim.
    #[inline]
    pub(super) fn user_data(&self, task: TaskId) -> u64 {
        UserData { task, place: None, epoch: self.epoch }.bits()
    }

    /// Returns the number of changes of whole blocks that are in progress and have no claim.
    fn nr_free(&self, tasks: &Tasks) -> usize {
        let all: usize = tasks.changing().map(|(_, task)| task.outstanding as usize).sum();
        all - (self.works.len() - self.places.len())
    }

    fn add(&mut self, task: TaskId, blocks: Range<u64>, change: Change) -> usize {
        let work = Work { task, blocks, change, timer: StallTimer::new() };
        match self.places.pop() {
            Some(place) => {
                self.works[place] = Some(work);
                place
            }
            None => {
                self.works.push(Some(work));
                self.works.len() - 1
            }
        }
    }

    /// Changes bytes that do not fill their blocks. `buffer` has these bytes in their places in the blocks around them.
    /// The task counts this change as one outstanding operation.
    #[cold]
    pub(super) fn change_part(
        &mut self,
        context: &mut Context<'_>,
        task: TaskId,
        bytes: Range<u64>,
        mut buffer: Buffer,
        fua: bool,
    ) {
        let blocks = self.around(bytes.clone());
        let fits = buffer.set_len((blocks.end - blocks.start) as usize);
        debug_assert!(fits, "the buffer was made for whole blocks");
        let part = Part { bytes, buffer, fua, reads: 0, failed: None };
        let place = self.add(task, blocks, Change::Part(part));
        self.is_wary = true;
        if self.has_room() { self.claim(context, place) } else { self.backlog.push_back(place) }
    }

    /// Returns true if a change that comes now may have a claim. Changes that wait for a claim come first, however many
    /// steps another request has.
    fn has_room(&self) -> bool {
        self.claims.len() < MAX_CLAIMS && self.backlog.is_empty()
    }

    /// Does a change of whole blocks when its turn has come. Called by a connection that is wary.
    #[cold]
    pub(super) fn change_whole(&mut self, context: &mut Context<'_>, bio: Bio) {
        let start = bio.sector * SECTOR_SIZE as u64;
        let blocks = start..start + bio.nr_sectors * SECTOR_SIZE as u64;
        if self.has_room() {
            match self.seat.claim_whole(&blocks) {
                None => context.waiting.push_back(bio),
                Some(ticket) => {
                    let place = self.add(bio.user_data as TaskId, blocks, Change::Whole(bio));
                    self.claims.push((ticket, place));
                }
            }
        } else {
            let place = self.add(bio.user_data as TaskId, blocks, Change::Whole(bio));
            self.backlog.push_back(place);
        }
    }

    /// Claims the blocks of a work that has no claim yet.
    fn claim(&mut self, context: &mut Context<'_>, place: usize) {
        let Some(work) = &self.works[place] else { return };
        let blocks = work.blocks.clone();
        if matches!(work.change, Change::Whole(_)) {
            match self.seat.claim_whole(&blocks) {
                Some(ticket) => self.claims.push((ticket, place)),
                None => self.set_free(context, place),
            }
            return;
        }
        let nr_free = self.nr_free(context.tasks);
        let is_passed = nr_free == 0 || !is_changing(context.tasks, self.block, &blocks, Some(work.task));
        let (ticket, is_due) = self.seat.claim_part(blocks, is_passed);
        self.claims.push((ticket, place));
        if !is_passed {
            self.wait_for_free(ticket, nr_free);
        }
        if is_due {
            self.start(context, place);
        }
    }

    fn wait_for_free(&mut self, ticket: Ticket, remaining: usize) {
        self.epoch = (self.epoch + 1) & ((1 << EPOCH_BITS) - 1);
        self.graces.push(Grace { ticket, epoch: self.epoch, remaining });
    }

    /// Called when a change of whole blocks that waited for a claim needs none.
    fn set_free(&mut self, context: &mut Context<'_>, place: usize) {
        if let Some(Work { task, change: Change::Whole(bio), .. }) = self.works[place].take() {
            self.places.push(place);
            context.waiting.push_back(bio.with_user_data(self.user_data(task)));
        }
    }

    /// Called when the turn of a work has come.
    fn start(&mut self, context: &mut Context<'_>, place: usize) {
        let block = self.block;
        let Some(work) = &mut self.works[place] else { return };
        let user_data = UserData { task: work.task, place: Some(place), epoch: 0 }.bits();
        let priority = context.tasks.get(work.task).priority;
        match &mut work.change {
            Change::Whole(_) => {
                if let Change::Whole(bio) = std::mem::replace(&mut work.change, Change::Last) {
                    context.waiting.push_back(bio.with_user_data(user_data));
                }
            }
            Change::Part(part) => {
                let first = (part.bytes.start > work.blocks.start).then_some(work.blocks.start);
                let last = (part.bytes.end < work.blocks.end).then_some(work.blocks.end - block);
                for start in [first, last.filter(|last| first != Some(*last))].into_iter().flatten() {
                    part.reads += 1;
                    let buffer = context.pool.take_block(block as usize);
                    let read = Bio::read(start / SECTOR_SIZE as u64, buffer).with_user_data(user_data);
                    context.waiting.push_back(Bio { priority, ..read });
                }
            }
            Change::Last => (),
        }
    }

    /// Looks whether other connections change parts of blocks, and does the changes that waited for that.
    ///
    /// COST: a load of a line that is written only when a connection changes a part of a block.
    #[inline]
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        let looks = if self.is_wary { self.has_works() || !self.seat.rests() } else { self.seat.has_new_claims() };
        if looks {
            self.look_closely(context);
        }
    }

    #[cold]
    fn look_closely(&mut self, context: &mut Context<'_>) {
        let (nr_free, block, tasks) = (self.nr_free(context.tasks), self.block, context.tasks);
        let mut ready = std::mem::take(&mut self.ready);
        let mut late = Vec::new();
        let has_claims = self.seat.look(&mut ready, |ticket, blocks| {
            let passes = nr_free == 0 || !is_changing(tasks, block, blocks, None);
            if !passes {
                late.push(ticket);
            }
            passes
        });
        late.into_iter().for_each(|ticket| self.wait_for_free(ticket, nr_free));
        for ticket in ready.drain(..) {
            if let Some(&(_, place)) = self.claims.iter().find(|(other, _)| *other == ticket) {
                self.start(context, place);
            }
        }
        self.ready = ready;
        let rested = self.seat.rests();
        while self.claims.len() < MAX_CLAIMS
            && let Some(place) = self.backlog.pop_front()
        {
            self.claim(context, place);
        }
        // If a rest has ended just now, claims that came after the look above count as seen.
        let has_claims = has_claims || rested && !self.seat.rests();
        self.is_wary = has_claims || self.has_works() || !self.graces.is_empty();
        if self.is_wary && !self.seat.rests() && self.graces.is_empty() && self.nr_free(tasks) == 0 {
            self.seat.rest();
        }
    }

    /// Called when an operation that changes something, or that has a claim, is over, and its task does not count it
    /// any more. Returns whether the change is over too, with this operation and status. If not, the task counts the
    /// change again.
    #[cold]
    pub(super) fn settle(&mut self, context: &mut Context<'_>, bio: &mut Bio, status: &mut Status) -> bool {
        let UserData { place, epoch, task } = UserData::of(bio.user_data);
        let Some(place) = place else {
            if changes(bio.op) {
                self.end_free(epoch);
            }
            return true;
        };
        let Some(work) = &mut self.works[place] else { return true };
        if let Change::Part(part) = &mut work.change {
            part.take_in(work.blocks.start, self.block, bio, *status, context.pool);
            if part.reads > 0 {
                return false;
            }
            let Change::Part(part) = std::mem::replace(&mut work.change, Change::Last) else { return true };
            let Some((sector, failure)) = part.failed else {
                let flags = changing(part.fua);
                let write = Bio::write(work.blocks.start / SECTOR_SIZE as u64, part.buffer).with_flags(flags);
                let write = write.with_user_data(UserData { task, place: Some(place), epoch }.bits());
                context.waiting.push_back(Bio { priority: context.tasks.get(task).priority, ..write });
                return false;
            };
            context.pool.give(part.buffer);
            (bio.sector, *status) = (sector, failure);
        }
        self.works[place] = None;
        self.places.push(place);
        if let Some(index) = self.claims.iter().position(|(_, other)| *other == place) {
            self.seat.end(self.claims.swap_remove(index).0);
        }
        true
    }

    /// Called when a free change of this epoch is over.
    fn end_free(&mut self, epoch: u32) {
        let Self { graces, seat, .. } = self;
        graces.retain_mut(|grace| {
            grace.remaining -= usize::from(is_before(epoch, grace.epoch));
            if grace.remaining == 0 {
                seat.pass(grace.ticket);
            }
            grace.remaining > 0
        });
    }

    fn has_works(&self) -> bool {
        self.works.len() > self.places.len()
    }

    /// Called when nothing is in progress any more, and nothing will be.
    pub(super) fn leave(&mut self) {
        if !self.seat.rests() {
            self.seat.rest();
        }
        self.is_wary = true;
    }
}

impl Part {
    /// Called when a block has been read. The bytes that the client does not change go into the buffer, whose first
    /// byte is byte `first` of the device.
    fn take_in(&mut self, first: u64, block: u64, bio: &mut Bio, status: Status, pool: &mut Pool) {
        self.reads -= 1;
        let start = bio.sector * SECTOR_SIZE as u64;
        if !status.is_ok() {
            self.failed.get_or_insert((bio.sector, status));
        }
        let Buffers::One(old) = std::mem::take(&mut bio.buffers) else { return };
        let mut keep = |bytes: Range<u64>| {
            let len = (bytes.end - bytes.start) as usize;
            let (to, from) = ((bytes.start - first) as usize, (bytes.start - start) as usize);
            self.buffer[to..to + len].copy_from_slice(&old[from..from + len]);
        };
        if start < self.bytes.start {
            keep(start..self.bytes.start);
        }
        if self.bytes.end < start + block {
            keep(self.bytes.end..start + block);
        }
        pool.give(old);
    }
}

impl Drop for ReadModifyWrite {
    fn drop(&mut self) {
        // The free changes are over, because the submitter is gone.
        let Self { graces, seat, .. } = self;
        graces.drain(..).for_each(|grace| seat.pass(grace.ticket));
    }
}

/// Returns true if a free change may be in progress on these blocks. `but` is a task that has none there.
fn is_changing(tasks: &Tasks, block: u64, blocks: &Range<u64>, but: Option<TaskId>) -> bool {
    tasks.changing().any(|(id, task)| {
        let end = (task.offset + task.length).next_multiple_of(block);
        Some(id) != but && task.offset - task.offset % block < blocks.end && blocks.start < end
    })
}

#[cfg(test)]
mod tests;
