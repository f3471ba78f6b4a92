//! Requests: 28 bytes, and the checks that each passes before the queue sees it.

use super::reply::Refusal;
use super::{Errno, REQUEST_MAGIC, command_flags, commands};

/// Bytes of a request without its data.
pub const REQUEST_SIZE: usize = 28;

/// A request as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`command_flags`].
    pub flags: u16,
    /// One of [`commands`], or an unknown number.
    pub kind: u16,
    /// The client's own number for the request.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

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

fn field<const N: usize>(bytes: &[u8; REQUEST_SIZE], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// The bytes do not begin like a request.
    pub fn parse(bytes: &[u8; REQUEST_SIZE]) -> Result<Self, NoRequest> {
        let magic = u32::from_be_bytes(field(bytes, 0));
        if magic != REQUEST_MAGIC {
            return Err(NoRequest(magic));
        }
        Ok(Self {
            flags: u16::from_be_bytes(field(bytes, 4)),
            kind: u16::from_be_bytes(field(bytes, 6)),
            cookie: u64::from_be_bytes(field(bytes, 8)),
            offset: u64::from_be_bytes(field(bytes, 16)),
            length: u32::from_be_bytes(field(bytes, 24)),
        })
    }

    /// Bytes of data that follow the request, whether the request is valid or not.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        if self.kind == commands::WRITE { self.length } else { 0 }
    }

    /// The command of the request, if the request is valid.
    ///
    /// # Errors
    /// What is wrong with the request, and what would be right.
    pub fn check(&self, terms: &Terms) -> Result<Command, Refusal> {
        if self.kind == commands::DISC {
            // No answer could refuse this request. A client that says that it leaves does leave, whatever else it says.
            return Ok(Command::Disconnect);
        }
        self.check_flags(terms)?;
        let is_change = matches!(self.kind, commands::WRITE | commands::TRIM | commands::WRITE_ZEROES);
        if is_change && terms.is_read_only {
            return Err(Refusal::new(Errno::Perm, "the export is read-only"));
        }
        if self.kind != commands::FLUSH {
            self.check_range(terms)?;
        }
        let fua = self.has(command_flags::FUA);
        match self.kind {
            commands::READ => self.check_payload(terms).map(|()| Command::Read),
            commands::WRITE => self.check_payload(terms).map(|()| Command::Write { fua }),
            commands::FLUSH if terms.can_flush => Ok(Command::Flush),
            commands::FLUSH => Err(Refusal::new(Errno::Invalid, "the device behind the export cannot flush")),
            commands::TRIM if terms.can_trim => Ok(Command::Trim { fua }),
            commands::TRIM => Err(Refusal::new(Errno::Invalid, "the device cannot discard, so there is no trim")),
            commands::CACHE => Ok(Command::Cache),
            commands::WRITE_ZEROES => self.check_zeroes(terms),
            _ => self.check_status(terms),
        }
    }

    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn check_flags(&self, terms: &Terms) -> Result<(), Refusal> {
        let own = match self.kind {
            commands::READ if terms.has_structured_replies => command_flags::DF,
            commands::WRITE_ZEROES => command_flags::NO_HOLE | command_flags::FAST_ZERO,
            commands::BLOCK_STATUS => command_flags::REQ_ONE,
            0..=commands::BLOCK_STATUS => 0,
            kind => return Err(Refusal::new(Errno::Invalid, format!("there is no request of type {kind}"))),
        };
        // FUA is allowed with every command, and means nothing where nothing is written. But FUA is refused where it
        // would be a promise that is not kept.
        let fua = if terms.can_fua { command_flags::FUA } else { 0 };
        match self.flags & !(own | fua) {
            0 => Ok(()),
            command_flags::FUA => Err(Refusal::new(Errno::Invalid, "the device behind the export has no FUA")),
            flags => {
                let message = format!("the flags {flags:#06x} mean nothing with a request of type {}", self.kind);
                Err(Refusal::new(Errno::Invalid, message))
            }
        }
    }

    fn check_range(&self, terms: &Terms) -> Result<(), Refusal> {
        let &Self { offset, length, .. } = self;
        if offset.checked_add(length.into()).is_none_or(|end| end > terms.size) {
            let takes_room = matches!(self.kind, commands::WRITE | commands::WRITE_ZEROES);
            let errno = if takes_room { Errno::NoSpace } else { Errno::Invalid };
            let message = format!("{length} bytes at {offset} reach beyond the end at {}", terms.size);
            return Err(Refusal::new(errno, message));
        }
        Ok(())
    }

    fn check_payload(&self, terms: &Terms) -> Result<(), Refusal> {
        if self.length <= terms.maximum {
            return Ok(());
        }
        let message = format!("{} bytes are too long for one request; at most {}", self.length, terms.maximum);
        Err(Refusal::new(Errno::Invalid, message))
    }

    fn check_zeroes(&self, terms: &Terms) -> Result<Command, Refusal> {
        let (fast, no_hole) = (self.has(command_flags::FAST_ZERO), self.has(command_flags::NO_HOLE));
        // If some bytes of a block do not change, the block is read and then written.
        let has_edge = self.length > 0 && (self.offset | u64::from(self.length)) & u64::from(terms.block - 1) != 0;
        if fast && (!terms.can_zero || has_edge) {
            return Err(Refusal::new(Errno::NotSupported, "these zeroes would take as long as writing them"));
        }
        Ok(Command::WriteZeroes { fua: self.has(command_flags::FUA), fast, no_hole })
    }

    fn check_status(&self, terms: &Terms) -> Result<Command, Refusal> {
        if !terms.has_allocation {
            return Err(Refusal::new(Errno::Invalid, "no metadata context was chosen for this export"));
        }
        if self.length == 0 {
            return Err(Refusal::new(Errno::Invalid, "a block status of no bytes"));
        }
        Ok(Command::BlockStatus { one: self.has(command_flags::REQ_ONE) })
    }
}

#[cfg(test)]
mod tests;
