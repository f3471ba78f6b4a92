//! Requests with data that a device reads and writes by itself.
#![expect(unsafe_code, reason = "a request that is lent is reached by the holder of its loan, without the queue")]

use std::ptr::NonNull;

use blkmq_sched::{RqId, Time};

use super::buffer::Segment;
use super::index::SlotIndex;
use super::slot::Slots;
use super::token::{Request, segments};

/// A request with data that a device reads and writes by itself. Only the holder of this value completes the request,
/// by [`Done::give_back`](crate::driver::Done::give_back). If the value is dropped, the request is never over.
// # Invariants
// 1. The value was made where the request was issued as one that is lent, and is consumed where the request is
//    completed. Until then no other code touches the request's body and data: the timeout scan only looks at its state.
// 2. The slots live and do not move as long as a request is lent. A queue has the submitters that wait for theirs, a
//    submitter or a harness that cannot wait leaves the slots for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it is the only way to complete the request"]
pub struct Loan {
    id: RqId,
    slots: NonNull<Slots>,
}

// SAFETY: by Invariant 1 the value stands for the only right to touch the request, which may move to another thread.
unsafe impl Send for Loan {}
// SAFETY: a shared `Loan` gives out nothing but the id and the address.
unsafe impl Sync for Loan {}

impl Request<'_> {
    /// Like [`issue`](Self::issue), as a request that is lent.
    pub(crate) fn lend(self, deadline: Time) -> Loan {
        let slots = NonNull::from(self.slots);
        Loan { id: self.issue(deadline, true), slots }
    }
}

impl Loan {
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

    /// Red if the segments of a loan are not those of the whole request. Under Miri red too if another thread may not
    /// touch them.
    #[test]
    fn the_holder_of_a_loan_has_the_data_on_any_thread() {
        let slots = slots(2);
        let mut rq = plugged(&slots, 0, 16, &[2; 512]);
        rq.absorb(plugged(&slots, 1, 15, &[1; 512]), MergeHow::Front);
        let mut lent = rq.lend(Time(0));
        let lent = std::thread::spawn(move || {
            let bytes: Vec<u8> = lent.segments().flat_map(|segment| segment.to_vec()).collect();
            assert_eq!(bytes, [[1; 512], [2; 512]].concat());
            lent.segments().for_each(|mut segment| segment.fill(9));
            lent
        });
        let lent = lent.join().expect("the data is right");
        assert!(lent.is_of(&slots));
        let rq = slots.complete(lent.id(), Status::Ok, true).expect("it is lent").expect("no scan has it");
        rq.into_parts(|mut part| {
            assert!(part.take_bio().buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 9)));
            part.free();
        });
    }
}
