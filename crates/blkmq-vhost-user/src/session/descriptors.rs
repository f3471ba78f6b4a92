//! Which descriptors of a front-end a session uses.

use std::fmt::Display;
use std::os::fd::OwnedFd;

use super::{Ending, Session};
use crate::memory::{Memory, RegionInfo, kind};

impl Session<'_> {
    /// Adds a region of the guest's memory.
    pub(super) fn add_region(&self, memory: &mut Memory, info: RegionInfo, file: OwnedFd) -> Result<(), Ending> {
        self.admit_memory(format_args!("the file of the region at {:#x}", info.guest), &file)?;
        Ok(memory.add(info, file)?)
    }

    /// Refuses memory that could stop or end this process.
    pub(super) fn admit_memory(&self, what: impl Display, file: &OwnedFd) -> Result<(), Ending> {
        if self.device.any_memory {
            return Ok(());
        }
        kind::check(file).map_err(|why| Ending::Front(format!("{what} {why}")))
    }
}
