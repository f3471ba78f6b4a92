//! A file for a result as JSON.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use blkmq_program::{Failure, json};
use blkmq_workbench::TextError;
use serde::Serialize;

/// A file that can be written, and that has not been changed yet.
pub(super) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens a file before there is something to write, so that a wrong name is told at once.
    pub(super) fn open(path: &Path) -> Result<Self, TextError> {
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Self { path: path.to_owned(), file }),
            Err(error) => {
                let place = format!("--json {}", path.display());
                Err(TextError { place, what: format!("the file cannot be written: {error}") })
            }
        }
    }

    /// Writes the result in place of what the file holds.
    pub(super) fn write(mut self, result: &impl Serialize) -> Result<(), Failure> {
        let mut text = Vec::new();
        json::print(result, &mut text)?;
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(&text));
        written.map_err(|error| Failure::writing(self.path.display(), &error))
    }
}
