//! Why an export is not accepted.

use super::MAX_TEXT;
use super::identity::Identity;

/// An export that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("export {:?} {fault}", &name[..name.floor_char_boundary(MAX_SHOWN)])]
pub struct ExportError {
    /// The export's name.
    pub name: String,
    /// What is wrong with it.
    pub fault: ExportFault,
}

/// Bytes of a name that a message repeats.
const MAX_SHOWN: usize = 256;

/// What is wrong with an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportFault {
    /// The name has that many bytes, which are too many.
    #[error("has a name of {0} bytes; at most {MAX_TEXT}")]
    LongName(usize),
    /// The name has a character in it that [is hidden](blkmq::is_hidden). It is part of the names of clients.
    #[error("has a name with characters that control a line or cannot be seen; leave them out")]
    HiddenName,
    /// The description has that many bytes, which are too many.
    #[error("has a description of {0} bytes; at most {MAX_TEXT}")]
    LongDescription(usize),
    /// The weight is out of range.
    #[error("has weight {0}; give a number from 1 to 1000")]
    Weight(u16),
    /// The level of the priority is out of range.
    #[error("has priority level {0}; give a number from 0 to 7")]
    Level(u8),
    /// The level of the priority of a client is out of range.
    #[error("gives {0} the priority level {1}; give a number from 0 to 7")]
    ClientLevel(Identity, u8),
    /// Clients have to show certificates, and nothing says which of them may use the export.
    #[error(
        "has no list of clients, although clients have to show certificates; list those that may use it, or allow anybody"
    )]
    NoList,
    /// The placement is of another queue.
    #[error("has a placement of another queue; give it one of its own queue")]
    ForeignPlacement,
    /// The list of the clients that may use the export is empty.
    #[error("allows nobody; name a client, or leave the export out")]
    Nobody,
    /// The list has a certificate without a name.
    #[error("allows a certificate without a name; give it one")]
    NoName,
    /// The list has a certificate with a name that no client may have: a character in it [is hidden](blkmq::is_hidden).
    #[error("allows {0}; no client is let in whose name has characters that control a line or cannot be seen")]
    HiddenClient(Identity),
    /// The list has a certificate, and no client has to show one.
    #[error("allows {0}, but no client has to show one; have clients verified")]
    NotVerified(Identity),
}
