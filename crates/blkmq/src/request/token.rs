//! The token of a request: the thread that has the token owns the request.
#![expect(unsafe_code, reason = "a request's body is reached through its token, not through a lock")]

use std::fmt;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use blkmq_sched::{IoPriority, MergeHow, Op, RqId, Time};

use super::body::{Body, Part};
use super::index::{NIL, SlotIndex};
use super::slot::{Slot, Slots};
use super::state::{LateCompletion, Location};
use crate::request::bio::{Bio, Flags};
use crate::request::buffer::Segment;
use crate::request::limits::SECTOR_SIZE;
use crate::request::pages::PagesPart;
use crate::request::status::Status;
use blkmq_sync::atomic::Ordering;
use blkmq_sync::unless_mutated;

/// A request in the hands of one thread. There is at most one value of this kind per request. A thread that gives the
/// value away gives the request away.
///
/// # Panics
/// If the value is dropped, because the submitter of the request would then wait forever. A driver
/// [finishes](crate::driver::Batch::finish), [starts](crate::driver::Batch::start),
/// [borrows](crate::driver::Batch::borrow), [gives back](crate::driver::Batch::requeue) or
/// [refuses](crate::driver::Batch::refuse) each request that it takes.
#[must_use = "a request that is dropped is never over: finish, start, borrow, requeue or refuse it"]
pub struct Request<'q> {
    pub(super) slots: &'q Slots,
    pub(super) slot: &'q Slot,
}

impl Drop for Request<'_> {
    #[inline]
    fn drop(&mut self) {
        lose(self.slot);
    }
}

/// A token is dropped. A thread that panics already says only what became of the request.
///
/// COST: nothing where no token is dropped. The slot comes by value: a token that is passed by its address here would
/// live in memory wherever a panic could drop it, and not in registers.
#[cold]
#[inline(never)]
fn lose(slot: &Slot) {
    // SAFETY: slot Invariant 1: the token that ends here is the only one.
    let Body { hctx, op, sector, nr_sectors, tag, .. } = **unsafe { &*slot.body.get() };
    let tag = tag.map_or_else(|| "no tag".to_owned(), |tag| format!("tag {}", tag.0));
    let lost = format!(
        "a request was dropped: hardware queue {hctx}, {tag}, {op:?} of {nr_sectors} sectors from sector {sector}; its \
         submitter would wait forever; a driver must finish, start, borrow, requeue or refuse each request that it takes"
    );
    if std::thread::panicking() {
        // A second panic would end the process. The torture rig reports by itself what it found.
        if cfg!(not(virtual_cpus)) {
            let _ = writeln!(io::stderr(), "{lost}");
        }
        return;
    }
    panic!("{lost}");
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        write!(f, "{:?} {:?} {}+{} tag {:?}", self.id(), body.op, body.sector, body.nr_sectors, body.tag)
    }
}

impl<'q> Request<'q> {
    /// The request's id: unique among all operations of the queue until the slot has been used 2^32 times more.
    #[inline]
    #[must_use]
    pub fn id(&self) -> RqId {
        self.index().with_generation(self.slot().state.generation())
    }

    /// What to do.
    #[inline]
    #[must_use]
    pub fn op(&self) -> Op {
        self.body().op
    }

