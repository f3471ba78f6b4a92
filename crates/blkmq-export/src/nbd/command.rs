//! The checks that each request passes before the queue sees it.

use blkmq_engine::{Ask, Cause, Failure};

use super::extents::MAX_EXTENTS;
use super::{REQUEST_MAGIC, Request, command_flags, commands};

/// The terms of a connection: its export's, and what was negotiated, as far as it decides which requests are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The export's size and abilities, as the client was told them.
    pub export: blkmq_engine::Terms,
    /// Longest read or write in bytes.
    pub maximum: u32,
    /// Whether structured replies were negotiated.
    pub has_structured_replies: bool,
    /// Whether the metadata context `base:allocation` was chosen.
    pub has_allocation: bool,
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Close the connection once the requests that came before are answered.
    Disconnect,
    /// An operation of the engine. The data of a write follows the request.
    Operation(Ask),
    /// Report what is allocated.
    BlockStatus {
        /// The most extents that the reply may have.
        max_extents: usize,
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
    /// Returns the command of a valid request.
    ///
    /// # Errors
    /// What is wrong with the request, and what would be right.
    pub fn check(&self, request: &Request) -> Result<Command, Failure> {
        if request.kind == commands::DISC {
            // No answer could refuse this request. A client that says that it leaves does leave, whatever else it says.
            return Ok(Command::Disconnect);
        }
        self.check_flags(request)?;
        let has = |flag: u16| request.flags & flag != 0;
        let fua = has(command_flags::FUA);
        let ask = match request.kind {
            commands::WRITE => Ask::Write { fua },
            commands::FLUSH => Ask::Flush,
            commands::TRIM => Ask::Discard { fua },
            commands::CACHE => Ask::Cache,
            commands::WRITE_ZEROES => {
                Ask::WriteZeroes { fua, no_hole: has(command_flags::NO_HOLE), fast: has(command_flags::FAST_ZERO) }
            }
            // The range of a block status is checked like that of a read.
            _ => Ask::Read,
        };
        self.export.check(ask, request.offset, request.length.into()).map_err(|failure| in_nbd(failure, ask))?;
        match request.kind {
            commands::READ | commands::WRITE if request.length > self.maximum => {
                let bytes = request.length;
                invalid(format!("{bytes} bytes are too long for one request; at most {}", self.maximum))
            }
            commands::WRITE_ZEROES if has(command_flags::FAST_ZERO) && self.cuts_block(request) => {
                Err(Failure::new(Cause::Unsupported, "these zeroes would take as long as writing them"))
            }
            commands::BLOCK_STATUS if !self.has_allocation => invalid("no metadata context was chosen for this export"),
            commands::BLOCK_STATUS if request.length == 0 => invalid("a block status of no bytes"),
            commands::BLOCK_STATUS => {
                Ok(Command::BlockStatus { max_extents: if has(command_flags::REQ_ONE) { 1 } else { MAX_EXTENTS } })
            }
            _ => Ok(Command::Operation(ask)),
        }
    }

    fn check_flags(&self, request: &Request) -> Result<(), Failure> {
        let own = match request.kind {
            commands::READ if self.has_structured_replies => command_flags::DF,
            commands::WRITE_ZEROES => command_flags::NO_HOLE | command_flags::FAST_ZERO,
            commands::BLOCK_STATUS => command_flags::REQ_ONE,
            0..=commands::BLOCK_STATUS => 0,
            kind => return invalid(format!("there is no request of type {kind}")),
        };
        // FUA is allowed with every command, and means nothing where nothing is written. But FUA is refused where it
        // would be a promise that is not kept.
        let fua = if self.export.can_fua { command_flags::FUA } else { 0 };
        match request.flags & !(own | fua) {
            0 => Ok(()),
            command_flags::FUA => invalid("the device behind the export has no FUA"),
            flags => invalid(format!("the flags {flags:#06x} mean nothing with a request of type {}", request.kind)),
        }
    }

    /// Returns true if the request changes only a part of some block, which is then read first.
    fn cuts_block(&self, request: &Request) -> bool {
        let edges = request.offset | u64::from(request.length);
        request.length > 0 && edges & u64::from(self.export.block - 1) != 0
    }
}

fn invalid<T>(message: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Failure> {
    Err(Failure::new(Cause::Invalid, message))
}

/// Returns the failure with the cause that the protocol has for it: `ENOSPC` for a write past the end, and `ENOTSUP`
/// for fast zeroes alone.
fn in_nbd(failure: Failure, ask: Ask) -> Failure {
    let cause = match (failure.cause, ask) {
        (Cause::Invalid, Ask::Write { .. } | Ask::WriteZeroes { .. }) => Cause::NoSpace,
        (Cause::Unsupported, ask) if !matches!(ask, Ask::WriteZeroes { fast: true, .. }) => Cause::Invalid,
        (cause, _) => cause,
    };
    Failure { cause, ..failure }
}

#[cfg(test)]
mod tests;
