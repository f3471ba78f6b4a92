//! The checks that each request passes before the queue sees it.

use super::reply::Refusal;
use super::{Errno, REQUEST_MAGIC, Request, command_flags, commands};

/// What the connection and the export agreed on, as far as it decides which requests are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes.
    pub size: u64,
    /// Size of the device's blocks in bytes, a power of two.
    pub block: u32,
    /// Longest read or write in bytes.
    pub maximum: u32,
    /// Whether nothing can be written.
    pub is_read_only: bool,
    /// Whether a flush can make completed data durable.
    pub can_flush: bool,
    /// Whether a write can be answered only when it is durable.
    pub can_fua: bool,
    /// Whether the device discards.
    pub can_trim: bool,
    /// Whether the device can write zeroes that are not sent to it.
    pub can_zero: bool,
    /// Whether structured replies were agreed on.
    pub has_structured_replies: bool,
    /// Whether the metadata context `base:allocation` was chosen.
    pub has_allocation: bool,
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Send the data.
    Read,
    /// Take the data, which follows the request.
    Write {
        /// Answer only when the data is durable.
        fua: bool,
    },
    /// Answer the requests that came before, and close the connection.
    Disconnect,
    /// Make completed data durable.
    Flush,
    /// Discard.
    Trim {
        /// Answer only when the discard is durable.
        fua: bool,
    },
    /// Read, and send no data.
    Cache,
    /// Write zeroes.
    WriteZeroes {
        /// Answer only when the zeroes are durable.
        fua: bool,
        /// Fail if the zeroes have to be sent to the device.
        fast: bool,
        /// Leave no hole.
        no_hole: bool,
    },
    /// Tell what is allocated.
    BlockStatus {
        /// Tell only the first extent.
        one: bool,
    },
}

/// No request begins where one should begin. So the bytes that follow cannot be understood either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request begins with {REQUEST_MAGIC:#010x}, not with {0:#010x}")]
pub struct NoRequest(
    /// What came in place of [`REQUEST_MAGIC`].
    pub u32,
);

impl Terms {
    /// The command of the request, if the request is valid.
    ///
    /// # Errors
    /// What is wrong with the request, and what would be right.
    pub fn check(&self, request: &Request) -> Result<Command, Refusal> {
        if request.kind == commands::DISC {
            // No answer could refuse this request. A client that says that it leaves does leave, whatever else it says.
            return Ok(Command::Disconnect);
        }
        self.check_flags(request)?;
        let is_change = matches!(request.kind, commands::WRITE | commands::TRIM | commands::WRITE_ZEROES);
        if is_change && self.is_read_only {
            return Err(Refusal::new(Errno::Perm, "the export is read-only"));
        }
        if request.kind != commands::FLUSH {
            self.check_range(request)?;
        }
        let fua = has(request, command_flags::FUA);
        match request.kind {
            commands::READ => self.check_payload(request).map(|()| Command::Read),
            commands::WRITE => self.check_payload(request).map(|()| Command::Write { fua }),
            commands::FLUSH if self.can_flush => Ok(Command::Flush),
            commands::FLUSH => Err(Refusal::new(Errno::Invalid, "the device behind the export cannot flush")),
            commands::TRIM if self.can_trim => Ok(Command::Trim { fua }),
            commands::TRIM => Err(Refusal::new(Errno::Invalid, "the device cannot discard, so there is no trim")),
            commands::CACHE => Ok(Command::Cache),
            commands::WRITE_ZEROES => self.check_zeroes(request),
            _ => self.check_status(request),
        }
    }

    fn check_flags(&self, request: &Request) -> Result<(), Refusal> {
        let own = match request.kind {
            commands::READ if self.has_structured_replies => command_flags::DF,
            commands::WRITE_ZEROES => command_flags::NO_HOLE | command_flags::FAST_ZERO,
            commands::BLOCK_STATUS => command_flags::REQ_ONE,
            0..=commands::BLOCK_STATUS => 0,
            kind => return Err(Refusal::new(Errno::Invalid, format!("there is no request of type {kind}"))),
        };
        // FUA is allowed with every command, and means nothing where nothing is written. But FUA is refused where it
        // would be a promise that is not kept.
        let fua = if self.can_fua { command_flags::FUA } else { 0 };
        match request.flags & !(own | fua) {
            0 => Ok(()),
            command_flags::FUA => Err(Refusal::new(Errno::Invalid, "the device behind the export has no FUA")),
            flags => {
                let message = format!("the flags {flags:#06x} mean nothing with a request of type {}", request.kind);
                Err(Refusal::new(Errno::Invalid, message))
            }
        }
    }

    fn check_range(&self, request: &Request) -> Result<(), Refusal> {
        let &Request { offset, length, .. } = request;
        if offset.checked_add(length.into()).is_none_or(|end| end > self.size) {
            let takes_room = matches!(request.kind, commands::WRITE | commands::WRITE_ZEROES);
            let errno = if takes_room { Errno::NoSpace } else { Errno::Invalid };
            let message = format!("{length} bytes at {offset} reach beyond the end at {}", self.size);
            return Err(Refusal::new(errno, message));
        }
        Ok(())
    }

    fn check_payload(&self, request: &Request) -> Result<(), Refusal> {
        if request.length <= self.maximum {
            return Ok(());
        }
        let message = format!("{} bytes are too long for one request; at most {}", request.length, self.maximum);
        Err(Refusal::new(Errno::Invalid, message))
    }

    fn check_zeroes(&self, request: &Request) -> Result<Command, Refusal> {
        let (fast, no_hole) = (has(request, command_flags::FAST_ZERO), has(request, command_flags::NO_HOLE));
        // If some bytes of a block do not change, the block is read and then written.
        let has_edge =
            request.length > 0 && (request.offset | u64::from(request.length)) & u64::from(self.block - 1) != 0;
        if fast && (!self.can_zero || has_edge) {
            return Err(Refusal::new(Errno::NotSupported, "these zeroes would take as long as writing them"));
        }
        Ok(Command::WriteZeroes { fua: has(request, command_flags::FUA), fast, no_hole })
    }

    fn check_status(&self, request: &Request) -> Result<Command, Refusal> {
        if !self.has_allocation {
            return Err(Refusal::new(Errno::Invalid, "no metadata context was chosen for this export"));
        }
        if request.length == 0 {
            return Err(Refusal::new(Errno::Invalid, "a block status of no bytes"));
        }
        Ok(Command::BlockStatus { one: has(request, command_flags::REQ_ONE) })
    }
}

const fn has(request: &Request, flag: u16) -> bool {
    request.flags & flag != 0
}

#[cfg(test)]
mod tests;
