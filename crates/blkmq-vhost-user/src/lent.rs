//! The guest's memory as buffers of operations, without a copy.
#![expect(unsafe_code, reason = "buffers of memory that belongs to the guest")]

use std::ptr::NonNull;
use std::sync::Arc;

use blkmq::{Buffer, Buffers};

use crate::memory::{Memory, Piece};

/// Memory that can be lent.
///
/// # Safety
/// The bytes of a place are valid for reads and writes, and initialised, for as long as the value lives.
pub(crate) unsafe trait Lends {
    type Place: Copy;

    /// Where the bytes of a place are, and how many.
    fn bytes(&self, place: Self::Place) -> (NonNull<u8>, usize);
}

// SAFETY: a piece lies within a region, and a region is mapped for as long as the memory lives. The file behind the
// mapping had the length when it was mapped. A file that is sealed keeps it. A front-end that cuts another one short ends
// this process by SIGBUS, before anything is read; docs/vhost-user.md says so.
unsafe impl Lends for Memory {
    type Place = Piece;

    fn bytes(&self, piece: Piece) -> (NonNull<u8>, usize) {
        (self.pointer(piece), piece.len as usize)
    }
}

/// What is lent of some memory, which stays until all of it is back.
///
/// # Invariants
/// `nr` requests have buffers of the memory, and `keeper` lives until they are over: if this value goes earlier, the
/// memory stays for ever.
#[derive(Debug)]
pub(crate) struct Loans<M: Lends> {
    keeper: Arc<M>,
    nr: usize,
    /// Lists of buffers, empty, to be used again.
    spare: Vec<Vec<Buffer>>,
}

impl<M: Lends> Loans<M> {
    pub(crate) fn new(keeper: Arc<M>) -> Self {
        Self { keeper, nr: 0, spare: Vec::new() }
    }

    /// The memory.
    pub(crate) fn memory(&self) -> &Arc<M> {
        &self.keeper
    }

    /// Buffers of these places, for one request. What is left of them goes to [`take_back`](Self::take_back) when all
    /// operations that had some of them are over, and not before.
    pub(crate) fn lend(&mut self, places: &[M::Place]) -> Buffers {
        self.nr += 1;
        if let [place] = places {
            return Buffers::One(self.borrow(*place));
        }
        let mut buffers = self.spare.pop().unwrap_or_default();
        buffers.extend(places.iter().map(|place| self.borrow(*place)));
        Buffers::Many(buffers)
    }

    fn borrow(&self, place: M::Place) -> Buffer {
        let (start, len) = self.keeper.bytes(place);
        // SAFETY: the bytes are valid until the request is over: the invariants of this type, and `Lends`.
        // What a buffer asks for beyond that, that no other code touches the bytes, only the guest can break, or two
        // requests of a guest that name the same bytes. A guest that does so gets other data than it wants. Nothing
        // here or in the block layer decides by these bytes: drivers pass their address to the kernel or to a device,
        // or copy them by `memcpy`.
        unsafe { Buffer::borrowed(start, len) }
    }

    /// Called when a request is over.
    pub(crate) fn take_back(&mut self, buffers: Buffers) {
        self.nr -= 1;
        if let Buffers::Many(mut buffers) = buffers {
            buffers.clear();
            self.spare.push(buffers);
        }
    }
}

impl<M: Lends> Drop for Loans<M> {
    fn drop(&mut self) {
        if self.nr > 0 {
            std::mem::forget(Arc::clone(&self.keeper));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    /// Bytes of this process.
    struct Plain(Box<[UnsafeCell<u8>]>);

    impl Plain {
        #[expect(clippy::arc_with_non_send_sync, reason = "memory is kept by an Arc, and here by one thread")]
        fn new(len: usize) -> Arc<Self> {
            Arc::new(Self((0..len).map(|_| UnsafeCell::new(0)).collect()))
        }
    }

    // SAFETY: the bytes are in the box, and places are checked.
    unsafe impl Lends for Plain {
        type Place = (usize, usize);

        fn bytes(&self, (at, len): (usize, usize)) -> (NonNull<u8>, usize) {
            let bytes = &self.0[at..at + len];
            (NonNull::new(UnsafeCell::raw_get(bytes.as_ptr())).unwrap(), len)
        }
    }

    /// Red if a buffer is of other bytes than those that were meant, or if a list is not used again.
    #[test]
    fn buffers_are_the_memory_itself() {
        let memory = Plain::new(64);
        let mut loans = Loans::new(Arc::clone(&memory));
        let mut one = loans.lend(&[(8, 4)]);
        one.iter_mut().for_each(|buffer| buffer.fill(1));
        let mut many = loans.lend(&[(0, 2), (62, 2)]);
        many.iter_mut().for_each(|buffer| buffer.fill(2));
        loans.take_back(one);
        loans.take_back(many);
        let all = loans.lend(&[(0, 64)]);
        let sum: u32 = all.iter().flat_map(|buffer| buffer.iter()).map(|byte| u32::from(*byte)).sum();
        assert_eq!((sum, loans.spare.len()), (12, 1));
        loans.take_back(all);
        drop(loans);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    /// Red if memory goes while an operation has it.
    #[test]
    fn memory_that_is_lent_stays() {
        let memory = Plain::new(8);
        let mut loans = Loans::new(Arc::clone(&memory));
        let mut buffers = loans.lend(&[(0, 8)]);
        drop(loans);
        assert_eq!(Arc::strong_count(&memory), 2);
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        drop(buffers);
        // Otherwise the test would leak, and Miri would say so.
        // SAFETY: this is the count that was forgotten.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&memory)) };
    }
}
