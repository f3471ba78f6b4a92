//! A read or write whose data is in pages of the kernel: three entries, of which each waits for the one before it.
//!
//! The first entry puts the pages into the slot of the ring's table that belongs to the request's tag, the second one
//! moves the data, and the third one takes the pages out again. The third follows also where the second fails: pages
//! that stay in a table keep the block device's request from its end. Each entry has an answer of its own, and the
//! transfer goes on when all three are there, because only then the slot is free for the tag's next request.

use blkmq::driver::{Command, PagesPart};
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};

/// The entries of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Register,
    Move,
    Unregister,
}

/// The number of entries in a chain.
pub(super) const LINKS: usize = 3;

/// Where the user data of an entry has its link, above the tag. An entry that is in no chain has the same bits as the
/// one that moves data.
const LINK_SHIFT: u32 = 16;

impl Link {
    const fn bits(self) -> u64 {
        let number: u64 = match self {
            Self::Move => 0,
            Self::Register => 1,
            Self::Unregister => 2,
        };
        number << LINK_SHIFT
    }

    /// The link of the entry with this user data.
    pub(super) const fn of(user_data: u64) -> Self {
        match user_data >> LINK_SHIFT & 3 {
            1 => Self::Register,
            2 => Self::Unregister,
            _ => Self::Move,
        }
    }
}

/// The commands of a transfer's chain, and what has been answered of the chain.
#[derive(Debug)]
pub(super) struct Chain {
    register: Command,
    unregister: Command,
    nr_answers: usize,
    /// What moving the data has ended with.
    moved: i32,
    /// The error of a command.
    failed: Option<i32>,
}

fn entry_of(command: &Command) -> Entry {
    opcode::UringCmd16::new(types::Fd(command.file), command.op).cmd(command.bytes).build()
}

impl Chain {
    /// For pages that go through this slot.
    pub(super) fn new(pages: &PagesPart<'_>, slot: u16) -> Self {
        let (register, unregister) = (pages.register(slot), pages.unregister(slot));
        Self { register, unregister, nr_answers: 0, moved: 0, failed: None }
    }

    /// The entries around the one that moves the data.
    pub(super) fn entries(&self, moves: Entry, tag: u16) -> [Entry; LINKS] {
        let data = |link: Link| link.bits() | u64::from(tag);
        [
            entry_of(&self.register).flags(Flags::IO_LINK).user_data(data(Link::Register)),
            // A failure does not end the chain behind a hard link.
            moves.flags(Flags::IO_HARDLINK).user_data(data(Link::Move)),
            entry_of(&self.unregister).user_data(data(Link::Unregister)),
        ]
    }

    /// Takes the answer of a link. Returns the answer of the whole chain with the last of them.
    pub(super) fn answered(&mut self, link: Link, result: i32) -> Option<i32> {
        match (link, -result) {
            (Link::Move, _) => self.moved = result,
            (_, ..=0) => (),
            // The entries behind one that fails are cancelled, in whatever order the answers come. These errors pass.
            (Link::Unregister, libc::ECANCELED) => (),
            (_, libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM) => self.failed = Some(-libc::EAGAIN),
            _ => self.failed = Some(-libc::EIO),
        }
        self.nr_answers += 1;
        if self.nr_answers < LINKS {
            return None;
        }
        self.nr_answers = 0;
        Some(self.failed.take().unwrap_or(self.moved))
    }
}

#[cfg(test)]
mod tests;