    /// First sector, in units of 512 bytes.
    #[inline]
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.body().sector
    }

    /// Length in sectors of 512 bytes. For a discard of several ranges, the sum of their lengths.
    #[inline]
    #[must_use]
    pub fn nr_sectors(&self) -> u32 {
        self.body().nr_sectors
    }

    /// How to do it. `preflush` is never set: the block layer sends flushes of its own.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.body().flags
    }

    /// The priority.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> IoPriority {
        self.body().priority
    }

    /// The tag: below the hardware queue's depth, and unique among the requests that the driver has from that queue.
    #[must_use]
    pub fn tag(&self) -> u16 {
        self.body().tag.filter(|_| unless_mutated("request.tag")).map_or(0, |tag| tag.0)
    }

    /// The hardware queue to which the request was issued.
    #[inline]
    #[must_use]
    pub fn hctx(&self) -> u16 {
        self.body().hctx
    }

    /// The data in the order of the sectors; nothing for operations without data.
    pub fn segments(&mut self) -> impl Iterator<Item = Segment<'_>> {
        // SAFETY: this is the request's token, and the segments borrow it.
        unsafe { segments(self.slots, self.slot) }
    }

    /// The pages of the kernel that are the request's data. `None` for a request whose data is in memory of this
    /// process, or that has none.
    #[must_use]
    pub fn pages(&self) -> Option<PagesPart<'_>> {
        // SAFETY: this is the request's token. A request with pages has one part, because it never merges.
        let part = unsafe { parts(self.slots, self.slot) }.next()?;
        // SAFETY: the request's parts are in flight.
        let bio = unsafe { bio_of(self.slots, part) }?;
        bio.buffers.pages().map(|pages| pages.part(part.offset, part.nr_sectors as usize * SECTOR_SIZE))
    }

    /// The ranges of a discard, or the one range of any other operation: first sector and length in sectors. Ranges of
    /// one discard may touch, because joined they might cross the boundary that each of them keeps to.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u32)> {
        let has_ranges = self.body().has_ranges;
        // SAFETY: this is the request's token.
        let mut parts = unsafe { parts(self.slots, self.slot) }.peekable();
        std::iter::from_fn(move || {
            let Part { sector, mut nr_sectors, .. } = parts.next()?;
            while let Some(part) = parts.next_if(|part| !has_ranges && part.sector == sector + u64::from(nr_sectors)) {
                nr_sectors += part.nr_sectors;
            }
            Some((sector, nr_sectors))
        })
    }

    /// Ends the token, whose slot stays as it is.
    #[inline]
    fn end(self) -> &'q Slot {
        ManuallyDrop::new(self).slot
    }

    #[inline]
    pub(crate) fn is_of(&self, slots: &Slots) -> bool {
        std::ptr::eq(self.slots, slots)
    }

    #[inline]
    pub(crate) fn index(&self) -> SlotIndex {
        self.slot.index
    }

    #[inline]
    pub(super) fn slot(&self) -> &'q Slot {
        self.slot
    }

    #[inline]
    pub(crate) fn body(&self) -> &Body {
        // SAFETY: slot Invariant 1.
        unsafe { &*self.slot().body.get() }
    }

    #[inline]
    pub(crate) fn body_mut(&mut self) -> &mut Body {
        // SAFETY: slot Invariant 1.
        unsafe { &mut *self.slot().body.get() }
    }

    /// Stores the operation that this whole request stands for, as long as the request is in its submitter's hands.
    /// `bio` hands the operation over, straight into its place.
    #[inline]
    pub(crate) fn put_bio(&mut self, bio: impl FnOnce() -> Bio) {
        // SAFETY: slot Invariant 2: the only part of the bio is this token.
        let cell = unsafe { &mut *self.slot().bio.get() };
        cell.put(bio);
    }

    /// Takes the bio out again when all its parts are back.
    ///
    /// # Panics
    /// If there is none: the submitter has lost count.
    #[inline]
    pub(crate) fn take_bio(&mut self) -> Bio {
        // SAFETY: slot Invariant 2, all parts are back with the submitter.
        let cell = unsafe { &mut *self.slot().bio.get() };
        cell.take()
    }

    /// Notes the place of a request that moves together with its list.
    #[inline]
    pub(crate) fn rest_at(&mut self, location: Location) {
        self.slot().state.rest_at(location);
    }

    /// Puts the request down at a place and leaves its address, from which [`Slots::adopt`] makes the token again.
    #[inline]
    #[must_use]
    pub(crate) fn leave_at(self, location: Location) -> SlotIndex {
        let slot = self.end();
        slot.state.rest_at(location);
        slot.index
    }

    /// Gives the request to the driver. Only the completion of the request makes the token again, or the timeout scan
    /// unless the request `is_borrowed`.
    #[inline]
    pub(crate) fn issue(self, deadline: Time, is_borrowed: bool) -> RqId {
        let id = self.id();
        let slot = self.end();
        slot.deadline.store(deadline.0, Ordering::Relaxed);
        slot.state.issue(is_borrowed);
        id
    }

    /// Ends the operation; the slot is free.
    #[inline]
    pub(crate) fn free(self) -> u16 {
        let slot = self.end();
        slot.state.free();
        slot.index.slot()
    }

    /// Takes the other request's parts in, behind or in front of its own. The caller has checked that they fit.
    pub(crate) fn absorb(&mut self, other: Self, how: MergeHow) {
        debug_assert_ne!(other.index(), self.index(), "a request does not merge with itself");
        let theirs = *other.body();
        // For this reason no key that must agree has a bit for FUA.
        debug_assert!(
            !self.body().flags.fua && !theirs.flags.fua,
            "a request with FUA is submitted as one that never merges"
        );
        let _ = other.leave_at(Location::Merged);
        let slots = self.slots;
        let ours = self.body_mut();
        ours.nr_sectors += theirs.nr_sectors;
        // Two ranges that touch are one range to a device that takes no more than one; see `MergeLimits::merged`.
        let touching = ours.op == Op::Discard && how != MergeHow::Discard;
        ours.nr_segments += theirs.nr_segments - u16::from(touching);
        ours.nr_parts += theirs.nr_parts;
        ours.has_ranges |= theirs.has_ranges || how == MergeHow::Discard;
        let before = match how {
            MergeHow::Back | MergeHow::Discard => std::mem::replace(&mut ours.last, theirs.last),
            MergeHow::Front => {
                ours.sector = theirs.sector;
                theirs.last
            }
        };
        let behind =
            if how == MergeHow::Front { std::mem::replace(&mut ours.first, theirs.first) } else { theirs.first };
        slots.slot(before).next_part.store(behind.0, Ordering::Relaxed);
    }

    /// Takes the request apart: `each` gets the token of every part's slot, this request's own among them.
    pub(crate) fn into_parts(self, mut each: impl FnMut(Request<'q>)) {
        let slots = self.slots;
        let Body { status, issued, completed, .. } = *self.body();
        let mut at = self.body().first;
        self.end();
        while at != NIL {
            let link = &slots.slot(at).next_part;
            let next = SlotIndex(link.load(Ordering::Relaxed));
            link.store(NIL.0, Ordering::Relaxed);
            // SAFETY: the slot is a part of this request, which is consumed here; each part is visited once.
            let mut part = unsafe { slots.adopt(at) };
            let body = part.body_mut();
            (body.status, body.issued, body.completed) = (status, issued, completed);
            each(part);
            at = next;
        }
    }
}

