//! A request that waits by sector and by age, and its places in tree, list and hash.

use core::fmt;

use crate::hash::EndSector;
use crate::list::{Links, chains};
use crate::tree::{Branches, Keyed};
use crate::{Info, RqId, Time};

/// One waiting request. `H` is what else its policy knows of it.
#[derive(Debug, Clone)]
pub(crate) struct Waiting<H = ()> {
    pub(crate) id: RqId,
    pub(crate) info: Info,
    /// Linux's fifo time: when the request may jump the queue.
    pub(crate) deadline: Time,
    pub(crate) home: H,
    branches: Branches,
    age: Links,
    end: Links,
}

impl<H> Waiting<H> {
    pub(crate) fn new(id: RqId, info: Info, deadline: Time, home: H) -> Self {
        let (branches, age, end) = (Branches::default(), Links::default(), Links::default());
        Self { id, info, deadline, home, branches, age, end }
    }

    /// Writes the request as a line of a dump.
    pub(crate) fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (id, info, deadline) = (self.id.0, &self.info, self.deadline.0);
        writeln!(out, "  rq {id} {:?} sector {} + {} fifo_time {deadline} ns", info.op, info.sector, info.nr_sectors)
    }
}

impl<H> Keyed for Waiting<H> {
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

impl<H> EndSector for Waiting<H> {
    fn end(&self) -> u64 {
        self.info.end()
    }
}

chains! {
    /// The chain of a list in order of arrival, or of the list at the head: a request is in one of them.
    pub(crate) ByAge: Waiting<H> => age;
    /// The chain of a hash bucket.
    pub(crate) ByEnd: Waiting<H> => end;
}
