//! The file while it is open: how large it is, which limits it has, and what was lost.
//!
//! All engines share one [`Target`]. [Transfers](super::transfer) ask the target what they may do.
//! [`File`](super::File) asks it what the block layer has to know.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Extent, Health, Request};
use blkmq::{Limits, Status, Time};
use rustix::fs::{FlockOperation, SeekFrom, flock, seek};
use rustix::io::Errno;

use super::Config;
use super::named_file::NamedFile;
use super::opening::{Opened, identity, size_of};
use super::writeback_errors::WritebackErrors;
use crate::OpenError;
use crate::length::Length;

/// The largest transfer, in sectors: 1 MiB.
const MAX_SECTORS: u32 = 2048;

/// The most pieces of memory in one transfer.
pub(super) const MAX_SEGMENTS: u16 = 256;

/// The largest discard, and the largest zeroing, in sectors: 1 GiB, so that one request does not keep the file busy for
/// too long.
const MAX_RANGE_SECTORS: u32 = 1 << 21;

/// An open file, locked against other servers.
#[derive(Debug)]
pub(super) struct Target {
    /// The descriptor that goes past the page cache, if the file allows that.
    direct: Option<OwnedFd>,
    buffered: OwnedFd,
    writeback_errors: WritebackErrors,
    length: Length,
    /// Where the file was; `None` for a block device, whose node may be made anew.
    named_file: Option<NamedFile>,
    /// The end of the file, in bytes, if the file ends within a sector; else `u64::MAX`. Nothing past this end is read
    /// or written.
    odd_end: u64,
    /// The alignment of addresses in memory for direct I/O, in bytes.
    memory_align: usize,
    block_size: u32,
    is_read_only: bool,
    is_block_device: bool,
    may_poll: bool,
}

impl Target {
    /// Opens the file as `config` says. `tell` is called with what the driver waits for.
    ///
    /// # Errors
    /// Why this file cannot be used, in one sentence that begins with its path.
    pub(super) fn open(config: &Config, tell: &dyn Fn(&str)) -> Result<Self, OpenError> {
        let Opened {
            direct,
            buffered,
            witness,
            memory_align,
            block_size,
            bytes,
            is_block_device,
            may_poll,
            is_stacked,
        } = Opened::new(config, tell)?;
        Ok(Self {
            writeback_errors: WritebackErrors::new(witness, is_stacked, direct.is_none()),
            length: Length::new(),
            named_file: (!is_block_device).then(|| NamedFile::new(config.path.clone(), &buffered)),
            odd_end: if bytes.is_multiple_of(SECTOR_SIZE as u64) { u64::MAX } else { bytes },
            direct,
            buffered,
            memory_align,
            block_size,
            is_read_only: config.read_only,
            is_block_device,
            may_poll,
        })
    }

    /// Returns the present size of the file in bytes, in whole blocks; 0 if the kernel does not know it. A file that
    /// ended within a sector when it was opened counts to its last byte, and does not grow.
    fn bytes(&self) -> u64 {
        let bytes = size_of(&self.buffered).unwrap_or(0);
        if self.odd_end < u64::MAX { bytes.min(self.odd_end) } else { bytes - bytes % u64::from(self.block_size) }
    }

    /// Returns how many bytes of a range with this end are past the end of a file that ends within a sector: less than
    /// a sector.
    pub(super) const fn missing(&self, end: u64) -> u64 {
        end.saturating_sub(self.odd_end)
    }

    /// Requests up to this byte need no look at the file. This call itself looks at the file once in a while.
    pub(super) fn end(&self, now: Time) -> u64 {
        if self.length.is_due(now) {
            self.look_at_length();
        }
        self.length.end()
    }

    /// Returns true if a request still lies within the file. A request that ends before `end`, which [`end`](Self::end)
    /// returned for the batch, needs no look.
    pub(super) fn still_holds(&self, rq: &Request<'_>, end: u64) -> bool {
        let reaches = (rq.sector() + u64::from(rq.nr_sectors())) * SECTOR_SIZE as u64;
        reaches < end || self.reaches(reaches)
    }

    /// Returns true if the file still has this many bytes.
    #[cold]
    fn reaches(&self, bytes: u64) -> bool {
        self.look_at_length();
        self.length.allows(bytes)
    }

    /// Looks whether the file has become shorter.
    #[cold]
    fn look_at_length(&self) {
        if let Some(shorter) = self.length.look(|| size_of(&self.buffered).ok()) {
            self.writeback_errors.is_shorter(shorter);
        }
    }

    /// Returns the status for the client of a request that has failed, and that reached up to byte `end`. Looks whether
    /// the file has become shorter: a disk that is gone has no bytes, and the kernel then says that a write finds no
    /// room.
    #[cold]
    pub(super) fn status_of_failed(&self, status: Status, end: u64) -> Status {
        let is_there = self.reaches(end);
        if status == Status::NoSpace && !is_there { Status::IoError } else { status }
    }

