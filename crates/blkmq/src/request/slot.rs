//! Slots, the tokens that own what is in them, and the table that finds them.
#![expect(unsafe_code, reason = "a request's body is reached through its token, not through a lock")]

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::OnceLock;

use blkmq_sched::{ClientId, Info, IoPriority, MergeHow, MergeLevel, Op, RqId, Time};

use super::state::{Deadline, Late, Place, State, TimeoutVerdict};
use crate::Status;
use crate::bio::{Bio, Flags};
use crate::buffer::Segment;
use crate::limits::SECTOR_SIZE;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::tags::Tag;

/// The address of a slot: its pool in the upper half, its place there in the lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// The address of no slot.
pub(crate) const NIL: SlotIndex = SlotIndex(u32::MAX);

impl SlotIndex {
    pub(crate) const fn new(pool: u16, slot: u16) -> Self {
        Self((pool as u32) << 16 | slot as u32)
    }

    pub(crate) const fn pool(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(crate) const fn with_generation(self, generation: u32) -> RqId {
        RqId((generation as u64) << 32 | self.0 as u64)
    }

    pub(crate) const fn of(id: RqId) -> Self {
        Self(id.0 as u32)
    }
}

pub(crate) const fn generation_of(id: RqId) -> u32 {
    (id.0 >> 32) as u32
}

/// The steps a request has before it in the flush machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FlushStep {
    /// It is no business of the flush machine.
    #[default]
    None,
    /// It waits for a flush before its data.
    PreFlush,
    /// Its data is on the way to the device.
    Data,
    /// It waits for a flush after its data.
    PostFlush,
    /// It is the flush itself, the queue's own.
    Flush,
}

/// The piece of a bio that a slot stands for. A bio that fits the limits has one, a split one has several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The slot that holds the bio; of the same submitter.
    pub(crate) parent: SlotIndex,
    /// First sector of this part alone.
    pub(crate) sector: u64,
    /// Sectors of this part alone.
    pub(crate) nr_sectors: u32,
    /// Where this part's data begins in the bio's buffers, in bytes.
    pub(crate) offset: usize,
}

/// A request, owned by whoever has its token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) sync: bool,
    pub(crate) priority: IoPriority,
    pub(crate) client: ClientId,
    pub(crate) merge: MergeLevel,
    /// First sector of the whole request.
    pub(crate) sector: u64,
    /// Sectors of the whole request.
    pub(crate) nr_sectors: u32,
    /// Segments of the whole request; ranges, for a discard.
    pub(crate) nr_segments: u16,
    /// Operations, after splitting, that the whole request stands for: more than one once something merged into it.
    pub(crate) nr_parts: u32,
    /// The parts of the whole request in the order of their sectors, beginning with this slot until something merges
    /// in front of it.
    pub(crate) first: SlotIndex,
    pub(crate) last: SlotIndex,
    /// This slot's own part.
    pub(crate) part: Part,
    pub(crate) hctx: u16,
    pub(crate) tag: Option<Tag>,
    pub(crate) status: Status,
    pub(crate) flush: FlushStep,
    /// The flush machine sends a flush behind this request's data.
    pub(crate) post_flush: bool,
    /// The scheduler dispatched it, and counts it until it completes.
    pub(crate) ordered: bool,
    /// When the operation was submitted, when the driver got it, and when it was completed.
    pub(crate) submitted: Time,
    pub(crate) issued: Time,
    pub(crate) completed: Time,
}

impl Body {
    pub(crate) const EMPTY: Self = Self {
        op: Op::Flush,
        flags: Flags {
            sync: false,
            preflush: false,
            fua: false,
            readahead: false,
            meta: false,
            nowait: false,
            polled: false,
            at_head: false,
            nomerge: false,
        },
        sync: false,
        priority: IoPriority { class: blkmq_sched::Class::BestEffort, level: 4 },
        client: ClientId(0),
        merge: MergeLevel::Never,
        sector: 0,
        nr_sectors: 0,
        nr_segments: 0,
        nr_parts: 1,
        first: NIL,
        last: NIL,
        part: Part { parent: NIL, sector: 0, nr_sectors: 0, offset: 0 },
        hctx: 0,
        tag: None,
        status: Status::Ok,
        flush: FlushStep::None,
        post_flush: false,
        ordered: false,
        submitted: Time(0),
        issued: Time(0),
        completed: Time(0),
    };

