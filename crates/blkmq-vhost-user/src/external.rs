//! The guest's memory as buffers of operations, without a copy.
#![expect(unsafe_code, reason = "buffers of memory that belongs to the guest")]

use std::ptr::NonNull;
use std::sync::Arc;

use blkmq::{Buffer, Buffers};

use crate::memory::{Memory, Piece};

/// Memory whose bytes can back the buffers of operations.
///
/// # Safety
/// The bytes of a place are valid for reads and writes, and initialised, for as long as the value lives.
pub(crate) unsafe trait SegmentSource {
    type Place: Copy;

    /// Where the bytes of a place are, and how many.
    fn bytes(&self, place: Self::Place) -> (NonNull<u8>, usize);
}

// SAFETY: a piece lies within a region, and a region is mapped for as long as the memory lives. The file behind the
// mapping had the length when it was mapped. A file that is sealed keeps it. A front-end that cuts another one short
// ends this process by SIGBUS, before anything is read; docs/vhost-user.md says so.
unsafe impl SegmentSource for Memory {
    type Place = Piece;

    fn bytes(&self, piece: Piece) -> (NonNull<u8>, usize) {
        (self.pointer(piece), piece.len as usize)
    }
}

/// The most pieces of requests that a thread has in progress, and for which it keeps lists: 384 KiB of buffers. A
/// request of one piece needs no list.
pub(crate) const MAX_PIECES: usize = 16384;

/// Lists of buffers, empty, for a thread to use again.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    lists: Vec<Vec<Buffer>>,
    /// The pieces for which all lists together have room.
    room: usize,
}

impl Lists {
    fn take(&mut self) -> Vec<Buffer> {
        let list = self.lists.pop().unwrap_or_default();
        self.room -= list.capacity();
        list
    }

    fn keep(&mut self, mut list: Vec<Buffer>) {
        list.clear();
        if self.room + list.capacity() <= MAX_PIECES {
            self.room += list.capacity();
            self.lists.push(list);
        }
    }
}

/// Buffers in memory that is not the server's. The memory stays mapped until all of them are back.
///
/// # Invariants
/// `nr` requests have buffers of the memory, and `keeper` lives until they are over: if this value goes earlier, the
/// memory stays forever.
#[derive(Debug)]
pub(crate) struct ExternalBuffers<M: SegmentSource> {
    keeper: Arc<M>,
    nr: usize,
}

impl<M: SegmentSource> ExternalBuffers<M> {
    pub(crate) fn new(keeper: Arc<M>) -> Self {
        Self { keeper, nr: 0 }
    }

    /// The memory.
    pub(crate) fn memory(&self) -> &Arc<M> {
        &self.keeper
    }

    /// Buffers of these places, for one request. What is left of them goes to [`take_back`](Self::take_back) when all
    /// operations that had some of them are over, and not before.
    pub(crate) fn take(&mut self, places: &[M::Place], lists: &mut Lists) -> Buffers {
        self.nr += 1;
        if let [place] = places {
            return Buffers::One(self.borrow(*place));
        }
        let mut buffers = lists.take();
        buffers.extend(places.iter().map(|place| self.borrow(*place)));
        Buffers::Many(buffers)
    }

    fn borrow(&self, place: M::Place) -> Buffer {
        let (start, len) = self.keeper.bytes(place);
        // SAFETY: the bytes are valid until the request is over: the invariants of this type, and `SegmentSource`.
        // Nobody dereferences the buffer: it goes to the session and comes back, and drivers pass the bytes' address to
        // the kernel or copy them. So nothing refers to bytes that the guest, or another request of it that names the
        // same ones, may change at any time. A guest that does so gets other data than it wants.
        unsafe { Buffer::borrowed(start, len) }
    }

    /// Called when a request is over.
    pub(crate) fn take_back(&mut self, buffers: Buffers, lists: &mut Lists) {
        self.nr -= 1;
        if let Buffers::Many(buffers) = buffers {
            lists.keep(buffers);
        }
    }
}

impl<M: SegmentSource> Drop for ExternalBuffers<M> {
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
    unsafe impl SegmentSource for Plain {
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
        let (mut external, mut lists) = (ExternalBuffers::new(Arc::clone(&memory)), Lists::default());
        let mut one = external.take(&[(8, 4)], &mut lists);
        one.iter_mut().for_each(|buffer| buffer.fill(1));
        let mut many = external.take(&[(0, 2), (62, 2)], &mut lists);
        many.iter_mut().for_each(|buffer| buffer.fill(2));
        external.take_back(one, &mut lists);
        external.take_back(many, &mut lists);
        let all = external.take(&[(0, 64)], &mut lists);
        let sum: u32 = all.iter().flat_map(|buffer| buffer.iter()).map(|byte| u32::from(*byte)).sum();
        assert_eq!((sum, lists.lists.len()), (12, 1));
        external.take_back(all, &mut lists);
        drop(external);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    /// Red if memory goes while an operation has it.
    #[test]
    fn memory_that_is_lent_stays() {
        let memory = Plain::new(8);
        let mut external = ExternalBuffers::new(Arc::clone(&memory));
        let mut buffers = external.take(&[(0, 8)], &mut Lists::default());
        drop(external);
        assert_eq!(Arc::strong_count(&memory), 2);
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        drop(buffers);
        // Otherwise the test would leak, and Miri would say so.
        // SAFETY: this is the count that was forgotten.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&memory)) };
    }

    /// Red before the lists that are kept had a bound: a thread kept one of 24 KiB for each request that it ever had at
    /// a time, up to 96 MiB.
    #[test]
    fn lists_that_are_kept_are_few_or_short() {
        let mut lists = Lists::default();
        for len in [1024, 3, 1000] {
            let taken: Vec<_> = (0..4096).map(|_| lists.take()).collect();
            assert_eq!(lists.room, 0);
            for mut list in taken {
                list.reserve(len);
                lists.keep(list);
            }
            let room: usize = lists.lists.iter().map(Vec::capacity).sum();
            assert!(room == lists.room && room > MAX_PIECES / 2 && room <= MAX_PIECES, "{room} after {len}");
        }
    }
}
