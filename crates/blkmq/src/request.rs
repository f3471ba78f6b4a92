//! Requests: what the block layer carries from a submitter to a driver and back.
//!
//! A request lives in a slot of its submitter, from a pool sized once. A thread that holds the [`Request`] value of a
//! slot, or a list on which the slot was put, owns the request, and no other thread touches it. So there is no lock per
//! request.

/// Makes an enum whose variants can be found by their codes, which `as` gives.
macro_rules! coded {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of_variant])* $variant,)*
        }

        impl $name {
            /// All variants, each at the place of its code.
            const ALL: &'static [Self] = &[$(Self::$variant),*];
        }
    };
}

pub(crate) mod bio;
mod body;
mod borrowed;
pub(crate) mod buffer;
pub(crate) mod client;
pub(crate) mod clock;
mod completion;
mod index;
pub(crate) mod limits;
mod list;
mod name;
pub mod pages;
mod slot;
mod state;
mod status;
mod token;

pub use blkmq_sched::RqId;
pub use borrowed::BorrowedRequest;
pub use completion::{Completion, Failed, RejectReason, Rejected, RejectedBatch};
pub use name::{Shown, is_hidden};
pub use status::Status;
pub use token::Request;

pub(crate) use body::{Body, FlushStep, OpAttributes, Part, PoolToken, StatClass};
pub(crate) use index::{FLUSH_POOL, SlotIndex};
pub(crate) use list::RqList;
pub(crate) use slot::Slots;
pub(crate) use state::Location;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::bio::{Bio, Op};
    use crate::request::buffer::Buffer;

    /// One pool of slots.
    pub(super) fn slots(nr_slots: u16) -> Slots {
        let slots = Slots::new(1);
        slots.make_pool(0, nr_slots);
        slots
    }

    /// A write of `data` in a slot of the pool, in the caller's hands.
    pub(super) fn plugged<'q>(slots: &'q Slots, slot: u16, sector: u64, data: &[u8]) -> Request<'q> {
        let index = SlotIndex::new(0, slot);
        let mut rq = slots.take_own(index);
        let nr_sectors = (data.len() / 512) as u32;
        *rq.body_mut() = Body {
            op: Op::Write,
            sector,
            nr_sectors,
            nr_segments: 1,
            first: index,
            last: index,
            part: Part { parent: index, sector, nr_sectors, offset: 0 },
            ..Body::EMPTY
        };
        let mut list = RqList::default();
        list.push_back(rq, Location::Plugged);
        slots.store_bio(index, Bio::write(sector, Buffer::from(data)));
        list.pop_front(slots).expect("it was just put there")
    }
}
