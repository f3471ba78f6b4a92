//! What an operator has given, on the command line or in a file, with the place where it was given. Everything that
//! reads such words calls in.

use std::fmt;

use blkmq_workbench::TextError;
use serde::Deserialize;

/// A word, and the place where it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) text: String,
    /// The place: an option, or a file and line.
    pub(super) place: String,
}

impl Given {
    pub(super) fn option(name: &str, text: &str) -> Self {
        Self { text: text.to_owned(), place: format!("--{name}") }
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> TextError {
        TextError { place: self.place.clone(), what: what.into() }
    }
}

/// The value of a knob, in any suitable type.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number, a text, or true or false")]
pub(super) enum Word {
    Number(i64),
    Switch(bool),
    Text(String),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Switch(switch) => u8::from(*switch).fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}
