//! What a server leaves behind of the operations in progress, so that the next one begins them once more: memory that
//! the front-end keeps.
//!
//! The layout is the standard's, since the next server may be another program. Each ring has a part of the memory: a
//! header, and an entry for each descriptor. A process may end after any of the stores below, and stores of one thread
//! are seen in their order. So an entry is marked only when all that it says is there, and the marks of a batch that
//! was given back are removed in a way that tells the next server which of them still stand.

pub(crate) mod packed;
pub(crate) mod split;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::memory::Area;
use crate::protocol::message::InflightInfo;
use crate::ring::Fault;

/// The parts begin at multiples of this.
const ALIGN: u64 = 64;
/// Where a part has its version, and the number of its entries. The header has the same beginning in both layouts. A
/// part without a version is new.
const VERSION_AT: usize = 8;
const NR_AT: usize = 10;
const VERSION: u16 = 1;
/// In an entry of either layout: whether it is in progress, and when it was begun.
const MARK: usize = 0;
const COUNTER: usize = 8;

/// One ring's part, with the lengths of its layout.
#[derive(Debug)]
pub(crate) struct Part {
    area: Area,
    header: usize,
    entry: usize,
    nr_entries: u16,
}

impl Part {
    fn at(&self, entry: u16, field: usize) -> usize {
        self.header + self.entry * usize::from(entry) + field
    }

    fn short(&self, at: usize) -> u16 {
        // Relaxed: the server that wrote it is gone, or is this one.
        self.area.load(at, Ordering::Relaxed)
    }

    fn set_short(&self, at: usize, value: u16) {
        // Relaxed: the next server reads it when this one is gone. One store, for this one may be killed at any point.
        self.area.store(at, value, Ordering::Relaxed);
    }

    fn mark(&self, entry: u16, is_in_progress: bool) {
        self.area.write(self.at(entry, MARK), u8::from(is_in_progress));
    }

    fn is_marked(&self, entry: u16) -> bool {
        self.area.read::<u8>(self.at(entry, MARK)) != 0
    }

    fn counter(&self, entry: u16) -> u64 {
        u64::from_le(self.area.read(self.at(entry, COUNTER)))
    }

    fn set_counter(&self, entry: u16, counter: u64) {
        self.area.write(self.at(entry, COUNTER), counter.to_le());
    }
}

/// The bytes of a part's header, and of an entry.
fn lengths(is_packed: bool) -> (usize, usize) {
    if is_packed { (packed::HEADER, packed::ENTRY) } else { (split::HEADER, split::ENTRY) }
}

/// The bytes of one ring's part.
fn part_len(size: u16, is_packed: bool) -> u64 {
    let (header, entry) = lengths(is_packed);
    (header as u64 + entry as u64 * u64::from(size)).next_multiple_of(ALIGN)
}

/// The memory of all rings.
#[derive(Debug)]
pub(crate) struct Inflight {
    area: Area,
    info: InflightInfo,
    is_packed: bool,
}

impl Inflight {
    /// Memory for so many rings of this size, of either kind, in which nothing is in progress, for the front-end to
    /// keep.
    pub(crate) fn make(nr_queues: u16, size: u16) -> Result<(InflightInfo, OwnedFd), String> {
        let len = part_len(size, true) * u64::from(nr_queues);
        let failed = |error: rustix::io::Errno| error.to_string();
        let file = memfd_create("blkmq-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&file, len).map_err(failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Ok((InflightInfo { len, offset: 0, nr_queues, size }, file))
    }

    /// Memory that the front-end has kept, for rings of one kind.
    pub(crate) fn take(info: InflightInfo, file: OwnedFd, is_packed: bool) -> Result<Self, String> {
        let needed = part_len(info.size, is_packed) * u64::from(info.nr_queues);
        let is_aligned = info.offset.is_multiple_of(8);
        if info.size == 0 || info.len < needed || !is_aligned {
            return Err(format!("{} bytes at {} for {} rings", info.len, info.offset, info.nr_queues));
        }
        let offset = usize::try_from(info.offset).map_err(|error| error.to_string())?;
        let area = Area::of_file(File::from(file), offset, needed as usize)?;
        Ok(Self { area, info, is_packed })
    }

    /// The part of one ring of this size. `None` if the memory has none for it.
    pub(crate) fn part(&self, queue: u16, size: u16, is_packed: bool) -> Result<Option<Part>, Fault> {
        if is_packed != self.is_packed {
            return Err(Fault::Record);
        }
        if queue >= self.info.nr_queues {
            return Ok(None);
        }
        if size > self.info.size {
            return Err(Fault::RecordSize { ring: size, record: self.info.size });
        }
        let (header, entry) = lengths(is_packed);
        let len = part_len(self.info.size, is_packed) as usize;
        let area = self.area.part(usize::from(queue) * len, len);
        Ok(Some(Part { area, header, entry, nr_entries: self.info.size }))
    }
}

#[cfg(test)]
mod tests;