/// The parts of the whole request in `slot`.
///
/// # Safety
/// The caller has the request's token, or has borrowed it, as long as the iterator lives.
unsafe fn parts(slots: &Slots, slot: &Slot) -> impl Iterator<Item = Part> {
    // SAFETY: slot Invariant 1.
    let mut at = unsafe { &*slot.body.get() }.first;
    std::iter::from_fn(move || {
        if at == NIL {
            return None;
        }
        let slot = slots.slot(at);
        at = SlotIndex(slot.next_part.load(Ordering::Relaxed));
        // SAFETY: merging gave the token the bodies of its parts (slot Invariant 1), and no `&mut` to one lives.
        Some(unsafe { &*slot.body.get() }.part)
    })
}

/// The bio of a part.
///
/// # Safety
/// The part is in flight as long as the bio is borrowed.
unsafe fn bio_of(slots: &Slots, part: Part) -> Option<&Bio> {
    let bio = slots.slot(part.parent).bio.get();
    // SAFETY: slot Invariant 2: the part is in flight, so no thread writes the bio.
    unsafe { &*bio }.get()
}

/// The data of the request in `slot`, in the order of the sectors.
///
/// # Safety
/// The caller has the request's token, or has borrowed it, for itself as long as the segments live.
pub(super) unsafe fn segments<'a>(slots: &'a Slots, slot: &'a Slot) -> impl Iterator<Item = Segment<'a>> {
    // SAFETY: as the caller says.
    unsafe { parts(slots, slot) }.flat_map(|part| {
        // SAFETY: the request's parts are in flight.
        let bio = unsafe { bio_of(slots, part) }.into_iter();
        bio.flat_map(move |bio| bio.buffers.segments(part.offset, part.nr_sectors as usize * SECTOR_SIZE))
    })
}

