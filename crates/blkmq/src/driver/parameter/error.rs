//! Why a spec describes no device.

use std::error::Error;
use std::fmt;

use crate::driver::Cause;

/// Why a spec describes no device: one line that names the offending word and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SpecError {
    text: String,
    source: Option<Cause>,
}

impl SpecError {
    /// An error in the spec itself.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), source: None }
    }

    /// The spec is good, and the device cannot be opened. `source` says why.
    #[must_use]
    pub fn device(source: impl Error + Send + Sync + 'static) -> Self {
        Self { text: source.to_string(), source: Some(Cause::new(source)) }
    }

    /// The same error, with the place where it is: a device, or a parameter with its value.
    pub(in crate::driver) fn at(self, place: impl fmt::Display) -> Self {
        Self { text: format!("{place}: {}", self.text), ..self }
    }

    /// The same error, with more that may help.
    #[must_use]
    pub fn and(self, help: &str) -> Self {
        Self { text: format!("{}; {help}", self.text), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the place hides the cause, or if an error in the spec has one.
    #[test]
    fn an_error_keeps_its_cause_wherever_it_is() {
        let cause = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = SpecError::device(cause()).at("device file").and("make it");
        assert_eq!(error.to_string(), format!("device file: {}; make it", cause()));
        let found = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(found.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
        assert!(SpecError::new("no").at("device file").source().is_none());
    }
}
