//! Memory that the system maps for one buffer, and has again when the buffer is dropped.
#![expect(unsafe_code, reason = "memory is mapped, and unmapped by its address")]

use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Maps `len` zeroed bytes, at least one, that belong to the caller. `None` if the system has no memory for them.
pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the system chooses the place, so nothing that is mapped already is replaced.
    let start = unsafe { mmap_anonymous(null_mut(), len, access, flags) };
    NonNull::new(start.ok()?.cast())
}

/// Gives memory back to the system.
///
/// # Safety
/// [`map`] returned `start` for the same `len`, and nothing uses the memory any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    let start = start.as_ptr().cast();
    // SAFETY: nothing uses the memory any more, and it is all of what was mapped there.
    if unsafe { munmap(start, len) }.is_err() {
        // A process that has as many mappings as it may have cannot cut one in two. The memory is given back all the
        // same, and only the addresses stay in use.
        // SAFETY: as above.
        let _ = unsafe { madvise(start, len, Advice::LinuxDontNeed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_can_be_used_to_its_last_byte() {
        const LEN: usize = 3 * 4096;
        let start = map(LEN).expect("there is so much memory");
        // SAFETY: the memory has so many bytes, and is used here alone.
        unsafe { start.as_ptr().write_bytes(1, LEN) };
        // SAFETY: the memory was mapped with this length, and is not used below.
        unsafe { unmap(start, LEN) };
    }

    /// Red, because the process ends, if a lack of memory is not returned as an answer.
    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where no machine has the memory")]
    fn what_the_system_does_not_have_is_none() {
        assert_eq!(map(1 << 56), None);
    }
}
