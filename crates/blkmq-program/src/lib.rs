//! What the programs `blkmq`, `blkmq-torture` and `blkmq-simulate` have in common, so that all speak to their user in
//! one way: how they refuse and fail, how Ctrl-C ends a run, how they show progress, and how they print numbers,
//! tables, JSON and pages.

pub mod columns;
mod failure;
pub mod file;
pub mod interrupt;
pub mod json;
pub mod machine;
pub mod page;
pub mod progress;
pub mod render;
mod usage;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

pub use failure::{Failure, exit_code, notice};

/// What the help of each command says of exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something failed while running
  2  bad usage or bad input; one line on standard error says what was wrong and what would be right";

/// The end of the help of a command: examples and more, and what each exit code says.
pub fn after_help(examples: &str) -> String {
    format!("{examples}\n{EXIT_CODES}")
}

/// A whole program: parses the command line as `P`, runs it with its standard output, and reports how that ended.
pub fn main<P: Parser>(run: impl FnOnce(P, &mut dyn Write) -> Result<(), Failure>) -> ExitCode {
    interrupt::outlive_file_size_limit();
    let done = P::try_parse().map_err(|error| usage::explain::<P>(&error)).and_then(|program| {
        let out = &mut io::stdout().lock();
        // What is still in the buffer would be lost without a word at the end.
        run(program, out).and_then(|()| Ok(out.flush()?))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
