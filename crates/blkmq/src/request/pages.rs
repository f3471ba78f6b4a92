//! Data in pages of the kernel, which no process has in its memory.
//!
//! A block device that a process serves may leave the data of its requests where it is. The server then has a name for
//! the pages, and two commands of io_uring (`IORING_OP_URING_CMD`): one puts the pages into a slot of a ring's table of
//! registered buffers, and one takes them out. Between the two, reads and writes of that ring name the slot. So the
//! data moves between these pages and a file without a copy, and only drivers with rings of their own can do it. Such a
//! driver says so in its [limits](crate::Limits::pages_align).

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Where pages come from. It lives for as long as any of its pages are a request's data.
pub trait PageSource: fmt::Debug + Send + Sync {
    /// The command that puts the pages with this name into a slot of the ring's table.
    fn register(&self, name: u32, slot: u16) -> Command;

    /// The command that takes the pages with this name out of the slot.
    fn unregister(&self, name: u32, slot: u16) -> Command;
}

/// A command of io_uring to a driver of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The driver's file; below 0 for none, so that the command fails. The source keeps the number for as long as it
    /// lives, also where it closes the file: the kernel may look at the number of a command only when earlier commands
    /// are done.
    pub file: RawFd,
    /// What to do.
    pub op: u32,
    /// What to do it with.
    pub bytes: [u8; 16],
}

/// Pages with the data of one operation.
#[derive(Debug)]
pub struct Pages {
    source: Arc<dyn PageSource>,
    name: u32,
    /// Where the data begins in the pages, in bytes.
    offset: u32,
    len: u32,
}

/// The part of an operation's pages that is a request's data.
#[derive(Debug, Clone, Copy)]
pub struct PagesPart<'a> {
    source: &'a dyn PageSource,
    name: u32,
    offset: u32,
    len: u32,
}

impl Pages {
    /// The first `len` bytes of the pages to which `source` gives this name.
    #[must_use]
    pub fn new(source: Arc<dyn PageSource>, name: u32, len: u32) -> Self {
        Self { source, name, offset: 0, len }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes these the first `len` bytes of the same pages, which the caller knows to have so many.
    pub fn set_len(&mut self, len: u32) {
        (self.offset, self.len) = (0, len);
    }

    /// Cuts the data in two: these pages keep the first `at` bytes, and the rest is returned. `None`, and nothing
    /// changes, if there are not so many bytes.
    pub fn split_off(&mut self, at: usize) -> Option<Self> {
        let at = u32::try_from(at).ok().filter(|at| *at <= self.len)?;
        let rest =
            Self { source: Arc::clone(&self.source), name: self.name, offset: self.offset + at, len: self.len - at };
        self.len = at;
        Some(rest)
    }

    /// The part of `len` bytes from `offset` on.
    pub(super) fn part(&self, offset: usize, len: usize) -> PagesPart<'_> {
        assert!(offset <= self.len() && len <= self.len() - offset, "a part lies within its pages");
        PagesPart { source: &*self.source, name: self.name, offset: self.offset + offset as u32, len: len as u32 }
    }
}

impl PagesPart<'_> {
    /// Where the part begins in the pages, in bytes: what a read or write of a ring gives in the place of an address.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The command that puts the pages into a slot of the ring's table.
    #[must_use]
    pub fn register(&self, slot: u16) -> Command {
        self.source.register(self.name, slot)
    }

    /// The command that takes the pages out of the slot.
    #[must_use]
    pub fn unregister(&self, slot: u16) -> Command {
        self.source.unregister(self.name, slot)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Pages that no driver of the kernel has.
    #[derive(Debug)]
    pub(crate) struct Nowhere;

    impl PageSource for Nowhere {
        fn register(&self, name: u32, slot: u16) -> Command {
            Command { file: -1, op: name, bytes: [slot as u8; 16] }
        }

        fn unregister(&self, name: u32, slot: u16) -> Command {
            Command { file: -1, op: name + 1, bytes: [slot as u8; 16] }
        }
    }

    /// Red if a byte is in both parts or in none, or if a part is looked for in other pages.
    #[test]
    fn pages_are_cut_without_gap_and_overlap() {
        let mut first = Pages::new(Arc::new(Nowhere), 7, 4096);
        assert!(first.split_off(4097).is_none() && first.len() == 4096);
        let mut second = first.split_off(1024).unwrap();
        let third = second.split_off(3072).unwrap();
        assert_eq!([first.len(), second.len(), third.len()], [1024, 3072, 0]);
        assert!(third.is_empty());
        let part = second.part(512, 1024);
        assert_eq!((part.offset(), part.len(), part.register(3).op, part.unregister(3).op), (1536, 1024, 7, 8));
        second.set_len(4096);
        assert_eq!((second.part(0, 4096).offset(), second.len()), (0, 4096));
    }

    #[test]
    #[should_panic(expected = "within its pages")]
    fn a_part_cannot_leave_its_pages() {
        let _ = Pages::new(Arc::new(Nowhere), 0, 512).part(256, 512);
    }
}
