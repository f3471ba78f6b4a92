//! Requests: what the block layer carries from a submitter to a driver and back.
//!
//! A request lives in a slot of its submitter, from a pool sized once. Whoever holds the [`Request`] value of a slot, or
//! a list that it was put on, owns the request and nobody else touches it; so there is no lock per request.

mod list;
mod slot;
mod state;

pub use blkmq_sched::RqId;
pub use slot::Request;

pub(crate) use list::RqList;
pub(crate) use slot::{Body, FlushStep, NIL, Part, SlotIndex, Slots};
pub(crate) use state::Place;