    pub(super) fn limits(&self) -> Limits {
        let bytes = self.bytes();
        self.length.report(bytes);
        let range = if self.is_read_only { 0 } else { MAX_RANGE_SECTORS };
        Limits {
            capacity_sectors: bytes.div_ceil(SECTOR_SIZE as u64),
            missing_bytes: (bytes.next_multiple_of(SECTOR_SIZE as u64) - bytes) as u16,
            logical_block_size: self.block_size,
            physical_block_size: self.block_size.max(4096),
            max_sectors: MAX_SECTORS,
            max_segments: MAX_SEGMENTS,
            max_segment_size: MAX_SECTORS * SECTOR_SIZE as u32,
            max_discard_sectors: range,
            max_write_zeroes_sectors: range,
            write_cache: !self.is_read_only,
            read_only: self.is_read_only,
            fua: true,
            ..Limits::default()
        }
    }

    /// Returns which file or block device it is.
    pub(super) fn identity(&self) -> io::Result<String> {
        identity(&self.buffered)
    }

    /// What was lost.
    pub(super) const fn writeback_errors(&self) -> &WritebackErrors {
        &self.writeback_errors
    }

    pub(super) fn health(&self) -> Health {
        self.look_at_length();
        if let Some(loss) = self.writeback_errors.first() {
            return Health::Failed(loss.to_owned());
        }
        let trouble = self.named_file.as_ref().and_then(|file| file.trouble(&self.buffered));
        trouble.map_or(Health::Good, Health::Orphaned)
    }

    /// What the file system knows of a stretch, including data that is only in the page cache. The call moves the
    /// offset of the descriptor. Reads and writes do not use that offset, because each of them names its own.
    ///
    /// COST: two or three system calls, which may have to read the file's map.
    pub(super) fn extent(&self, start: u64, bytes: u64) -> Extent {
        let end = start + bytes;
        match seek(&self.buffered, SeekFrom::Data(start)) {
            Ok(data) if data > start => Extent::hole(data.min(end) - start),
            // The end of the file counts as a hole. If a hole is found at `start`, it has just been made.
            Ok(_) => match seek(&self.buffered, SeekFrom::Hole(start)) {
                Ok(hole) if hole > start => Extent::data(hole.min(end) - start),
                _ => Extent::data(bytes),
            },
            // There is no more data up to the end of the file, and the end may be nearer than it was.
            Err(Errno::NXIO) => match size_of(&self.buffered).map(|size| size.min(end)) {
                Ok(until) if until > start => Extent::hole(until - start),
                _ => Extent::data(bytes),
            },
            // A block device, or a file system that does not tell.
            Err(_) => Extent::data(bytes),
        }
    }

    /// Returns the descriptors that a ring has to know. The first one goes past the page cache. By the third one ranges
    /// are changed: of a block device it is the one that claims the device, since by any other the kernel changes no
    /// range of which the page cache has something that is not written, while the device is claimed.
    pub(super) fn fds(&self) -> [RawFd; 3] {
        let buffered = self.buffered.as_raw_fd();
        let direct = self.direct.as_ref().map_or(buffered, AsRawFd::as_raw_fd);
        [direct, buffered, if self.is_block_device { self.writeback_errors.witness() } else { buffered }]
    }

    /// Returns true if the descriptor for reads and writes accepts this piece of memory.
    pub(super) fn takes(&self, address: usize, len: usize) -> bool {
        self.direct.is_none()
            || address.is_multiple_of(self.memory_align) && len.is_multiple_of(self.block_size as usize)
    }

    /// Returns the alignment of data in pages of the kernel, in bytes. 0 if none are taken: of a file that ends within
    /// a sector the rest of that sector has to be zeroed in memory.
    pub(super) fn pages_align(&self) -> u32 {
        let align = if self.direct.is_some() { self.memory_align.next_power_of_two() as u32 } else { 1 };
        if self.odd_end < u64::MAX { 0 } else { align }
    }

    /// Returns true if reads and writes go past the page cache.
    pub(super) const fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Returns true if the disk may be one that polls. If it says that it does not, this is certain.
    pub(super) const fn may_poll(&self) -> bool {
        self.may_poll
    }

    /// Reads and writes begin and end at multiples of this number of bytes.
    pub(super) fn io_block(&self) -> u64 {
        if self.direct.is_some() { self.block_size.into() } else { 1 }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_block_device { "block device" } else { "file" };
        let way = if self.direct.is_some() { "direct" } else { "buffered" };
        let access = if self.is_read_only { ", read only" } else { "" };
        write!(f, "({kind}, {} bytes, blocks of {}, {way}{access})", self.bytes(), self.block_size)
    }
}

impl Drop for Target {
    /// The kernel may keep the file for a moment on behalf of the rings. This unlocks the file, so that the next server
    /// need not wait for that.
    fn drop(&mut self) {
        let _ = flock(&self.buffered, FlockOperation::Unlock);
    }
}
