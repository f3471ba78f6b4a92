//! A vhost-user-blk client that is not blkmq's own: the crate `blkio`, which other projects use. `load` measures how
//! many requests a server does in a second, and is also a flood beside other clients. `check` writes, reads back, and
//! compares, with each kind of request that `blkio` has for this protocol.

mod check;
mod disk;
mod load;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A vhost-user-blk client made of the crate blkio.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep requests outstanding for a time, and print the requests of a second.
    Load(LoadArgs),
    /// Write, read back and compare; exits with 1 at the first difference.
    Check(CheckArgs),
}

#[derive(Args)]
struct LoadArgs {
    /// The server's socket.
    socket: PathBuf,
    /// Requests outstanding on each queue.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Queues, each with a thread of its own.
    #[arg(long, default_value_t = 1)]
    queues: usize,
    /// How long, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Bytes of a request: a multiple of 512.
    #[arg(long, default_value_t = 4096)]
    block: usize,
    /// Writes instead of reads.
    #[arg(long)]
    write: bool,
    /// Look for completions without a pause, instead of sleeping until the server signals.
    #[arg(long)]
    polled: bool,
    /// End before the time when standard input ends.
    #[arg(long)]
    until_eof: bool,
}

#[derive(Args)]
struct CheckArgs {
    /// The server's socket. What lies on the device is overwritten.
    socket: PathBuf,
    /// Queues that take turns.
    #[arg(long, default_value_t = 2)]
    queues: usize,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(args) => load::run(&args),
        Command::Check(args) => check::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blkio: {error}");
            ExitCode::FAILURE
        }
    }
}
