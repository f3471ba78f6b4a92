//! Buffers that are used again, and the contents of their sectors.

use blkmq_virtual::{Buffer, Buffers};

use super::super::witness::Witness;

const SECTOR: usize = 512;

/// What a read's buffers hold before the read. No operation has this number.
const POISON: u64 = u64::MAX;

/// Buffers that are not in use, by their capacity, which is a power of two. The witness is told how much memory they
/// take.
pub(super) struct Spare {
    witness: Witness,
    classes: [Vec<Buffer>; 24],
}

impl Spare {
    pub(super) fn new(witness: Witness) -> Self {
        Self { witness, classes: Default::default() }
    }

    /// A buffer of `len` bytes with arbitrary contents.
    pub(super) fn take(&mut self, len: usize) -> Buffer {
        let capacity = len.next_power_of_two();
        let mut buffer = match self.class(len).and_then(Vec::pop) {
            Some(buffer) => {
                self.witness.note_spare(-capacity.cast_signed());
                buffer
            }
            None => Buffer::zeroed(capacity),
        };
        assert!(buffer.set_len(len), "a buffer is kept with those of its capacity");
        buffer
    }

    fn class(&mut self, len: usize) -> Option<&mut Vec<Buffer>> {
        self.classes.get_mut(len.next_power_of_two().ilog2() as usize)
    }

    /// Takes back buffers that came from [`take`](Self::take). The buffers still have the same length.
    pub(super) fn keep(&mut self, buffers: Buffers) {
        let mut keep = |buffer: Buffer| {
            let capacity = buffer.len().next_power_of_two();
            if let Some(class) = self.class(buffer.len()) {
                class.push(buffer);
                self.witness.note_spare(capacity.cast_signed());
            }
        };
        match buffers {
            Buffers::None => {}
            Buffers::Pages(_) => unreachable!("the rig's clients have their data in memory"),
            Buffers::One(buffer) => keep(buffer),
            Buffers::Many(buffers) => buffers.into_iter().for_each(keep),
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let sizes = self.classes.iter().enumerate().map(|(power, class)| class.len() << power);
        self.witness.note_spare(-sizes.sum::<usize>().cast_signed());
    }
}

/// Writes a number into each sector; `None` writes [`POISON`].
pub(super) fn stamp(buffers: &mut Buffers, number: Option<u64>) {
    let bytes = number.unwrap_or(POISON).to_le_bytes();
    for buffer in buffers.iter_mut() {
        buffer.chunks_exact_mut(SECTOR).for_each(|sector| sector[..8].copy_from_slice(&bytes));
    }
}

/// Reads the number in each sector.
pub(super) fn read_stamps(buffers: &Buffers, stamps: &mut Vec<u64>) {
    let sectors = buffers.iter().flat_map(|buffer| buffer.chunks_exact(SECTOR));
    stamps.extend(sectors.map(|sector| u64::from_le_bytes(sector[..8].try_into().expect("eight bytes are eight"))));
}