/// How tokens come to be: each function says why there is no other.
impl Slots {
    /// Begins an operation in a slot of the caller's own pool.
    ///
    /// # Panics
    /// If the slot is in use: its submitter has lost count.
    #[inline]
    pub(crate) fn take_own(&self, index: SlotIndex) -> Request<'_> {
        let slot = self.slot(index);
        assert!(slot.state.is_at(Location::Free), "a slot in use is not taken again");
        slot.state.rest_at(Location::Held);
        // SAFETY: a free slot has no token, and only its pool's submitter takes from the pool.
        unsafe { self.adopt(index) }
    }

    /// Takes back a slot whose parts have all come home.
    ///
    /// # Panics
    /// If the slot is elsewhere.
    pub(crate) fn take_back(&self, index: SlotIndex) -> Request<'_> {
        let slot = self.slot(index);
        assert!(slot.state.is_at(Location::Completed), "a part came home twice");
        // SAFETY: the submitter took the slot's own part off its completion ring, and left it there until now.
        unsafe { self.adopt(index) }
    }

    /// Makes the token of a request again from the address that [`Request::leave_at`] left on a list.
    ///
    /// # Safety
    /// The caller took the address off the only list it was on, or won the transition out of its place.
    #[inline]
    pub(super) unsafe fn adopt(&self, index: SlotIndex) -> Request<'_> {
        Request { slots: self, slot: self.slot(index) }
    }

    /// Like [`adopt`](Self::adopt), for a request that ended with this status.
    ///
    /// # Safety
    /// As for [`adopt`](Self::adopt).
    #[inline]
    unsafe fn adopt_with(&self, index: SlotIndex, status: Status) -> Request<'_> {
        // SAFETY: as the caller says.
        let mut rq = unsafe { self.adopt(index) };
        rq.body_mut().status = status;
        rq
    }

    /// Like [`adopt`](Self::adopt), by the slot itself.
    ///
    /// # Safety
    /// As for [`adopt`](Self::adopt), and the slot belongs to one of these pools.
    #[inline]
    pub(super) unsafe fn adopt_at(&self, slot: NonNull<Slot>) -> Request<'_> {
        // SAFETY: a pool never goes before the value that holds it, which outlives this borrow.
        let slot = unsafe { slot.as_ref() };
        Request { slots: self, slot }
    }

    /// The driver completes a request. `is_borrowed`: the driver has borrowed it. Returns the request's token, if no
    /// other thread has completed it. `Ok(None)`: the timeout scan is asking about the request just now and will
    /// complete it with this status. `Err`: the driver has no such request.
    pub(crate) fn complete(&self, id: RqId, status: Status, is_borrowed: bool) -> Result<Option<Request<'_>>, ()> {
        let (slot, generation) = self.find(id).ok_or(())?;
        match slot.state.complete(generation, status, is_borrowed) {
            // SAFETY: the transition lets one caller past, and until then the request had no token.
            LateCompletion::Taken => Ok(Some(unsafe { self.adopt_with(SlotIndex::of(id), status) })),
            LateCompletion::LeftToScan => Ok(None),
            LateCompletion::Stale => Err(()),
        }
    }

    /// The timeout scan is done with a request that it reserved by [`begin_timeout`](Self::begin_timeout). `expired`:
    /// the driver has given the request up, which means nothing if it is borrowed. Otherwise the request is overdue
    /// `again` at this time. Returns the token, if the scan has to complete the request.
    pub(crate) fn end_timeout(&self, id: RqId, expired: bool, again: Time) -> Option<Request<'_>> {
        let (slot, generation) = self.find(id)?;
        let expired = expired && !slot.state.is_borrowed();
        if !expired {
            slot.deadline.store(again.0, Ordering::Relaxed);
        }
        let status = slot.state.end_timeout(generation, expired);
        debug_assert!(status.is_some() || !expired, "a request that the driver gave up is finished: {id:?}");
        // SAFETY: the scan won the transition, and until then the request had no token.
        status.map(|status| unsafe { self.adopt_with(SlotIndex::of(id), status) })
    }

    /// The request that a scheduler chose, or that left it by merging.
    ///
    /// # Panics
    /// If the scheduler names a request that it does not have. The scheduler's state is then wrong, and going
    /// on would lose data.
    pub(crate) fn leave_scheduler(&self, id: RqId) -> Request<'_> {
        let found = self.find(id);
        let (slot, generation) = found.expect("a scheduler hands back ids it was given");
        assert!(slot.state.leave_scheduler(generation), "{id:?} left the scheduler twice: {:?}", slot.state.look());
        // SAFETY: the transition out of `Scheduler` succeeded, and only the scheduler's holder makes it.
        unsafe { self.adopt(SlotIndex::of(id)) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plugged, slots};
    use super::*;
    use crate::request::status::Status;

    #[test]
    fn a_merged_request_shows_all_data_in_the_order_of_sectors() {
        let slots = slots(4);
        let mut middle = plugged(&slots, 0, 16, &[2; 512]);
        middle.absorb(plugged(&slots, 1, 17, &[3; 1024]), MergeHow::Back);
        middle.absorb(plugged(&slots, 2, 14, &[1; 1024]), MergeHow::Front);
        assert_eq!((middle.sector(), middle.nr_sectors()), (14, 5));
        assert_eq!(middle.ranges().collect::<Vec<_>>(), [(14, 5)]);
        let bytes: Vec<u8> = middle.segments().flat_map(|segment| segment.to_vec()).collect();
        let expected: Vec<u8> = [vec![1; 1024], vec![2; 512], vec![3; 1024]].concat();
        assert_eq!(bytes, expected);
        for mut segment in middle.segments() {
            segment.fill(9);
        }
        let mut parts = Vec::new();
        middle.body_mut().status = Status::Medium;
        middle.into_parts(|mut part| {
            assert_eq!(part.body().status, Status::Medium);
            let bio = part.take_bio();
            assert!(bio.buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 9)));
            parts.push(part.free());
        });
        assert_eq!(parts, [2, 0, 1]);
    }

    #[test]
    fn a_request_that_took_in_a_merged_request_has_all_parts() {
        let slots = slots(4);
        let mut first = plugged(&slots, 0, 0, &[0; 512]);
        let mut third = plugged(&slots, 2, 2, &[2; 512]);
        third.absorb(plugged(&slots, 3, 3, &[3; 512]), MergeHow::Back);
        first.absorb(plugged(&slots, 1, 1, &[1; 512]), MergeHow::Back);
        first.absorb(third, MergeHow::Back);
        let mut parts = Vec::new();
        first.into_parts(|part| parts.push(part.free()));
        assert_eq!(parts, [0, 1, 2, 3]);
    }
}
