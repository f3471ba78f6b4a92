//! Memory for data, owned by the operation until it completes.
#![expect(unsafe_code, reason = "aligned memory, and views of it that outlive the borrow of their owner")]

mod arena;
#[cfg(feature = "mapped")]
mod mapping;
mod scatter;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null, without_provenance};
use std::sync::Arc;

pub use arena::{Arena, Registration};
pub use scatter::Buffers;

/// Bytes: the alignment of owned buffers. Direct I/O on any common device asks for no more.
pub const BUFFER_ALIGN: usize = 4096;

/// A piece of memory that an operation owns.
///
/// # Invariants
/// 1. `start` is valid for reads and writes of `len` bytes, and of as many as it can be [made](Self::set_len) long, all
///    initialised, for as long as this value lives.
/// 2. While this value lives no other code of this process reads or writes these bytes, except through views made from
///    it. Another process may change the bytes of a buffer that is [borrowed](Self::borrowed) and never dereferenced.
/// 3. `owner` tells to which owner the memory belongs. Null: the caller or another owner outside. An odd address, which
///    points nowhere: the memory came from `layout(capacity)`, and the address is twice the capacity and one. An
///    address that is even and no multiple of 4, which points nowhere either: the system mapped the memory, and the
///    address is the capacity, a multiple of [`BUFFER_ALIGN`], and two. Any other: the memory is a part of this arena,
///    of which the value holds a count. So a buffer is no longer than it was without arenas. The length matters, since
///    a buffer is moved with each operation.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    owner: *const Arena,
}

/// Whose memory a buffer is.
enum Owner {
    Another,
    /// The buffer itself, with so many bytes of the heap, at least 1.
    Itself(usize),
    /// The buffer itself, with so many bytes that the system mapped.
    #[cfg(feature = "mapped")]
    Mapping(usize),
    Arena(*const Arena),
}

// SAFETY: by Invariant 2 the value is the only way to its bytes, so the value may move to another thread like a
// `Box<[u8]>`.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` only gives out shared slices.
unsafe impl Sync for Buffer {}

const _: () = assert!(align_of::<Arena>() > 2, "an arena's address is a multiple of 4");

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BUFFER_ALIGN).expect("a buffer is smaller than half the address space")
}

