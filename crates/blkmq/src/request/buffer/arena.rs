//! Memory for buffers that are used again and again, which a device may make ready for itself once.
#![expect(unsafe_code, reason = "buffers are cut out of memory that outlives the borrow of its owner")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{BUFFER_ALIGN, Buffer};

/// What a driver keeps as long as an [`Arena`] lives. Dropping this value undoes what was done for the arena.
pub type Registration = Box<dyn Any + Send + Sync>;

/// A piece of memory that is cut into buffers. The memory is freed when the last buffer is dropped.
///
/// # Invariants
/// 1. `start` is valid for reads and writes of `layout.size()` bytes, all initialised, for as long as this value lives.
/// 2. The value touches none of these bytes: they belong to the buffers.
pub struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    /// Longest buffer in bytes.
    pub(super) most: usize,
    registration: Option<Registration>,
}

// SAFETY: by Invariant 2 nothing is done with the address here but to free the memory, once, when no buffer has it any
// more.
unsafe impl Send for Arena {}
// SAFETY: as above. What is shared is a number, and a registration that is `Sync`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory for `count` buffers of `most` bytes, at least one of each.
    fn new(count: usize, most: usize) -> Self {
        let bytes = most.checked_next_multiple_of(BUFFER_ALIGN).and_then(|each| each.checked_mul(count));
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, BUFFER_ALIGN).ok());
        let layout = layout.expect("an arena is smaller than half the address space");
        assert!(layout.size() > 0, "an arena has buffers, and these have bytes");
        // SAFETY: the size is not zero, as just checked.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout, most, registration: None }
    }

    /// `count` zeroed buffers of `most` bytes, out of memory that `register` may show to a device.
    pub(crate) fn buffers(
        count: usize,
        most: usize,
        register: impl FnOnce(&Self) -> Option<Registration>,
    ) -> Vec<Buffer> {
        let mut arena = Self::new(count, most);
        arena.registration = register(&arena);
        let arena = Arc::new(arena);
        let offsets = (0..arena.len()).step_by(most.next_multiple_of(BUFFER_ALIGN));
        let cut = |offset| {
            // SAFETY: the offset lies within the memory (Invariant 1). The memory up to the next offset lies within it
            // too, and is given out only this once.
            let start = unsafe { arena.start.add(offset) };
            Buffer { start, len: most, owner: Arc::into_raw(Arc::clone(&arena)) }
        };
        offsets.map(cut).collect()
    }

    /// Where its memory is, for system calls.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// False: an arena has memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The device must not know the memory any more when the memory is gone.
        self.registration = None;
        // SAFETY: the memory came from this layout, and by Invariant 1 only this value, which ends, has it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes, registered {})", self.len(), self.registration.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn buffers_of_an_arena_are_apart_and_keep_it() {
        let mut buffers = Arena::buffers(3, 5000, |_| None);
        assert_eq!(buffers.len(), 3);
        for (buffer, byte) in buffers.iter_mut().zip(1..) {
            assert!((buffer.as_ptr() as usize).is_multiple_of(BUFFER_ALIGN) && buffer.len() == 5000);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(byte);
        }
        let first = buffers.remove(0);
        drop(buffers.pop());
        let last = std::thread::spawn(move || buffers.pop()).join().expect("nothing panics there");
        assert!(first.iter().all(|byte| *byte == 1));
        drop(first);
        assert!(last.expect("one was left").iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_buffer_of_an_arena_shrinks_and_grows_within_its_part() {
        let mut buffers = Arena::buffers(2, 1000, |_| None);
        assert!(buffers[0].set_len(10) && buffers[0].len() == 10);
        assert!(buffers[0].set_len(1000) && !buffers[0].set_len(1001) && buffers[0].len() == 1000);
    }

    /// Red if a buffer does not give back its count of the arena: the device is then never told.
    #[test]
    fn the_device_lets_go_with_the_last_buffer() {
        struct WaiterPresent(Arc<AtomicBool>);
        impl Drop for WaiterPresent {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let told = WaiterPresent(Arc::clone(&is_over));
        let mut buffers = Arena::buffers(2, 512, |_| Some(Box::new(told)));
        buffers.pop();
        assert!(!is_over.load(Ordering::Relaxed), "one is left");
        buffers.pop();
        assert!(is_over.load(Ordering::Relaxed));
    }
}
