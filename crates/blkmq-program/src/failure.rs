//! Why the program ends early, and with which exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use blkmq_workbench::TextError;
use blkmq_workbench::compare::CompareError;

/// The exit code of a command, as shells report it.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(1)
}

/// Why the program ends early.
#[derive(Debug)]
pub enum Failure {
    /// Help or the version was asked for: this text on standard output, exit code 0.
    Asked(String),
    /// Bad usage or bad input: one line on standard error, exit code 2.
    Input(String),
    /// Something failed while running: one line on standard error, exit code 1.
    Running(String),
    /// The program that read our output has stopped, so no message can reach it.
    Unread,
    /// A command that was run for the user ended with this exit code, and has said why itself.
    Command(u8),
}

impl Failure {
    /// An error of writing a file.
    pub fn writing(path: impl Display, error: &io::Error) -> Self {
        Self::Running(format!("{path}: {error}"))
    }

    /// The exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Asked(_) => 0,
            Self::Running(_) | Self::Unread => 1,
            Self::Input(_) => 2,
            Self::Command(code) => *code,
        }
    }

    /// Reports the failure, and returns the exit code.
    pub fn report(self) -> ExitCode {
        match &self {
            Self::Asked(text) => {
                if let Err(error) = io::stdout().write_all(text.as_bytes()) {
                    return Self::from(error).report();
                }
            }
            Self::Input(text) | Self::Running(text) => notice(text),
            Self::Unread | Self::Command(_) => (),
        }
        ExitCode::from(self.code())
    }
}

/// Says on standard error what the user should know: in one line, whatever the words that it quotes contain. If it
/// cannot be written, the program goes on, and at its end the exit code has to be enough.
pub fn notice(text: &str) {
    // If it cannot be written, there is no other way to tell the user.
    let _ = writeln!(io::stderr(), "blkmq: {}", text.replace(['\n', '\r'], " "));
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<CompareError> for Failure {
    fn from(error: CompareError) -> Self {
        Self::Running(match &error {
            CompareError::Nothing(name, slice) => {
                format!("{name}: no operation completed within {slice:?}; give --runtime a longer time")
            }
            _ => error.to_string(),
        })
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
