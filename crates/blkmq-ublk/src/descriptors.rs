//! The descriptors of one queue, in memory that the kernel writes.
#![expect(unsafe_code, reason = "memory that the kernel writes")]

use std::fs::File;
use std::io;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{CMD_BUF_OFFSET, DESCRIPTOR_SIZE, Descriptor, MAX_QUEUE_DEPTH};

/// Bytes of a page of this machine's memory, which the kernel's mappings and requests are multiples of.
pub(crate) fn page() -> u32 {
    // SAFETY: the call reads no memory of this program.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    bytes.try_into().expect("every Linux has pages of some KiB")
}

/// # Invariant
/// `start` is valid for reads of `depth` descriptors for as long as this value lives. Nothing but the kernel writes
/// them, and none of a tag between its completion and its next command.
#[derive(Debug)]
pub(crate) struct Descriptors {
    start: NonNull<[u8; DESCRIPTOR_SIZE]>,
    depth: u16,
}

// SAFETY: the value is the only one that reads the mapping, wherever it is.
unsafe impl Send for Descriptors {}

/// Bytes of a queue's descriptors, in pages of `page` bytes.
fn length(depth: u16, page: u32) -> usize {
    (usize::from(depth) * DESCRIPTOR_SIZE).next_multiple_of(page as usize)
}

/// Where the descriptors of a queue begin in the character device.
fn offset(queue: u16, page: u32) -> u64 {
    CMD_BUF_OFFSET + u64::from(queue) * length(MAX_QUEUE_DEPTH, page) as u64
}

impl Descriptors {
    /// Those of a queue of a device.
    pub(crate) fn map(file: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let (length, offset) = (length(depth, page()), offset(queue, page()));
        // SAFETY: the kernel chooses a place where nothing else is.
        let start = unsafe { mmap(null_mut(), length, ProtFlags::READ, flags, file, offset)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("memory at address 0"))?;
        Ok(Self { start, depth })
    }

    /// What the request of this tag asks for. To be called when the tag's command has completed.
    pub(crate) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "a tag of this queue");
        // SAFETY: by the invariant, as many descriptors lie there.
        let place = unsafe { self.start.add(tag.into()) };
        // SAFETY: the same; a faulty kernel may write meanwhile, and what is read then are other bytes.
        Descriptor::from_bytes(&unsafe { place.read_volatile() })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped; nothing refers to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), length(self.depth, page())) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the second queue's descriptors are looked for elsewhere than where 4096 of the first one end, in pages of
    /// the machine.
    #[test]
    fn each_queue_has_room_for_the_most_descriptors() {
        assert_eq!([0, 1, 3].map(|queue| offset(queue, 4096)), [0, 24 * 4096, 72 * 4096]);
        assert_eq!([1, 128, 171, 4096].map(|depth| length(depth, 4096)), [4096, 4096, 8192, 24 * 4096]);
        assert_eq!((offset(1, 1 << 16), length(128, 1 << 16)), (2 << 16, 1 << 16), "as some arm64 machines have");
    }

    /// A file in the place of the device.
    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn descriptors_are_read_by_their_tags() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = [0_u8; 4096];
        bytes[24..28].copy_from_slice(&0x0203_u32.to_ne_bytes());
        bytes[28..32].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[32..40].copy_from_slice(&77_u64.to_ne_bytes());
        io::Write::write_all(&mut file, &bytes).unwrap();
        let descriptors = Descriptors::map(&file, 0, 128).unwrap();
        assert_eq!(descriptors.get(1), Descriptor { op_flags: 0x0203, nr_sectors: 8, start_sector: 77 });
        assert_eq!(descriptors.get(127), Descriptor::default());
    }
}
