//! `blkmq torture`: starts the torture rig, which is a program of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io};

use blkmq_program::Failure;
use clap::Args;

/// The program of the rig. It lies in the folder in which this program lies.
const RIG: &str = "blkmq-torture";

/// Torture the block layer on virtual CPUs, and check all that it promises.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Torture {
    /// What the rig is told: 'blkmq torture --help' explains it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

impl Torture {
    /// Turns this process into the rig. Returns only if that fails.
    pub(crate) fn run(self) -> Failure {
        let rig = match env::current_exe() {
            Ok(this) => this.with_file_name(RIG),
            Err(error) => {
                return Failure::Running(format!("torture: this program cannot find its own folder: {error}"));
            }
        };
        let error = Command::new(&rig).args(self.options).exec();
        let rig = rig.display();
        Failure::Running(match error.kind() {
            io::ErrorKind::NotFound => format!(
                "torture: {rig}: there is no such program; in a clone 'cargo build --release -p {RIG}' builds it beside \
                 'target/release/blkmq', and 'cargo install --locked --git URL {RIG}' installs it as 'blkmq' is installed"
            ),
            _ => format!("torture: {rig}: it cannot be started: {error}"),
        })
    }
}
