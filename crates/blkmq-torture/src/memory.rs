//! How much memory a thread holds.

#![expect(unsafe_code, reason = "an allocator is an unsafe trait; this one hands on to the system's and counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread: what the thread has taken and not given back. Memory that
/// another thread gives back is subtracted from the count of that other thread, so the count of a thread that shares
/// memory may fall below zero.
///
/// ```
/// use blkmq_torture::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let before = CountingAllocator::live();
/// let buffer = vec![0_u8; 1000];
/// assert_eq!(CountingAllocator::live() - before, 1000);
/// drop(buffer);
/// assert_eq!(CountingAllocator::live(), before);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Bytes that this thread has taken and not given back, by the allocator that is in use. The result is 0 if the
    /// program uses another allocator.
    #[must_use]
    pub fn live() -> i64 {
        LIVE.get()
    }
}

/// Changes the count by a size. No layout has a size above `isize::MAX`.
fn count(change: impl FnOnce(i64) -> i64) {
    LIVE.set(change(LIVE.get()));
}

// SAFETY: every call goes to the system's allocator as it came, and its answer is handed back as it is. The count is a
// plain cell of the thread, without a destructor, that allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            count(|live| live + layout.size() as i64);
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises that the system's allocator asks for. This call exists so that the
        // allocator does not touch pages that are zero already.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            count(|live| live + layout.size() as i64);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(|live| live - layout.size() as i64);
        // SAFETY: the block came from the system's allocator with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block came from the system's allocator with this layout, and the caller answers for the size.
        let moved = unsafe { System.realloc(block, layout, size) };
        if !moved.is_null() {
            count(|live| live - layout.size() as i64 + size as i64);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_counted_until_it_is_given_back() {
        let layout = Layout::from_size_align(100, 64).unwrap();
        let larger = Layout::from_size_align(300, 64).unwrap();
        let before = CountingAllocator::live();
        let held = || CountingAllocator::live() - before;
        // SAFETY: the layout is not of size zero.
        let block = unsafe { CountingAllocator.alloc(layout) };
        assert!(!block.is_null() && block.addr().is_multiple_of(64));
        assert_eq!(held(), 100);
        // SAFETY: the block has this layout, and the size is not zero.
        let block = unsafe { CountingAllocator.realloc(block, layout, 300) };
        assert_eq!(held(), 300);
        // SAFETY: the layout is not of size zero.
        let zeroed = unsafe { CountingAllocator.alloc_zeroed(layout) };
        // SAFETY: the block is longer than a byte.
        assert_eq!(unsafe { zeroed.read() }, 0);
        assert_eq!(held(), 400);
        // SAFETY: the block is of this layout.
        unsafe { CountingAllocator.dealloc(zeroed, layout) };
        // SAFETY: the block has had this layout since it was moved.
        unsafe { CountingAllocator.dealloc(block, larger) };
        assert_eq!(held(), 0);
    }
}
