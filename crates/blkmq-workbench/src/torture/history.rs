//! The history of a world: one number that stands for all of it, and whoever wants to read along.

use blkmq_vcpu::Switch;

use super::event::{Event, Stamp};

/// What a history is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'a> {
    /// Something happened.
    Event(Stamp, Event<'a>),
    /// Another CPU goes on.
    Switch(Switch),
}

/// Who reads along while it happens.
pub(crate) type Reader = Box<dyn FnMut(Entry<'_>) + Send>;

/// A running hash of everything that happened, in order.
pub(crate) struct History {
    hash: u64,
    reader: Option<Reader>,
}

impl History {
    /// A history that nothing has happened in.
    pub(crate) fn new(reader: Option<Reader>) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, reader }
    }

    /// Takes an entry in.
    pub(crate) fn note(&mut self, entry: Entry<'_>) {
        if let Some(reader) = &mut self.reader {
            reader(entry);
        }
    }

    /// The hash of all that was noted.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}
