//! A read or write whose data is in pages of the kernel: three entries, of which each waits for the one before it.
//!
//! The first entry puts the pages into the slot of the ring's table that belongs to the request's tag, the second one
//! moves the data, and the third one takes the pages out again. The third follows also where the second fails: pages
//! that stay in a table keep the block device's request from its end. Each entry has an answer of its own, and the
//! transfer goes on when all three are there, because only then the slot is free for the tag's next request.
//!
//! The kernel goes on with a chain in the name of the thread that started it. If that thread has ended, as the thread
//! of a client that leaves, the kernel refuses what is left of the chain. So pages that are still in the table are
//! taken out once more.

use blkmq::pages::{Command, PagesPart};
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

/// How often pages are taken out before they are left in the table.
const MOST_TRIES: u16 = 1000;

/// What comes next after the answer of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Further answers.
    Wait,
    /// The pages are still in the table: [`last_entry`](Chain::last_entry) has to go onto the ring once more.
    TakeOut,
    /// The chain is over, with this answer.
    Over(i32),
}

/// The commands of a transfer's chain, and what has been answered of the chain.
#[derive(Debug)]
pub(super) struct Chain {
    register: Command,
    unregister: Command,
    nr_answers: usize,
    /// What moving the data has ended with.
    moved: i32,
    /// What putting the pages in has ended with, and then taking them out.
    registered: i32,
    unregistered: i32,
    /// How often the pages were taken out once more.
    tries: u16,
}

fn entry_of(command: &Command) -> Entry {
    opcode::UringCmd16::new(types::Fd(command.file), command.op).cmd(command.bytes).build()
}

impl Chain {
    /// For pages that go through this slot.
    pub(super) fn new(pages: &PagesPart<'_>, slot: u16) -> Self {
        let (register, unregister) = (pages.register(slot), pages.unregister(slot));
        Self { register, unregister, nr_answers: 0, moved: 0, registered: 0, unregistered: 0, tries: 0 }
    }

    /// Returns the entries around the one that moves the data.
    pub(super) fn entries(&self, moves: Entry, tag: u16) -> [Entry; LINKS] {
        [
            entry_of(&self.register).flags(Flags::IO_LINK).user_data(Link::Register.bits() | u64::from(tag)),
            // A failure does not end the chain behind a hard link.
            moves.flags(Flags::IO_HARDLINK).user_data(Link::Move.bits() | u64::from(tag)),
            self.last_entry(tag),
        ]
    }

    /// Returns the entry that takes the pages out.
    pub(super) fn last_entry(&self, tag: u16) -> Entry {
        entry_of(&self.unregister).user_data(Link::Unregister.bits() | u64::from(tag))
    }

    /// Takes the answer of a link.
    pub(super) fn answered(&mut self, link: Link, result: i32) -> Next {
        match link {
            Link::Register => self.registered = result,
            Link::Move => self.moved = result,
            Link::Unregister => self.unregistered = result,
        }
        self.nr_answers += 1;
        if self.nr_answers < LINKS {
            return Next::Wait;
        }
        if self.registered >= 0 && self.unregistered < 0 && self.tries < MOST_TRIES {
            (self.tries, self.nr_answers) = (self.tries + 1, LINKS - 1);
            return Next::TakeOut;
        }
        (self.tries, self.nr_answers) = (0, 0);
        Next::Over(match (-self.registered, self.unregistered) {
            (..=0, 0..) => self.moved,
            (..=0, _) => -libc::EIO,
            // These errors pass. EFAULT is that of a thread that has ended.
            (libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::EFAULT | libc::ENOMEM, _) => -libc::EAGAIN,
            _ => -libc::EIO,
        })
    }
}

#[cfg(test)]
mod tests;
