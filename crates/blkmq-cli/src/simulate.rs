//! `blkmq simulate`: starts the model of machines with many cores, which is a program of its own.

use std::ffi::OsString;

use blkmq_program::Failure;
use clap::Args;

use crate::beside;

/// Model the block layer on machines with many cores.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Simulate {
    /// What the model is told: 'blkmq simulate --help' explains it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

impl Simulate {
    /// Turns this process into the model. Returns only if that fails.
    pub(crate) fn run(self) -> Failure {
        beside::start("simulate", "blkmq-simulate", self.options)
    }
}
