//! `blkmq simulate`: the block layer on the CPUs of modelled machines. The program `blkmq` starts this one.

mod curves;
mod native;
mod output;
mod parallel;
mod scaling;
mod threads;
mod validate;

use std::process::ExitCode;

use blkmq_program::EXIT_CODES;
use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  blkmq simulate scaling --job job.fio --machine 7950x --threads 1,2,4,..,32 --scheduler mq-deadline
  blkmq simulate validate
  blkmq simulate native

The very code of the block layer runs on virtual CPUs, on which each access to a cache line costs what the distance of the
CPUs makes it cost. So what many cores do to a scheduler can be seen on a machine that has few. Everything that this program
prints is modelled, and follows from a seed.";

/// Model the block layer on machines with many cores.
#[derive(Debug, Parser)]
#[command(name = "blkmq-simulate", bin_name = "blkmq simulate", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Simulate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Scaling(scaling::Scaling),
    Validate(validate::Validate),
    Native(native::Native),
}

fn main() -> ExitCode {
    blkmq_program::main(|simulate: Simulate, out| match simulate.command {
        Command::Scaling(scaling) => scaling.run(out),
        Command::Validate(validate) => validate.run(out),
        Command::Native(native) => native.run(out),
    })
}
