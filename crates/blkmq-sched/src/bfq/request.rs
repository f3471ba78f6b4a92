//! A waiting request and its places in tree, list and hash.

use crate::hash::Ending;
use crate::list::{Chain, Links};
use crate::slab::Index;
use crate::tree::{Branches, Keyed};
use crate::{Info, RqId, Time};

/// One waiting request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) id: RqId,
    pub(super) info: Info,
    /// When the request may jump its queue.
    pub(super) deadline: Time,
    /// The queue in which it waits.
    pub(super) queue: Index,
    /// The place of the client that asks.
    pub(super) client: u16,
    branches: Branches,
    age: Links,
    end: Links,
}

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 88);

impl Request {
    pub(super) fn new(id: RqId, info: Info, deadline: Time, queue: Index, client: u16) -> Self {
        let (branches, age, end) = (Branches::default(), Links::default(), Links::default());
        Self { id, info, deadline, queue, client, branches, age, end }
    }
}

/// Whether a thread waits for a request. A read is always waited for.
pub(super) const fn is_sync(info: &Info) -> bool {
    info.sync || info.op.is_read()
}

impl Keyed for Request {
    fn key(&self) -> u64 {
        self.info.sector
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

impl Ending for Request {
    fn end(&self) -> u64 {
        self.info.end()
    }
}

/// The chain of a queue's list in order of arrival, or of the list at the head: a request is in one of them.
#[derive(Debug, Clone)]
pub(super) struct ByAge;

impl Chain<Request> for ByAge {
    fn links(item: &mut Request) -> &mut Links {
        &mut item.age
    }
    fn place(item: &Request) -> Links {
        item.age
    }
}

/// The chain of a hash bucket.
#[derive(Debug, Clone)]
pub(super) struct ByEnd;

impl Chain<Request> for ByEnd {
    fn links(item: &mut Request) -> &mut Links {
        &mut item.end
    }
    fn place(item: &Request) -> Links {
        item.end
    }
}