impl Buffer {
    /// Zeroed memory of `len` bytes, aligned to [`BUFFER_ALIGN`].
    ///
    /// # Panics
    /// If `len` exceeds half the address space.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(layout(len.max(1))))
    }

    /// As [`zeroed`](Self::zeroed), but `None` if the system has no memory for it. A system that promises more memory
    /// than it has, as Linux mostly does, ends a process later instead.
    ///
    /// # Panics
    /// If `len` exceeds half the address space.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let capacity = len.max(1);
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(capacity)) })?;
        // What can be allocated is less than half the address space.
        Some(Self { start, len, owner: without_provenance(2 * capacity + 1) })
    }

    /// Zeroed memory of `len` bytes in pages of their own, which are the system's again as soon as the buffer is
    /// dropped. The heap may keep what it was given back. `None` if the system has no memory for it, as in
    /// [`try_zeroed`](Self::try_zeroed).
    ///
    /// COST: a system call to make it and another to drop it, and a page fault for each page that is used.
    #[cfg(feature = "mapped")]
    #[must_use]
    pub fn try_mapped(len: usize) -> Option<Self> {
        let capacity = len.max(1).checked_next_multiple_of(BUFFER_ALIGN)?;
        let start = mapping::map(capacity)?;
        Some(Self { start, len, owner: without_provenance(capacity + 2) })
    }

    fn owner(&self) -> Owner {
        match self.owner.addr() {
            0 => Owner::Another,
            odd if odd % 2 == 1 => Owner::Itself(odd / 2),
            #[cfg(feature = "mapped")]
            even if even % 4 == 2 => Owner::Mapping(even - 2),
            _ => Owner::Arena(self.owner),
        }
    }

    /// Changes the buffer's length, up to the one with which it was made. The memory and its content stay. Returns
    /// false, and changes nothing, if the buffer cannot be that long, or its memory belongs to another owner.
    pub fn set_len(&mut self, len: usize) -> bool {
        let fits = match self.owner() {
            Owner::Another => false,
            Owner::Itself(capacity) => len <= capacity,
            #[cfg(feature = "mapped")]
            Owner::Mapping(capacity) => len <= capacity,
            // SAFETY: Invariant 3: the count that this value holds keeps it alive.
            Owner::Arena(arena) => len <= unsafe { &*arena }.most,
        };
        if fits {
            self.len = len;
        }
        fits
    }

    /// Fills the buffer with zeroes.
    pub fn zero(&mut self) {
        // SAFETY: Invariants 1 and 2.
        unsafe { self.start.write_bytes(0, self.len) };
    }

    /// A buffer of memory that belongs to the caller.
    ///
    /// # Safety
    /// Until the operation that carries this buffer has completed, or the buffer is dropped without having been
    /// submitted: `start` stays valid for reads and writes of `len` initialised bytes, and no other code reads or
    /// writes them. Forgetting the submitter does not end the operation.
    ///
    /// Another process that shares the memory, such as a virtual machine, may read and write it meanwhile if nobody
    /// dereferences the buffer. The block layer does not, and drivers reach the bytes only as a [`Segment`], which
    /// makes no reference to them.
    #[must_use]
    pub unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, owner: null() }
    }

    /// Cuts the buffer in two: it keeps the first `at` bytes, and the rest is another buffer. `None`, and nothing
    /// changes, if there are not so many bytes, or the memory does not [belong to the caller](Self::borrowed).
    pub fn split_off(&mut self, at: usize) -> Option<Self> {
        let rest = self.len.checked_sub(at).filter(|_| matches!(self.owner(), Owner::Another))?;
        // SAFETY: `at` is within the memory, or at its end (Invariant 1). The two buffers share no byte, so each of
        // them is the only way to its own (Invariant 2).
        let start = unsafe { self.start.add(at) };
        self.len = at;
        Some(Self { start, len: rest, owner: null() })
    }

    /// Bytes in this buffer.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn view(&self, offset: usize, len: usize) -> Segment<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "a segment lies within its buffer");
        // SAFETY: `offset` is within the allocation, as just checked (Invariant 1).
        let start = unsafe { self.start.add(offset) };
        Segment { start, len, buffer: PhantomData }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner() {
            Owner::Another => (),
            // SAFETY: Invariant 3.
            Owner::Itself(capacity) => unsafe { dealloc(self.start.as_ptr(), layout(capacity)) },
            #[cfg(feature = "mapped")]
            // SAFETY: Invariant 3, and by Invariant 2 nothing else uses the memory.
            Owner::Mapping(capacity) => unsafe { mapping::unmap(self.start, capacity) },
            // SAFETY: Invariant 3: this is the count that the value holds.
            Owner::Arena(arena) => drop(unsafe { Arc::from_raw(arena) }),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: Invariants 1 and 2.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: Invariants 1 and 2.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A contiguous piece of a request's data, as the driver that holds the request sees it. The data is copied and never
/// referred to, because it may be memory of a virtual machine, which may change it at any time. A driver that decides
/// by the bytes, for example by a checksum, decides by its copy.
///
/// # Invariants
/// The bytes belong to one request. The code that has the segment has it from that request, which has one holder at a
/// time. Requests never overlap in the buffers from which they came.
pub struct Segment<'a> {
    start: NonNull<u8>,
    len: usize,
    buffer: PhantomData<&'a Buffer>,
}

