//! Why a device cannot be opened: one error for both devices.
//!
//! The function that fails says what was wrong; the functions above it add the file or the server.

use std::fmt;
use std::io;

use blkmq::driver::spec::SpecError;

/// Why a device cannot be opened, or cannot have that many hardware queues: one line that begins with the file or the
/// server.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct OpenError {
    text: String,
    /// What the system said, if the system refused something.
    source: Option<io::Error>,
}

impl OpenError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), source: None }
    }

    /// What the system said is told in other words, or with others.
    pub(crate) fn system(text: impl Into<String>, source: io::Error) -> Self {
        Self { text: text.into(), source: Some(source) }
    }

    /// Returns the same error, with the file or the server.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        Self { text: format!("{place}: {}", self.text), ..self }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::system(error.to_string(), error)
    }
}

impl From<OpenError> for SpecError {
    fn from(error: OpenError) -> Self {
        Self::device(error)
    }
}
