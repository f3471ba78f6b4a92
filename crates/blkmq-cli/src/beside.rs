//! Programs of their own that lie beside this one, and are commands of it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io};

use blkmq_program::Failure;
use clap::Args;

/// The options of such a program.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The options of the program, which its own --help explains.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Turns this process into the program `blkmq-COMMAND`, which lies in the folder in which this program lies, or on
/// PATH. Returns only if that fails.
pub(crate) fn start(command: &str, Options { options }: Options) -> Failure {
    let program = &format!("blkmq-{command}");
    let path = match env::current_exe() {
        Ok(this) => this.with_file_name(program),
        Err(error) => {
            return Failure::Running(format!("{command}: this program cannot find its own folder: {error}"));
        }
    };
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let mut error = Command::new(&path).args(&options).exec();
    if is_missing(&error) {
        // A name without a folder is looked for on PATH.
        error = Command::new(program).args(options).exec();
    }
    let path = path.display();
    Failure::Running(if is_missing(&error) {
        format!(
            "{command}: there is no {path}, and no {program} on PATH; in a clone 'cargo build --release -p {program}' \
             builds it beside 'target/release/blkmq', and 'cargo install --locked --git URL {program}' installs it as \
             'blkmq' is installed"
        )
    } else {
        format!("{command}: {path}: it cannot be started: {error}")
    })
}
