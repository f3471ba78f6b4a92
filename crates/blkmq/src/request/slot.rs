//! Slots, and the table that finds them.
#![expect(unsafe_code, reason = "slots hand out the tokens that own them, and share their cells between threads")]

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use blkmq_sched::{RqId, Time};

use super::body::Body;
use super::index::{NIL, SlotIndex, generation_of};
use super::state::{Location, StateWord};
use crate::request::bio::Bio;
use blkmq_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use blkmq_sync::{Tracked, fetch, place_anew};

/// A place for one request.
///
/// # Invariants
/// 1. `body` and `ahead` are reached only through the one [`Request`](super::Request) token of the slot. Tokens are
///    made by [`Slots::take_own`] for the slot's submitter when the slot is free and on no list of free ones, and by
///    [`Slots::adopt`] from an address that a token left behind.
/// 2. `bio` is written only by the slot's submitter while no part of it is in flight, and read by the holders of its
///    parts' tokens.
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) state: StateWord,
    /// The slot behind this one on a list. Only the thread that has the list touches it.
    pub(super) next: AtomicPtr<Self>,
    /// Where this slot is.
    pub(super) index: SlotIndex,
    /// Link of the stack that the request is on.
    pub(super) link: AtomicU32,
    /// The part behind this one in the same request. Only the holder of that request's token touches it.
    pub(super) next_part: AtomicU32,
    /// Nanoseconds: when a request that the driver has is overdue. The timeout scan reads this while other threads own
    /// the request.
    pub(super) deadline: AtomicU64,
    pub(super) ahead: UnsafeCell<Tracked<Ahead>>,
    pub(super) body: UnsafeCell<Tracked<Body>>,
    pub(super) bio: UnsafeCell<Tracked<BioCell>>,
}

/// How many slots another slot tells of.
pub(super) const AHEAD: usize = 5;

/// The slots that come behind this one on a chain that was left, the next one first, as far as this slot tells of
/// them. So the thread that takes the chain need not wait for one slot's line to learn where the next one is. Only a
/// hint.
pub(super) type Ahead = [SlotIndex; AHEAD];

/// A bio or none. An `Option` would not do: the mark of an `Option` would lie inside the bio. The bio would then be
/// moved in odd pieces, for which the next move has to wait.
pub(super) struct BioCell {
    is_there: bool,
    bio: MaybeUninit<Bio>,
}

impl BioCell {
    const EMPTY: Self = Self { is_there: false, bio: MaybeUninit::uninit() };

    #[inline]
    pub(super) fn get(&self) -> Option<&Bio> {
        // SAFETY: `put` wrote it, and `take` has not taken it since.
        self.is_there.then(|| unsafe { self.bio.assume_init_ref() })
    }

    #[inline]
    pub(super) fn put(&mut self, bio: impl FnOnce() -> Bio) {
        assert!(!self.is_there, "a slot holds one bio");
        self.bio.write(bio());
        self.is_there = true;
    }

    #[inline]
    pub(super) fn take(&mut self) -> Bio {
        assert!(std::mem::take(&mut self.is_there), "a slot keeps its bio until all parts are back");
        // SAFETY: `put` wrote it, and the mark, which is cleared now, has kept other threads from taking it.
        unsafe { self.bio.assume_init_read() }
    }
}

impl Drop for BioCell {
    fn drop(&mut self) {
        if self.is_there {
            drop(self.take());
        }
    }
}

// COST: a request that does not merge touches the four lines of its slot; see the table in docs/performance.md.
const _: () = assert!(size_of::<Slot>() <= 256);

// SAFETY: Invariants 1 and 2: cells have one writer at a time, and tokens move between threads only over lists, locks
// and stacks that publish what was written. `Bio` and `Body` are `Send` and `Sync`.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(index: SlotIndex) -> Self {
        Self {
            state: StateWord::new(),
            next: AtomicPtr::new(std::ptr::null_mut()),
            index,
            link: AtomicU32::new(NIL.0),
            deadline: AtomicU64::new(u64::MAX),
            next_part: AtomicU32::new(NIL.0),
            ahead: UnsafeCell::new(Tracked::new([NIL; AHEAD])),
            body: UnsafeCell::new(Tracked::new(Body::EMPTY)),
            bio: UnsafeCell::new(Tracked::new(BioCell::EMPTY)),
        }
    }

    fn deadline(&self) -> Time {
        Time(self.deadline.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("state", &self.state.look()).finish_non_exhaustive()
    }
}