    /// Requests whose keys differ must not merge: another client, priority, or way of completion.
    pub(crate) fn merge_key(&self) -> u64 {
        u64::from(self.client.0) << 32
            | (self.priority.class.index() as u64) << 16
            | u64::from(self.priority.level) << 8
            | u64::from(self.flags.nowait) << 1
            | u64::from(self.flags.polled)
    }

    pub(crate) fn info(&self) -> Info {
        Info {
            sector: self.sector,
            nr_sectors: self.nr_sectors,
            nr_segments: self.nr_segments,
            op: self.op,
            sync: self.sync,
            priority: self.priority,
            client: self.client,
            merge: self.merge,
            merge_key: self.merge_key(),
        }
    }
}

/// A place for one request.
///
/// # Invariants
/// 1. `body` is reached only through the one [`Request`] token of the slot. Tokens are made by [`Slots::take_own`] for the
///    slot's submitter when the slot is free, and by [`Slots::adopt`] from an address that a token left behind.
/// 2. `bio` is written only by the slot's submitter while no part of it is in flight, and read by the holders of its
///    parts' tokens.
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) state: State,
    pub(crate) deadline: Deadline,
    /// Link of the list or stack that the request is on.
    pub(crate) next: AtomicU32,
    /// The part behind this one in the same request; touched only by the holder of that request's token.
    next_part: AtomicU32,
    body: UnsafeCell<Body>,
    bio: UnsafeCell<Option<Bio>>,
}

// SAFETY: Invariants 1 and 2: cells have one writer at a time, and tokens move between threads only over lists, locks
// and stacks that publish what was written. `Bio` and `Body` are `Send` and `Sync`.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        Self {
            state: State::new(),
            deadline: Deadline::new(),
            next: AtomicU32::new(NIL.0),
            next_part: AtomicU32::new(NIL.0),
            body: UnsafeCell::new(Body::EMPTY),
            bio: UnsafeCell::new(None),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("state", &self.state.look()).finish_non_exhaustive()
    }
}

/// The pools of all submitters. A pool is made once, used again by later submitters, and never goes before the queue,
/// so an address stays good however old it is.
#[derive(Debug)]
pub(crate) struct Slots {
    pools: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Slots {
    pub(crate) fn new(nr_pools: usize) -> Self {
        Self { pools: (0..nr_pools).map(|_| OnceLock::new()).collect() }
    }

    /// Makes a pool, if it is not there yet.
    pub(crate) fn make_pool(&self, pool: u16, nr_slots: u16) {
        let _ = self.pools[usize::from(pool)].get_or_init(|| (0..nr_slots).map(|_| Slot::new()).collect());
    }

    /// Every pool that was made, with its number.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (u16, &[Slot])> {
        (0u16..).zip(self.pools.iter()).filter_map(|(number, pool)| Some((number, &**pool.get()?)))
    }

    /// The slot at an address. COST: one dependent load beside the slot's own line.
    pub(crate) fn slot(&self, index: SlotIndex) -> &Slot {
        let pool = self.pools[usize::from(index.pool())].get().expect("an address names a pool that was made");
        &pool[usize::from(index.slot())]
    }

    /// The slot an id names, if there is one.
    pub(crate) fn find(&self, id: RqId) -> Option<(&Slot, u32)> {
        let index = SlotIndex::of(id);
        let pool = self.pools.get(usize::from(index.pool()))?.get()?;
        Some((pool.get(usize::from(index.slot()))?, generation_of(id)))
    }

    /// The link of the list or stack that a request is on.
    pub(crate) fn link(&self, index: u32) -> &AtomicU32 {
        &self.slot(SlotIndex(index)).next
    }

