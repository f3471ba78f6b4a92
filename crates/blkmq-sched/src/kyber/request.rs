//! A waiting request and its place in a list.

use crate::list::{Links, chains};
use crate::{Info, RqId, SchedDomain};

/// One waiting request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RqId,
    pub(super) info: Info,
    age: Links,
}

// COST: one line of 64 bytes, or two where it crosses.
const _: () = assert!(size_of::<Request>() <= 48);

impl Request {
    pub(super) fn new(id: RqId, info: Info) -> Self {
        Self { id, info, age: Links::default() }
    }

    pub(super) const fn domain(&self) -> SchedDomain {
        SchedDomain::of(self.info.op)
    }
}

chains! {
    /// The chain of the one list in which a request is.
    pub(super) ByAge: Request => age;
}
