//! Output for programs.

use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;

/// Prints a value as one line of JSON.
pub fn print(value: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
    let text = serde_json::to_string(value).expect("numbers, strings and maps with names for keys are valid JSON");
    writeln!(out, "{text}")?;
    Ok(())
}
