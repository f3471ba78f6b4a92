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

    /// Refuses what a worker could have to wait for, or what would never let it sleep, in the place of an eventfd.
    pub(super) fn admit_eventfd(
        &self,
        ring: u32,
        what: &str,
        file: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Ending> {
        match file {
            Some(file) if !self.workers[0].is_eventfd(&file) => {
                Err(Ending::Front(format!("the {what} descriptor of ring {ring} is no eventfd")))
            }
            file => Ok(file),
        }
    }
}