    /// Begins an operation in a slot of the caller's own pool.
    ///
    /// # Panics
    /// If the slot is in use: its submitter has lost count.
    pub(crate) fn take_own(&self, index: SlotIndex) -> Request<'_> {
        let slot = self.slot(index);
        assert_eq!(slot.state.look().1, Place::Free, "a slot in use is not taken again");
        slot.state.rest_at(Place::Held);
        // SAFETY: a free slot has no token, and only its pool's submitter takes from the pool.
        unsafe { self.adopt(index) }
    }

    /// Takes a slot back whose parts have all come home.
    ///
    /// # Panics
    /// If the slot is elsewhere.
    pub(crate) fn take_back(&self, index: SlotIndex) -> Request<'_> {
        let slot = self.slot(index);
        assert_eq!(slot.state.look().1, Place::Completed, "a part came home twice");
        // SAFETY: the submitter took the slot's own part off its completion ring, and left it there until now.
        unsafe { self.adopt(index) }
    }

    /// Stores the operation whose parts were just put in the plug. Called by their submitter before they leave it.
    pub(crate) fn store_bio(&self, parent: SlotIndex, bio: Bio) {
        let slot = self.slot(parent);
        debug_assert!(matches!(slot.state.look().1, Place::Plugged | Place::Merged | Place::Completed));
        // SAFETY: Invariant 2: the parts are in the submitter's hands.
        unsafe { *slot.bio.get() = Some(bio) };
    }

    /// Begins a flush of the queue's own. Called under the hardware queue's flush lock when none is running.
    ///
    /// # Panics
    /// If the slot is in use: the flush machine has lost count.
    pub(crate) fn take_flush(&self, index: SlotIndex) -> Request<'_> {
        self.take_own(index)
    }

    /// Makes the token of a request again from the address that [`Request::leave_at`] left on a list.
    ///
    /// # Safety
    /// The caller took the address off the only list it was on, or won the transition out of its place.
    pub(crate) unsafe fn adopt(&self, index: SlotIndex) -> Request<'_> {
        Request { slots: self, index }
    }

    /// The driver completes a request: its token, if nobody else has completed it. `Ok(None)`: the timeout scan is
    /// asking about it just now and will complete it with this status. `Err`: the driver has no such request.
    pub(crate) fn complete(&self, id: RqId, status: Status) -> Result<Option<Request<'_>>, ()> {
        let (slot, generation) = self.find(id).ok_or(())?;
        match slot.state.complete(generation, status) {
            Late::Taken => {
                // SAFETY: the transition lets one caller past, and until then the request had no token.
                let mut rq = unsafe { self.adopt(SlotIndex::of(id)) };
                rq.body_mut().status = status;
                Ok(Some(rq))
            }
            Late::LeftToScan => Ok(None),
            Late::Stale => Err(()),
        }
    }

    /// The timeout scan is done with a request it reserved by `State::begin_timeout`: the token, if the scan has to
    /// complete it.
    pub(crate) fn end_timeout(&self, id: RqId, expired: bool) -> Option<Request<'_>> {
        let (slot, generation) = self.find(id)?;
        match slot.state.end_timeout(generation, expired) {
            TimeoutVerdict::StillIssued => None,
            TimeoutVerdict::Finish(status) => {
                // SAFETY: the scan won the transition, and until then the request had no token.
                let mut rq = unsafe { self.adopt(SlotIndex::of(id)) };
                rq.body_mut().status = status;
                Some(rq)
            }
        }
    }

    /// The request a scheduler chose, or that left it by merging.
    ///
    /// # Panics
    /// If the scheduler names a request that it does not have: its books are broken, and going on would lose data.
    pub(crate) fn leave_scheduler(&self, id: RqId) -> Request<'_> {
        let found = self.find(id);
        let (slot, generation) = found.expect("a scheduler hands back ids it was given");
        assert!(slot.state.leave_scheduler(generation), "{id:?} left the scheduler twice: {:?}", slot.state.look());
        // SAFETY: the transition out of `Scheduler` succeeded, and only the scheduler's holder makes it.
        unsafe { self.adopt(SlotIndex::of(id)) }
    }
}

/// A request in the hands of one thread. There is at most one value of this kind per request; giving it away gives the
/// request away.
pub struct Request<'q> {
    slots: &'q Slots,
    index: SlotIndex,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        write!(f, "{:?} {:?} {}+{} tag {:?}", self.id(), body.op, body.sector, body.nr_sectors, body.tag)
    }
}

impl<'q> Request<'q> {
    /// Its id: unique among all operations of the queue until the slot has been used 2^32 times more.
    #[must_use]
    pub fn id(&self) -> RqId {
        self.index.with_generation(self.slot().state.generation())
    }

    /// What to do.
    #[must_use]
    pub fn op(&self) -> Op {
        self.body().op
    }

