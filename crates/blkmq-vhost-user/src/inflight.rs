//! What a server leaves behind of the operations in progress, so that the next one begins them once more: memory that
//! the front-end keeps.
//!
//! The layout is the standard's, since the next server may be another program. Each ring has a part of the memory: a
//! header, and an entry for each descriptor. A process may end after any of the stores below, and stores of one thread
//! are seen in their order. So an entry is marked only when all that it says is there, and the marks of a batch that
//! was given back are removed in a way that tells the next server which of them still stand.

mod split;

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

pub(crate) use self::split::Tracker;
use crate::memory::Area;
use crate::protocol::message::InflightInfo;

/// The parts begin at multiples of this.
const ALIGN: u64 = 64;
/// Where a part has its version, and the number of its entries. The header has the same beginning in both layouts.
const VERSION_AT: usize = 8;
const NR_AT: usize = 10;
const VERSION: u16 = 1;

/// The bytes of one ring's part.
fn part(size: u16) -> u64 {
    (split::HEADER as u64 + split::ENTRY as u64 * u64::from(size)).next_multiple_of(ALIGN)
}

/// The memory of all rings.
#[derive(Debug)]
pub(crate) struct Inflight {
    area: Area,
    info: InflightInfo,
}

impl Inflight {
    /// Memory for so many rings of this size, in which nothing is in progress, for the front-end to keep.
    pub(crate) fn make(nr_queues: u16, size: u16) -> Result<(InflightInfo, OwnedFd), String> {
        let len = part(size) * u64::from(nr_queues);
        let failed = |error: rustix::io::Errno| error.to_string();
        let file = memfd_create("blkmq-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&file, len).map_err(failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        let info = InflightInfo { len, offset: 0, nr_queues, size };
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        let inflight = Self::take(info, copy)?;
        for queue in 0..nr_queues {
            let area = inflight.of(queue);
            area.write(VERSION_AT, VERSION.to_le_bytes());
            area.write(NR_AT, size.to_le_bytes());
        }
        Ok((info, file))
    }

    /// Memory that the front-end has kept.
    pub(crate) fn take(info: InflightInfo, file: OwnedFd) -> Result<Self, String> {
        let needed = part(info.size) * u64::from(info.nr_queues);
        let is_aligned = info.offset.is_multiple_of(8);
        if info.size == 0 || info.len < needed || !is_aligned {
            return Err(format!("{} bytes at {} for {} rings", info.len, info.offset, info.nr_queues));
        }
        let offset = usize::try_from(info.offset).map_err(|error| error.to_string())?;
        let area = Area::of_file(File::from(file), offset, needed as usize)?;
        Ok(Self { area, info })
    }

    fn of(&self, queue: u16) -> Area {
        let len = part(self.info.size) as usize;
        self.area.part(usize::from(queue) * len, len)
    }

    /// What is kept of one ring. `None` if the memory has no part for it.
    pub(crate) fn tracker(&self, queue: u16, size: u16) -> Option<Tracker> {
        (queue < self.info.nr_queues && size <= self.info.size).then(|| Tracker::new(self.of(queue), size))
    }
}
