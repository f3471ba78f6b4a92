//! Files that are read.

use std::fs;
use std::path::Path;

use blkmq_workbench::TextError;

/// The text of a file.
pub fn read(path: &Path) -> Result<String, TextError> {
    let fault = |what| TextError { place: path.display().to_string(), what };
    let bytes = fs::read(path).map_err(|error| fault(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| {
        fault(format!("byte {} is not UTF-8; a text is wanted here", error.utf8_error().valid_up_to()))
    })
}