    /// First sector, in units of 512 bytes.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.body().sector
    }

    /// Length in sectors of 512 bytes; of a discard of several ranges, all of them together.
    #[must_use]
    pub fn nr_sectors(&self) -> u32 {
        self.body().nr_sectors
    }

    /// How to do it. `preflush` is never set: the block layer sends flushes of its own.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.body().flags
    }

    /// The priority.
    #[must_use]
    pub fn priority(&self) -> IoPriority {
        self.body().priority
    }

    /// The tag: below the hardware queue's depth, and unique among the requests that the driver has from it.
    #[must_use]
    pub fn tag(&self) -> u16 {
        self.body().tag.map_or(0, |tag| tag.0)
    }

    /// The hardware queue it was issued to.
    #[must_use]
    pub fn hctx(&self) -> u16 {
        self.body().hctx
    }

    /// The data in the order of the sectors; nothing for operations without data.
    pub fn segments(&mut self) -> impl Iterator<Item = Segment<'_>> {
        self.parts().flat_map(|part| {
            let bio = self.slots.slot(part.parent).bio.get();
            // SAFETY: slot Invariant 2: this token's parts are in flight, so nobody writes the bio.
            let bio = unsafe { &*bio };
            bio.iter().flat_map(move |bio| bio.buffers.segments(part.offset, part.nr_sectors as usize * SECTOR_SIZE))
        })
    }

    /// The ranges of a discard, or the one range of anything else: first sector and length in sectors.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u32)> {
        let mut parts = self.parts().peekable();
        std::iter::from_fn(move || {
            let Part { sector, mut nr_sectors, .. } = parts.next()?;
            while let Some(part) = parts.next_if(|part| part.sector == sector + u64::from(nr_sectors)) {
                nr_sectors += part.nr_sectors;
            }
            Some((sector, nr_sectors))
        })
    }

    /// The parts of the whole request.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let mut at = self.body().first;
        std::iter::from_fn(move || {
            if at == NIL {
                return None;
            }
            let slot = self.slots.slot(at);
            at = SlotIndex(slot.next_part.load(Ordering::Relaxed));
            // SAFETY: merging gave this token the bodies of its parts (slot Invariant 1), and no `&mut` to one lives.
            Some(unsafe { (*slot.body.get()).part })
        })
    }

    pub(crate) fn index(&self) -> SlotIndex {
        self.index
    }

    pub(crate) fn slot(&self) -> &'q Slot {
        self.slots.slot(self.index)
    }

    pub(crate) fn body(&self) -> &Body {
        // SAFETY: slot Invariant 1.
        unsafe { &*self.slot().body.get() }
    }

    pub(crate) fn body_mut(&mut self) -> &mut Body {
        // SAFETY: slot Invariant 1.
        unsafe { &mut *self.slot().body.get() }
    }

    /// Takes the bio out again when all its parts are back.
    pub(crate) fn take_bio(&mut self) -> Option<Bio> {
        // SAFETY: slot Invariant 2, all parts are back with the submitter.
        unsafe { (*self.slot().bio.get()).take() }
    }

    /// Puts the request down at a place and leaves its address, from which [`Slots::adopt`] makes the token again.
    #[must_use]
    pub(crate) fn leave_at(self, place: Place) -> SlotIndex {
        self.slot().state.rest_at(place);
        self.index
    }

    /// Gives the request to the driver; only its completion or the timeout scan makes the token again.
    pub(crate) fn issue(self, deadline: Time) -> RqId {
        let slot = self.slot();
        slot.deadline.set(deadline);
        let id = self.id();
        slot.state.issue();
        id
    }

    /// Ends the operation; the slot is free.
    pub(crate) fn free(self) -> u16 {
        self.slot().state.free();
        self.index.slot()
    }

    /// Takes the other request's parts in, behind or in front of its own. The caller has checked that they fit.
    pub(crate) fn absorb(&mut self, other: Self, how: MergeHow) {
        debug_assert_ne!(other.index, self.index, "a request does not merge with itself");
        let theirs = *other.body();
        let _ = other.leave_at(Place::Merged);
        let slots = self.slots;
        let ours = self.body_mut();
        ours.nr_sectors += theirs.nr_sectors;
        ours.nr_segments += theirs.nr_segments;
        ours.nr_parts += theirs.nr_parts;
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
