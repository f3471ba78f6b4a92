//! What `--json` asks for: the result on standard output instead of the table, or in a file beside it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use blkmq_program::{Failure, json};
use blkmq_workbench::TextError;
use serde::Serialize;

/// Where a result goes as JSON.
pub(super) enum Output {
    Nowhere,
    Printed,
    /// A file that can be written, and that has not been changed yet.
    File(PathBuf, File),
}

impl Output {
    /// Opens the file before there is something to write, so that a wrong name is told at once.
    pub(super) fn open(json: Option<&Option<PathBuf>>) -> Result<Self, TextError> {
        match json {
            None => Ok(Self::Nowhere),
            Some(None) => Ok(Self::Printed),
            Some(Some(path)) => Self::open_file(path),
        }
    }

    fn open_file(path: &Path) -> Result<Self, TextError> {
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Self::File(path.to_owned(), file)),
            Err(error) => {
                let place = format!("--json {}", path.display());
                Err(TextError { place, what: format!("the file cannot be written: {error}") })
            }
        }
    }

    /// Writes the result, in a file in place of what that holds, and calls `table` unless the result is printed.
    pub(super) fn write(
        self,
        result: &impl Serialize,
        out: &mut dyn Write,
        table: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match self {
            Self::Printed => return json::print(result, out),
            Self::File(path, mut file) => {
                let mut text = Vec::new();
                json::print(result, &mut text)?;
                let written = file.set_len(0).and_then(|()| file.write_all(&text));
                written.map_err(|error| Failure::writing(path.display(), &error))?;
            }
            Self::Nowhere => {}
        }
        Ok(table(out)?)
    }
}
