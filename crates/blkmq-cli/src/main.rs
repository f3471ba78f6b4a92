//! The blkmq program.

mod failure;
mod replay;
mod schedulers;
mod usage;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something failed while running
  2  bad usage or bad input; one line on standard error says what was wrong and what would be right";

/// The multi-queue block layer for user space: replays Linux traces and explains its schedulers.
#[derive(Debug, Parser)]
#[command(name = "blkmq", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(replay::Replay),
    Schedulers(schedulers::Schedulers),
}

fn main() -> ExitCode {
    let done = Cli::try_parse().map_err(|error| usage::explain(&error)).and_then(|cli| {
        let out = &mut io::stdout().lock();
        match cli.command {
            Command::Replay(replay) => replay.run(out),
            Command::Schedulers(schedulers) => schedulers.run(out),
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
