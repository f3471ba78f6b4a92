//! A waiting request and its places in tree, list and hash.

use crate::hash::Ending;
use crate::list::{Chain, Links};
use crate::tree::{Branches, Keyed};
use crate::{Class, Info, RqId, Time};

use super::direction::Direction;

/// One waiting request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RqId,
    pub(super) info: Info,
    /// Linux's fifo time: when the request may jump the queue. For a request at the head: when it came.
    pub(super) deadline: Time,
    branches: Branches,
    age: Links,
    end: Links,
}

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 80);

impl Request {
    pub(super) fn new(id: RqId, info: Info, deadline: Time) -> Self {
        Self { id, info, deadline, branches: Branches::default(), age: Links::default(), end: Links::default() }
    }

    pub(super) const fn class(&self) -> Class {
        self.info.priority.class
    }

    pub(super) const fn direction(&self) -> Direction {
        Direction::of(self.info.op)
    }

    /// Whether the request waits where a request such as `info` waits. For assertions.
    pub(super) fn is_of_queue(&self, info: &Info) -> bool {
        self.class() == info.priority.class && self.direction() == Direction::of(info.op)
    }
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

/// The chain of a level's list in order of arrival, or of the list at the head: a request is in one of them.
#[derive(Debug)]
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
#[derive(Debug)]
pub(super) struct ByEnd;

impl Chain<Request> for ByEnd {
    fn links(item: &mut Request) -> &mut Links {
        &mut item.end
    }
    fn place(item: &Request) -> Links {
        item.end
    }
}
