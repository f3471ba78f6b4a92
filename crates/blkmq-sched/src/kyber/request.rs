//! A waiting request and its place in a list.

use crate::list::{Linked, Links};
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

/// The chain of the one list in which a request is.
#[derive(Debug)]
pub(super) struct ByAge;

impl Linked<ByAge> for Request {
    fn links(&mut self) -> &mut Links {
        &mut self.age
    }
    fn place(&self) -> Links {
        self.age
    }
}
