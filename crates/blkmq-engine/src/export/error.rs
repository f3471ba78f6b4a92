//! Why an export makes no sense.

use std::fmt;

use super::MAX_TEXT;
use super::who::Who;

/// An export that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportError {
    /// The export's name.
    pub name: String,
    /// What is wrong with it.
    pub fault: ExportFault,
}

/// What is wrong with an export.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFault {
    /// The name has that many bytes, which are too many.
    LongName(usize),
    /// The name has a character in it that [is hidden](blkmq::is_hidden). It is part of the names of clients.
    HiddenName,
    /// The description has that many bytes, which are too many.
    LongDescription(usize),
    /// The weight is out of range.
    Weight(u16),
    /// The level of the priority is out of range.
    Level(u8),
    /// The level of the priority of a client is out of range.
    ClientLevel(Who, u8),
    /// Clients have to show certificates, and nothing says which of them may use the export.
    NoList,
    /// The placement is of another queue.
    ForeignPlacement,
    /// The list of the clients that may use the export is empty.
    Nobody,
    /// The list has a certificate without a name.
    NoName,
    /// The list has a certificate with a name that no client may have: a character in it [is hidden](blkmq::is_hidden).
    HiddenClient(Who),
    /// The list has a certificate, and no client has to show one.
    NotVerified(Who),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.fault {
            ExportFault::LongName(bytes) => {
                write!(f, "the name of an export has {bytes} bytes; at most {MAX_TEXT}")
            }
            ExportFault::HiddenName => {
                write!(f, "export {name:?}: a name has no characters that control a line or cannot be seen")
            }
            ExportFault::LongDescription(bytes) => {
                write!(f, "the description of an export has {bytes} bytes; at most {MAX_TEXT}")
            }
            ExportFault::Weight(weight) => {
                write!(f, "export {name:?} has weight {weight}; give a number from 1 to 1000")
            }
            ExportFault::Level(level) => {
                write!(f, "export {name:?} has priority level {level}; give a number from 0 to 7")
            }
            ExportFault::ClientLevel(who, level) => {
                write!(f, "export {name:?} gives {who} the priority level {level}; give a number from 0 to 7")
            }
            ExportFault::NoList => write!(
                f,
                "clients have to show certificates, but nothing says which of them may use export {name:?}; list them, or \
                 allow anybody"
            ),
            ExportFault::ForeignPlacement => {
                write!(f, "export {name:?} has a placement of another queue; give it one of its own queue")
            }
            ExportFault::Nobody => {
                write!(f, "export {name:?} allows nobody; name a client, or leave the export out")
            }
            ExportFault::NoName => write!(f, "export {name:?} allows a certificate without a name; give it one"),
            ExportFault::HiddenClient(who) => write!(
                f,
                "export {name:?} allows {who}; no client is let in whose name has characters that control a line or \
                 cannot be seen"
            ),
            ExportFault::NotVerified(who) => {
                write!(f, "export {name:?} allows {who}, but no client has to show one; have clients verified")
            }
        }
    }
}

impl std::error::Error for ExportError {}