/// The pools of all submitters. A pool is made once, used again by later submitters, and lives as long as the queue.
/// So an address stays good however old it is.
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
        debug_assert!(nr_slots > 0, "a pool has slots");
        let slots = || (0..nr_slots).map(|slot| Slot::new(SlotIndex::new(pool, slot))).collect();
        let slots = self.pools[usize::from(pool)].get_or_init(slots);
        place_anew("request.slot", &**slots);
    }

    /// Every slot that is in use: its address, its generation, and where its request rests. For dumps.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (SlotIndex, u32, Location)> {
        let slots = self.pools.iter().filter_map(OnceLock::get).flatten();
        let looked = slots.map(|slot| (slot.index, slot.state.look()));
        looked
            .filter_map(|(index, (generation, place))| (place != Location::Free).then_some((index, generation, place)))
    }

    /// How many requests of a pool wait: in a software queue, in the scheduler or on the way to it, or on a dispatch
    /// list. What is a part of another request is not counted, nor what a thread is just moving.
    pub(crate) fn nr_waiting(&self, pool: u16) -> u32 {
        let waits = |place| {
            matches!(place, Location::SoftwareQueue | Location::Staged | Location::Scheduler | Location::DispatchList)
        };
        let slots = self.pools[usize::from(pool)].get().into_iter().flatten();
        slots.filter(|slot| waits(slot.state.look().1)).count() as u32
    }

    /// How many slots a pool has; none if it was not made.
    pub(super) fn nr_slots(&self, pool: u16) -> u16 {
        self.pools[usize::from(pool)].get().map_or(0, |slots| slots.len() as u16)
    }

    /// The slot at an address. COST: one dependent load beside the slot's own line.
    #[inline]
    pub(super) fn slot(&self, index: SlotIndex) -> &Slot {
        let pool = self.pools[usize::from(index.pool())].get().expect("an address names a pool that was made");
        &pool[usize::from(index.slot())]
    }

    /// The slot an id names, if there is one.
    pub(super) fn find(&self, id: RqId) -> Option<(&Slot, u32)> {
        let index = SlotIndex::of(id);
        let pool = self.pools.get(usize::from(index.pool()))?.get()?;
        Some((pool.get(usize::from(index.slot()))?, generation_of(id)))
    }

    /// Whether the driver has this request just now.
    pub(crate) fn is_with_driver(&self, id: RqId) -> bool {
        self.find(id).is_some_and(|(slot, generation)| slot.state.is_with_driver(generation))
    }

    /// Whether the driver has borrowed this request just now.
    pub(crate) fn is_borrowed(&self, id: RqId) -> bool {
        self.is_with_driver(id) && self.find(id).is_some_and(|(slot, _)| slot.state.is_borrowed())
    }

    /// When a request is overdue, if the driver has it and no thread asks the driver about it just now.
    pub(crate) fn deadline(&self, id: RqId) -> Option<Time> {
        let (slot, generation) = self.find(id)?;
        slot.state.is_issued(generation).then(|| slot.deadline())
    }

    /// The timeout scan reserves a request that the driver has. Returns when the request is overdue, which may be
    /// later than a look at [`deadline`](Self::deadline) found: the request may have been given back since, and
    /// issued anew.
    pub(crate) fn begin_timeout(&self, id: RqId) -> Option<Time> {
        let (slot, generation) = self.find(id)?;
        slot.state.begin_timeout(generation).then(|| slot.deadline())
    }

    /// Asks for the lines of a request that this thread will work on, beside the bio.
    #[inline]
    pub(super) fn fetch(&self, index: SlotIndex) {
        let slot = self.slot(index);
        fetch(&slot.state);
        fetch(&slot.body);
    }

    /// The link of the stack that a request is on.
    #[inline]
    pub(super) fn link(&self, index: u32) -> &AtomicU32 {
        &self.slot(SlotIndex(index)).link
    }

    /// Stores the operation whose parts were just put in the plug. Called by their submitter before they leave it.
    pub(crate) fn store_bio(&self, parent: SlotIndex, bio: Bio) {
        let slot = self.slot(parent);
        debug_assert!(
            matches!(slot.state.look().1, Location::Plugged | Location::Merged | Location::Completed),
            "an operation is stored while its parts are in its submitter's hands"
        );
        // SAFETY: Invariant 2: the parts are in the submitter's hands.
        let cell = unsafe { &mut *slot.bio.get() };
        cell.put(|| bio);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plugged, slots};
    use super::*;
    use crate::request::Request;
    use crate::request::status::Status;

    #[test]
    fn a_request_completes_once_and_its_id_goes_stale() {
        let slots = slots(1);
        let id = plugged(&slots, 0, 5, &[0; 512]).issue(Time(9), false);
        let rq = slots.complete(id, Status::Ok, false).unwrap().expect("nobody else completes it");
        assert!(slots.complete(id, Status::Ok, false).is_err(), "a second completion is refused");
        rq.free();
        assert!(slots.complete(id, Status::Ok, false).is_err(), "the id is of an earlier operation");
        assert!(slots.complete(RqId(u64::MAX), Status::Ok, false).is_err(), "there is no such slot");
    }

    /// Red if the mark of a borrowed request gets lost on the way, or does not keep other threads out: they would hand
    /// the borrowed request's memory back while the device reads or writes it.
    #[test]
    fn what_is_lent_only_the_loan_ends() {
        let slots = slots(1);
        let issue = |is_borrowed| plugged(&slots, 0, 5, &[0; 512]).issue(Time(9), is_borrowed);
        let end = |rq: Option<Request<'_>>| {
            let mut rq = rq.expect("nobody else completes it");
            drop(rq.take_bio());
            rq.free();
        };
        let id = issue(true);
        let (slot, generation) = slots.find(id).expect("it is there");
        assert!(slots.complete(id, Status::Medium, false).is_err());
        for expired in [false, true] {
            assert!(slot.state.is_issued(generation) && slot.state.begin_timeout(generation));
            assert!(slots.complete(id, Status::Medium, false).is_err());
            assert!(slots.end_timeout(id, expired, Time(9)).is_none(), "nobody can give it up");
        }
        assert!(slot.state.begin_timeout(generation));
        assert!(slots.complete(id, Status::Medium, true).unwrap().is_none(), "the scan has it");
        let rq = slots.end_timeout(id, true, Time(9));
        assert_eq!(rq.as_ref().map(|rq| rq.body().status), Some(Status::Medium), "it was given back");
        end(rq);
        end(slots.complete(issue(true), Status::Ok, true).unwrap());
        let id = issue(false);
        assert!(slots.complete(id, Status::Ok, true).is_err(), "it is not borrowed");
        end(slots.complete(id, Status::Ok, false).unwrap());
    }

    /// Red if `StateWord::complete` or `StateWord::end_timeout` stores instead of exchanging: both then take the
    /// request.
    #[test]
    fn of_completion_and_timeout_scan_exactly_one_gets_the_request() {
        let rounds = if cfg!(miri) { 30 } else { 3000 };
        let slots = slots(1);
        let status_of = |rq: Request<'_>| {
            let status = rq.body().status;
            let _ = rq.leave_at(Location::Held);
            status
        };
        for round in 0..rounds {
            let expired = round % 2 == 0;
            let id = plugged(&slots, 0, round, &[0; 512]).issue(Time(0), false);
            let taken = std::thread::scope(|scope| {
                let scan = scope.spawn(|| {
                    let (slot, generation) = slots.find(id).unwrap();
                    let rq = if slot.state.begin_timeout(generation) {
                        slots.end_timeout(id, expired, Time(9))
                    } else {
                        None
                    };
                    rq.map(status_of)
                });
                let done = slots.complete(id, Status::Medium, false);
                let done = done.ok().flatten().map(status_of);
                [scan.join().unwrap(), done]
            });
            let [scanned, completed] = taken;
            assert!(scanned.is_some() != completed.is_some(), "round {round}: {taken:?}");
            assert!(completed.is_none_or(|status| status == Status::Medium));
            // SAFETY: one of the two threads took the token and left it in its place; both have ended.
            let mut rq = unsafe { slots.adopt(SlotIndex::of(id)) };
            drop(rq.take_bio());
            rq.free();
        }
    }

    /// Red under Miri, which lets Relaxed loads see old values, if `StateWord::is_issued` does not acquire. The scan
    /// then takes a request that was issued just now for overdue, by the deadline of the slot's earlier operation.
    #[test]
    fn who_sees_a_request_issued_sees_its_deadline() {
        let slots = slots(1);
        let rounds = if cfg!(miri) { 100 } else { 10_000 };
        let seen = std::sync::atomic::AtomicU64::new(0);
        let mut deadlines = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let id = plugged(&slots, 0, round, &[0; 512]).issue(Time(round + 1), false);
                    while seen.load(std::sync::atomic::Ordering::Relaxed) <= round {
                        std::thread::yield_now();
                    }
                    let mut rq = slots.complete(id, Status::Ok, false).unwrap().expect("nobody else completes it");
                    drop(rq.take_bio());
                    rq.free();
                }
            });
            let slot = slots.slot(SlotIndex::new(0, 0));
            for round in 0..rounds {
                while !slot.state.is_issued(round as u32) {
                    std::thread::yield_now();
                }
                deadlines.push(slot.deadline().0);
                seen.store(round + 1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        assert!(deadlines.into_iter().eq(1..=rounds));
    }

    #[test]
    #[should_panic(expected = "left the scheduler twice")]
    fn a_scheduler_that_names_a_request_twice_is_caught() {
        let slots = slots(1);
        let rq = plugged(&slots, 0, 5, &[0; 512]);
        let id = rq.id();
        let _ = rq.leave_at(Location::Scheduler);
        let _first = slots.leave_scheduler(id);
        let _second = slots.leave_scheduler(id);
    }
}
