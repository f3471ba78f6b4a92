//! Short buffers that no connection has. A connection takes one of these before the system maps one, which costs two
//! calls and a fault for each page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blkmq::Buffer;

/// The most bytes of all of them. They are beside what the connections may have.
const MOST: usize = 8 << 20;
/// The longest of them, in bytes. What a longer one costs to map is little beside its data.
const LONGEST: usize = 64 << 10;

#[derive(Debug, Default)]
struct FreeList {
    bytes: usize,
    /// By the binary logarithm of their size.
    by_size: [Vec<Buffer>; LONGEST.ilog2() as usize + 1],
}

/// The buffers that no connection has.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<FreeList>);

impl Spare {
    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a zeroed buffer of this many bytes, a power of two, if there is one.
    ///
    /// COST: a lock, and a pass over the buffer.
    pub(crate) fn take(&self, size: usize) -> Option<Buffer> {
        debug_assert!(size.is_power_of_two(), "sizes are powers of two, not {size}");
        let mut list = self.lock();
        let mut buffer = list.by_size.get_mut(size.ilog2() as usize)?.pop()?;
        list.bytes -= size;
        drop(list);
        let fits = buffer.set_len(size);
        debug_assert!(fits, "a buffer holds what its size says");
        buffer.fill(0);
        Some(buffer)
    }

    /// Takes a buffer that a connection does not need, whose memory has this many bytes, a power of two. If there are
    /// enough, its memory goes back to the system.
    ///
    /// COST: a lock.
    pub(crate) fn give(&self, size: usize, buffer: Buffer) {
        debug_assert!(size.is_power_of_two(), "sizes are powers of two, not {size}");
        if size > LONGEST {
            return;
        }
        let mut list = self.lock();
        if list.bytes + size > MOST {
            // The system call comes outside of the lock.
            drop(list);
            return;
        }
        list.bytes += size;
        list.by_size[size.ilog2() as usize].push(buffer);
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
            spare.give(LONGEST, buffer);
        }
        spare.give(2 * LONGEST, Buffer::zeroed(2 * LONGEST));
        assert_eq!(spare.lock().bytes, MOST);
        assert!(spare.take(LONGEST / 2).is_none() && spare.take(2 * LONGEST).is_none());
        let all: Vec<_> = std::iter::from_fn(|| spare.take(LONGEST)).collect();
        assert_eq!((all.len(), spare.lock().bytes), (MOST / LONGEST, 0));
        assert!(all.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == 0));
        assert!(all.iter().all(|buffer| buffer.len() == LONGEST));
    }
}
