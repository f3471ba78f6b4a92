//! Requests with data that a device reads and writes by itself.
#![expect(unsafe_code, reason = "a borrowed request is reached by its borrower, without the queue")]

use std::ptr::NonNull;

use blkmq_sched::{RqId, Time};

use super::buffer::Segment;
use super::index::SlotIndex;
use super::slot::Slots;
use super::token::{Request, segments};

/// A request with data that a device reads and writes by itself. Only the holder of this value completes the request,
/// by [`Done::give_back`](crate::driver::Done::give_back). If the value is dropped, the request is never over.
// # Invariants
// 1. The value was made where the request was issued as a borrowed one, and is consumed where the request is
//    completed. Until then no other code touches the request's body and data: the timeout scan only looks at its state.
// 2. The slots live and do not move as long as a request is borrowed. A queue has the submitters that wait for theirs,
//    a submitter or a harness that cannot wait leaves the slots forever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it is the only way to complete the request"]
pub struct BorrowedRequest {
    id: RqId,
    slots: NonNull<Slots>,
}

// SAFETY: by Invariant 1 the value stands for the only right to touch the request, which may move to another thread.
unsafe impl Send for BorrowedRequest {}
// SAFETY: a shared `BorrowedRequest` gives out nothing but the id and the address.
unsafe impl Sync for BorrowedRequest {}

impl Request<'_> {
    /// Like [`issue`](Self::issue), as a borrowed request.
    pub(crate) fn borrow(self, deadline: Time) -> BorrowedRequest {
        let slots = NonNull::from(self.slots);
        BorrowedRequest { id: self.issue(deadline, true), slots }
    }
}

impl BorrowedRequest {
    /// The request's id.
    #[must_use]
    pub const fn id(&self) -> RqId {
        self.id
    }

    /// Whether the request is one of these.
    pub(crate) fn is_of(&self, slots: &Slots) -> bool {
        std::ptr::eq(self.slots.as_ptr(), slots)
    }

    /// The request's data in the order of the sectors, as of [`Request::segments`].
    pub fn segments(&mut self) -> impl Iterator<Item = Segment<'_>> {
        // SAFETY: Invariant 2.
        let slots = unsafe { self.slots.as_ref() };
        // SAFETY: Invariant 1, and the segments borrow this value.
        unsafe { segments(slots, slots.slot(SlotIndex::of(self.id))) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plugged, slots};
    use super::*;
    use crate::request::status::Status;
    use blkmq_sched::MergeHow;

    /// Red if the segments of a borrowed request are not those of the whole request. Under Miri red too if another
    /// thread may not touch them.
    #[test]
    fn the_holder_of_a_loan_has_the_data_on_any_thread() {
        let slots = slots(2);
        let mut rq = plugged(&slots, 0, 16, &[2; 512]);
        rq.absorb(plugged(&slots, 1, 15, &[1; 512]), MergeHow::Front);
        let mut borrowed = rq.borrow(Time(0));
        let borrowed = std::thread::spawn(move || {
            let bytes: Vec<u8> = borrowed.segments().flat_map(|segment| segment.to_vec()).collect();
            assert_eq!(bytes, [[1; 512], [2; 512]].concat());
            borrowed.segments().for_each(|mut segment| segment.fill(9));
            borrowed
        });
        let borrowed = borrowed.join().expect("the data is right");
        assert!(borrowed.is_of(&slots));
        let rq = slots.complete(borrowed.id(), Status::Ok, true).expect("it is borrowed").expect("no scan has it");
        rq.into_parts(|mut part| {
            assert!(part.take_bio().buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 9)));
            part.free();
        });
    }
}
