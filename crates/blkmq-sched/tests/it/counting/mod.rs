//! An allocator that counts what a thread allocates.
#![allow(dead_code, reason = "each test file uses the words that it needs")]
#![expect(unsafe_code, reason = "counting allocations takes an allocator, and that trait is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The count of each thread by itself: the test harness and other tests allocate on their threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Allocations of this thread of so many bytes or more fail.
    static REFUSED: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the trait's promises, or fails as
// any allocation may. `realloc` and `alloc_zeroed` are the trait's own, and call `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        if layout.size() >= REFUSED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the promises of this same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, hence from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Does the work of a request, which allocates nothing.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> T {
    let before = allocations();
    let done = work();
    assert_eq!(allocations(), before, "the path of a request allocates nothing");
    done
}

/// Does work for which the system has no `bytes` bytes of memory in one piece.
pub(crate) fn without_memory<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    REFUSED.set(bytes);
    let done = work();
    REFUSED.set(usize::MAX);
    done
}
