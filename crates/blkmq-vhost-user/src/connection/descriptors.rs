//! Which descriptors of a front-end a connection uses.

use std::fmt::Display;
use std::os::fd::OwnedFd;

use super::{Connection, Ending};
use crate::foreign::Foreign;
use crate::memory::{Memory, RegionInfo, kind};
use crate::protocol::message::Signal;

impl Connection<'_> {
    /// Adds a region of the guest's memory.
    pub(super) fn add_region(&self, memory: &mut Memory, info: RegionInfo, file: Foreign) -> Result<(), Ending> {
        let file = self.admit_memory(format_args!("the file of the region at {:#x}", info.guest), file)?;
        Ok(memory.add(info, file)?)
    }

    /// Refuses memory that could stop or end this process.
    pub(super) fn admit_memory(&self, what: impl Display, file: Foreign) -> Result<OwnedFd, Ending> {
        file.admit(|file| if self.device.any_memory { Ok(()) } else { kind::check(file) })
            .map_err(|why| Ending::Front(format!("{what} {why}")))
    }

    /// Refuses what a worker could have to wait for, or what would never let it sleep, in the place of an eventfd.
    pub(super) fn admit_eventfd(
        &self,
        ring: u32,
        signal: Signal,
        file: Option<Foreign>,
    ) -> Result<Option<OwnedFd>, Ending> {
        let check = |file: &OwnedFd| if self.workers[0].is_eventfd(file) { Ok(()) } else { Err(()) };
        let admitted = file.map(|file| file.admit(check)).transpose();
        let name = format!("{signal:?}").to_lowercase();
        admitted.map_err(|()| Ending::Front(format!("the {name} descriptor of ring {ring} is no eventfd")))
    }
}
