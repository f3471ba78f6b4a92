//! A journal that tells a checker what passes between a driver and its rings.
//!
//! A device has one only if a checker opens it so. With a [`Journal`] the checker sees whether the kernel was asked for
//! everything that a client's answer promises.
#![expect(unsafe_code, reason = "an entry is read as the kernel reads it")]

use std::fmt;

use io_uring::squeue;

/// What an entry asks the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Read bytes of the file.
    Read,
    /// Write bytes.
    Write {
        /// The first byte, in the file.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// Whether the bytes are durable when the kernel answers.
        is_durable: bool,
    },
    /// Make a range zeroes or a hole.
    Zero {
        /// The first byte, in the file.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Make durable what was written before.
    Sync,
    /// Nothing, for a while. If the kernel cannot be asked for writeback errors in another way, a sync that is done
    /// waits for syncs that are not done.
    Pause,
    /// Something else, with its number.
    Other(u8),
}

/// A checker that is told of everything that the kernel is asked for and that it answers. The threads that drive the
/// queue call the function in the middle of their work. So the function should return soon, and must call neither the
/// queue nor the driver.
pub trait Journal: Send + Sync + fmt::Debug {
    /// An entry of the request `tag` of this hardware queue is about to go on the ring. The kernel has not seen it yet.
    fn asked(&self, hctx: u16, tag: u16, asked: Asked) {
        let _ = (hctx, tag, asked);
    }

    /// The kernel has answered the entry: a number of bytes, or a negative error number. The request, which may have
    /// further parts, is not over yet. Returns what the driver takes as the answer: `result`, or, in a test, an error
    /// instead.
    fn answered(&self, hctx: u16, tag: u16, result: i32) -> i32 {
        let _ = (hctx, tag);
        result
    }
}

/// Numbers and offsets of the kernel's interface, which never change.
const READV: u8 = 1;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const TIMEOUT: u8 = 11;
const FALLOCATE: u8 = 17;
const READ: u8 = 22;
const WRITE: u8 = 23;
const ENTRY_SIZE: usize = 64;

/// The request is read from the entry itself, and not from what the entry was made from: otherwise a flag that was left
/// out would not be noticed.
///
/// # Safety
/// The pieces of memory that a vectored entry names can be read.
pub(super) unsafe fn asked(entry: &squeue::Entry) -> Asked {
    const { assert!(size_of::<squeue::Entry>() == ENTRY_SIZE) };
    // SAFETY: an entry has this many bytes, and all of them were set as numbers.
    let bytes = unsafe { &*std::ptr::from_ref(entry).cast::<[u8; ENTRY_SIZE]>() };
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let (offset, address, len, flags) = (word(8), word(16), half(24), half(28));
    let is_durable = flags & (libc::RWF_DSYNC | libc::RWF_SYNC).cast_unsigned() != 0;
    match bytes[0] {
        READ | READV | READ_FIXED => Asked::Read,
        WRITE | WRITE_FIXED => Asked::Write { offset, bytes: len.into(), is_durable },
        WRITEV => {
            let first = std::ptr::with_exposed_provenance::<libc::iovec>(address as usize);
            // SAFETY: by the caller's promise, this many pieces are there.
            let pieces = unsafe { std::slice::from_raw_parts(first, len as usize) };
            Asked::Write { offset, bytes: pieces.iter().map(|piece| piece.iov_len as u64).sum(), is_durable }
        }
        FALLOCATE => Asked::Zero { offset, bytes: address },
        FSYNC => Asked::Sync,
        TIMEOUT => Asked::Pause,
        other => Asked::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    /// Red if an offset or a number of the interface is wrong. The entries here are made by the crate that the driver
    /// uses to make them.
    #[test]
    fn entries_are_read_as_they_were_made() {
        const FILE: types::Fixed = types::Fixed(1);
        let memory = [0_u8; 8];
        let pieces = [512, 1024].map(|iov_len| libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len });
        let first = pieces.as_ptr();
        for is_durable in [false, true] {
            let flags = if is_durable { libc::RWF_DSYNC } else { 0 };
            let vectored = opcode::Writev::new(FILE, first, 2).offset(4096).rw_flags(flags).build();
            let plain = opcode::Write::new(FILE, memory.as_ptr(), 8).offset(8).rw_flags(flags).build();
            let fixed = opcode::WriteFixed::new(FILE, memory.as_ptr(), 8, 0).offset(8).rw_flags(flags).build();
            for (entry, offset, bytes) in [(vectored, 4096, 1536), (plain, 8, 8), (fixed, 8, 8)] {
                // SAFETY: the pieces are there.
                assert_eq!(unsafe { asked(&entry) }, Asked::Write { offset, bytes, is_durable });
            }
        }
        let zero = opcode::Fallocate::new(FILE, 1 << 20).offset(512).mode(libc::FALLOC_FL_ZERO_RANGE).build();
        let sync = opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build();
        let readv = opcode::Readv::new(FILE, first, 2).build();
        let read = opcode::Read::new(FILE, memory.as_ptr().cast_mut(), 8).build();
        let read_fixed = opcode::ReadFixed::new(FILE, memory.as_ptr().cast_mut(), 8, 0).build();
        for (entry, expected) in [
            (zero, Asked::Zero { offset: 512, bytes: 1 << 20 }),
            (sync, Asked::Sync),
            (opcode::Timeout::new(&types::Timespec::new()).build(), Asked::Pause),
            (readv, Asked::Read),
            (read, Asked::Read),
            (read_fixed, Asked::Read),
            (opcode::Nop::new().build(), Asked::Other(0)),
        ] {
            // SAFETY: the pieces are there.
            assert_eq!(unsafe { asked(&entry) }, expected);
        }
    }
}
