//! Short buffers that no connection has. A connection takes one of these before the system maps one, which costs two
//! calls and a fault for each page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blkmq::Buffer;

/// The most bytes of all of them. They are beside what the connections may have.
const MOST: usize = 8 << 20;
/// The longest of them, in bytes. What a longer one costs to map is little beside its data.
const LONGEST: usize = 64 << 10;

#[derive(Debug, Default)]
struct Inside {
    bytes: usize,
    by_size: Vec<Vec<Buffer>>,
}

/// The buffers that no connection has.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Inside>);

impl Spare {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of this many bytes, the size with this index, if there is one. Nothing is left in it of what another
    /// connection had there.
    ///
    /// COST: a lock, and a pass over the buffer.
    pub(crate) fn take(&self, index: usize, size: usize) -> Option<Buffer> {
        let mut inside = self.lock();
        let mut buffer = inside.by_size.get_mut(index)?.pop()?;
        inside.bytes -= size;
        drop(inside);
        let fits = buffer.set_len(size);
        debug_assert!(fits, "a buffer holds what its size says");
        buffer.fill(0);
        Some(buffer)
    }

    /// Takes a buffer that a connection does not need. If there are enough, the system has its memory again.
    ///
    /// COST: a lock.
    pub(crate) fn give(&self, index: usize, size: usize, buffer: Buffer) {
        if size > LONGEST {
            return;
        }
        let mut inside = self.lock();
        if inside.bytes + size > MOST {
            drop(inside);
            drop(buffer);
            return;
        }
        if inside.by_size.len() <= index {
            inside.by_size.resize_with(index + 1, Vec::new);
        }
        inside.bytes += size;
        inside.by_size[index].push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if one connection sees what another one had in a buffer, or if more is kept than may be.
    #[test]
    fn a_spare_buffer_is_empty_and_there_are_not_too_many() {
        let spare = Spare::default();
        for _ in 0..2 * MOST / LONGEST {
            let mut buffer = Buffer::zeroed(LONGEST);
            buffer.fill(7);
            buffer.set_len(40_000);
            spare.give(4, LONGEST, buffer);
        }
        spare.give(5, 2 * LONGEST, Buffer::zeroed(2 * LONGEST));
        assert_eq!(spare.lock().bytes, MOST);
        assert!(spare.take(3, LONGEST / 2).is_none() && spare.take(5, 2 * LONGEST).is_none());
        let all: Vec<_> = std::iter::from_fn(|| spare.take(4, LONGEST)).collect();
        assert_eq!((all.len(), spare.lock().bytes), (MOST / LONGEST, 0));
        assert!(all.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == 0));
        assert!(all.iter().all(|buffer| buffer.len() == LONGEST));
    }
}
