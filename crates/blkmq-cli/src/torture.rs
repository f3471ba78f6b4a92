//! `blkmq torture`: starts the torture rig, which is a program of its own.

use std::ffi::OsString;

use blkmq_program::Failure;
use clap::Args;

use crate::beside;

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
        beside::start("torture", "blkmq-torture", self.options)
    }
}
