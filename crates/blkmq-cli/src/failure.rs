//! Why the program ends early, and with which exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use blkmq_workbench::TextError;

/// Why the program ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Help or the version was asked for: this text on standard output, exit code 0.
    Asked(String),
    /// Bad usage or bad input: one line on standard error, exit code 2.
    Input(String),
    /// Something failed while running: one line on standard error, exit code 1.
    Running(String),
    /// Whoever read our output has stopped. There is nobody to tell.
    Unread,
    /// A command that was run for the user ended with this exit code, and has said why itself.
    Command(u8),
}

impl Failure {
    /// An error about a file that is written.
    pub(crate) fn writing(path: impl Display, error: &io::Error) -> Self {
        Self::Running(format!("{path}: {error}"))
    }

    /// Says it, and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Asked(text) => {
                return match io::stdout().write_all(text.as_bytes()) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => Self::from(error).report(),
                };
            }
            Self::Unread => return ExitCode::FAILURE,
            Self::Command(code) => return ExitCode::from(code),
            Self::Input(text) => (text, 2),
            Self::Running(text) => (text, 1),
        };
        // One line, whatever the words it quotes contain. If it cannot be written either, the exit code has to do.
        let _ = writeln!(io::stderr(), "blkmq: {}", text.replace(['\n', '\r'], " "));
        ExitCode::from(code)
    }
}

/// Says on standard error what the user should know though the program goes on, in one line.
pub(crate) fn notice(text: &str) {
    // If it cannot be written there is nobody to tell.
    let _ = writeln!(io::stderr(), "blkmq: {}", text.replace(['\n', '\r'], " "));
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Unread,
            _ => Self::writing("standard output", &error),
        }
    }
}
