//! Memory that a ring has registered: the kernel keeps its pages ready instead of looking them up for each transfer.
//!
//! A [`Table`] says what one ring knows. [`Rings`](super::rings::Rings) says what all rings have to know.

use blkmq::driver::Arena;

/// The number of places for memory in a ring's table.
pub(super) const SLOTS: usize = 64;

/// Returns the place for the pages of the request with this tag, behind those for memory.
pub(super) const fn pages_slot(tag: u16) -> u16 {
    SLOTS as u16 + tag
}

/// A piece of memory, by its address and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Memory {
    pub(super) fn of(arena: &Arena) -> Self {
        Self { start: arena.as_ptr() as usize, len: arena.len() }
    }

    fn has(self, start: usize, len: usize) -> bool {
        start >= self.start && len <= self.len && start - self.start <= self.len - len
    }
}

/// The contents of a ring's table.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<(Memory, u16)>);

impl Table {
    /// Sets the contents of a slot.
    pub(super) fn set(&mut self, slot: u16, memory: Option<Memory>) {
        self.0.retain(|(_, other)| *other != slot);
        self.0.extend(memory.map(|memory| (memory, slot)));
    }

    /// Returns the number of bytes in all slots.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(memory, _)| memory.len).sum()
    }

    /// Returns the slot of the memory in which a piece lies.
    ///
    /// COST: a look at each of the slots in use, which are few.
    pub(super) fn find(&self, start: usize, len: usize) -> Option<u16> {
        self.0.iter().find(|(memory, _)| memory.has(start, len)).map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_found_where_it_lies_as_a_whole() {
        let mut table = Table::default();
        table.set(5, Some(Memory { start: 0x1000, len: 0x1000 }));
        table.set(2, Some(Memory { start: 0x2000, len: 0x800 }));
        let found = |table: &Table| {
            [(0x1000, 0x1000), (0x1fff, 1), (0x1fff, 2), (0x2000, 0x800), (0x2001, 0x800), (0xfff, 2), (0x2800, 0)]
                .map(|(start, len)| table.find(start, len))
        };
        assert_eq!(found(&table), [Some(5), Some(5), None, Some(2), None, None, Some(2)]);
        assert_eq!(table.bytes(), 0x1800);
        table.set(5, None);
        assert_eq!(found(&table), [None, None, None, Some(2), None, None, Some(2)]);
    }
}