impl Segment<'_> {
    /// Bytes in this segment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are, for system calls. The bytes stay there until the request completes.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The place of `len` bytes from `at` on.
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "a copy lies within its segment");
        self.start.as_ptr().wrapping_add(at)
    }

    /// Copies bytes out, from `at` on, as many as `to` takes.
    ///
    /// # Panics
    /// If the segment has fewer.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len());
        // SAFETY: the bytes are the buffer's (its Invariant 1), and within the segment, as just checked. `to` is
        // borrowed for writing, so it is other memory.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Panics
    /// If the segment has fewer.
    #[inline]
    pub fn copy_from(&mut self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len());
        // SAFETY: as in `copy_to`. Nobody refers to the bytes of a segment, so `from` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Sets all bytes to one value.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the bytes are the buffer's (its Invariant 1).
        unsafe { self.start.as_ptr().write_bytes(byte, self.len) }
    }

    /// Copies all bytes behind those that `to` has.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        let free = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: as in `copy_to`; there is room for so many bytes, as just reserved.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), free, self.len) };
        // SAFETY: these bytes were just written.
        unsafe { to.set_len(to.len() + self.len) };
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_memory_is_zeroed_and_aligned() {
        for len in [0, 1, 512, 10_000] {
            let buffer = Buffer::zeroed(len);
            assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
            assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 0));
        }
    }

    /// Red, because the process ends, if a lack of memory is not returned as an answer.
    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where no machine has the memory")]
    fn memory_that_is_not_to_be_had_is_none() {
        assert!(Buffer::try_zeroed(1 << 50).is_none());
        assert_eq!(Buffer::try_zeroed(4096).unwrap().len(), 4096);
    }

    /// Red if memory that was mapped is freed as memory of the heap, or if the buffer may become longer than it is.
    #[test]
    #[cfg(feature = "mapped")]
    fn mapped_memory_is_zeroed_aligned_and_as_long_as_its_pages() {
        for len in [0, 1, 4096, 10_000, 1 << 20] {
            let mut buffer = Buffer::try_mapped(len).expect("there is so much memory");
            assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
            assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 0));
            let capacity = len.max(1).next_multiple_of(BUFFER_ALIGN);
            assert!(!buffer.set_len(capacity + 1) && buffer.set_len(capacity));
            buffer.fill(7);
            assert!(buffer.split_off(1).is_none(), "it owns its memory");
        }
        assert!(Buffer::try_mapped(usize::MAX).is_none());
    }

    #[test]
    fn a_buffer_shrinks_and_grows_within_its_memory() {
        let mut buffer = Buffer::from(&[7; 1000][..]);
        assert!(buffer.set_len(10) && buffer.len() == 10);
        assert!(!buffer.set_len(1001) && buffer.len() == 10);
        assert!(buffer.set_len(1000) && buffer.iter().all(|byte| *byte == 7));
        let mut memory = [0_u8; 64];
        // SAFETY: the array outlives the buffer, which is not looked at meanwhile.
        let mut borrowed = unsafe { Buffer::borrowed(NonNull::from(&mut memory).cast(), 64) };
        assert!(!borrowed.set_len(32) && !borrowed.set_len(0) && borrowed.len() == 64);
    }

    #[test]
    fn a_borrowed_buffer_writes_where_it_was_told_to() {
        let mut memory = [0_u8; 64];
        {
            // SAFETY: the array outlives the buffer, which is dropped before the array is looked at.
            let mut buffer = unsafe { Buffer::borrowed(NonNull::from(&mut memory).cast(), 64) };
            buffer[10..20].fill(7);
        }
        assert_eq!(memory.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 70);
    }

    /// Red if the two parts share a byte or lose one, or if memory that a buffer owns is cut, and so freed twice.
    #[test]
    fn a_borrowed_buffer_is_cut_in_two_and_one_that_owns_its_memory_is_not() {
        let mut memory = [0_u8; 64];
        {
            // SAFETY: the array outlives the buffers, which are dropped before the array is looked at.
            let mut first = unsafe { Buffer::borrowed(NonNull::from(&mut memory).cast(), 64) };
            assert!(first.split_off(65).is_none() && first.len() == 64);
            let mut second = first.split_off(24).unwrap();
            assert_eq!(second.split_off(40).map(|rest| rest.len()), Some(0));
            first.fill(1);
            second.fill(2);
        }
        assert!(memory[..24].iter().all(|byte| *byte == 1) && memory[24..].iter().all(|byte| *byte == 2));
        let mut owned = Buffer::zeroed(64);
        assert!(owned.split_off(32).is_none() && owned.len() == 64);
    }

    /// Red if a copy goes elsewhere than it should, or leaves the segment. A segment of a machine's memory lends no
    /// reference, which Rust would take for memory that does not change.
    #[test]
    fn data_is_copied_within_its_segment() {
        let buffers = Buffers::from(Buffer::from(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
        let mut segment = buffers.segments(2, 4).next().unwrap();
        let (mut two, mut all) = ([0; 2], vec![0]);
        segment.copy_to(1, &mut two);
        segment.copy_from(2, &[9, 9]);
        segment.append_to(&mut all);
        assert_eq!((two, &all[..], segment.to_vec()), ([4, 5], &[0, 3, 4, 9, 9][..], vec![3, 4, 9, 9]));
        segment.copy_from(4, &[]);
        for (at, len) in [(0, 5), (4, 1), (5, 0), (usize::MAX, 2)] {
            let mut bytes = vec![0; len];
            let copy = std::panic::AssertUnwindSafe(|| segment.copy_to(at, &mut bytes));
            assert!(std::panic::catch_unwind(copy).is_err(), "{len} bytes at {at}");
        }
        segment.fill(0);
        assert_eq!(buffers.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<_>>(), [1, 2, 0, 0, 0, 0, 7, 8]);
    }

    #[test]
    #[should_panic(expected = "within its buffer")]
    fn a_segment_cannot_leave_its_buffer() {
        let _ = Buffer::zeroed(8).view(4, usize::MAX);
    }
}
