//! The blkmq program.

mod bench;
mod clients;
mod columns;
mod control;
mod demo;
mod devices;
mod dump;
mod failure;
mod file;
mod flood;
mod get;
mod interrupt;
mod json;
mod list;
mod machine;
mod operator;
mod page;
mod progress;
mod rates;
mod replay;
mod reproduce;
mod schedulers;
mod serve;
mod set;
mod stat;
mod target;
mod torture;
mod usage;
mod words;

use std::io::{self, Write};
use std::process::ExitCode;

use blkmq_workbench::torture::CountingAllocator;
use clap::{Parser, Subcommand};

/// Counts what the worlds of `blkmq torture` hold.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something failed while running
  2  bad usage or bad input; one line on standard error says what was wrong and what would be right";

const EXAMPLES: &str = "\
Examples:
  blkmq demo
  blkmq bench job.fio --device null,irqmode=2 --scheduler mq-deadline
  blkmq bench job.fio --ab scheduler=none,mq-deadline
  blkmq reproduce scaling
  blkmq replay trace.blktrace.0 --device null,irqmode=2,hw_queue_depth=1 --scheduler mq-deadline
  blkmq replay --order trace.blktrace.0 --queue queue.txt
  blkmq torture --minutes 10
  blkmq serve --device ram,size=1G --scheduler mq-deadline
  blkmq set scheduler none
  blkmq stat -w 1s
  blkmq devices
  blkmq schedulers --json
  blkmq replay --help";

/// The multi-queue block layer for user space: serves devices, runs fio's job files, replays Linux's traces,
/// repeats published measurements.
#[derive(Debug, Parser)]
#[command(name = "blkmq", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Bench(Box<bench::Bench>),
    Reproduce(reproduce::Reproduce),
    Replay(Box<replay::Replay>),
    Torture(torture::Torture),
    Devices(devices::Devices),
    Schedulers(schedulers::Schedulers),
    Serve(Box<serve::Serve>),
    List(list::List),
    Get(get::Get),
    Set(set::Set),
    Stat(stat::StatCommand),
    Clients(clients::Clients),
    Dump(dump::Dump),
}

fn main() -> ExitCode {
    let done = Cli::try_parse().map_err(|error| usage::explain(&error)).and_then(|cli| {
        let out = &mut io::stdout().lock();
        let done = match cli.command {
            Command::Demo(demo) => demo.run(out),
            Command::Bench(bench) => bench.run(out),
            Command::Reproduce(reproduce) => reproduce.run(out),
            Command::Replay(replay) => replay.run(out),
            Command::Torture(torture) => torture.run(out),
            Command::Devices(devices) => devices.run(out),
            Command::Schedulers(schedulers) => schedulers.run(out),
            Command::Serve(serve) => serve.run(out),
            Command::List(list) => list.run(out),
            Command::Get(get) => get.run(out),
            Command::Set(set) => set.run(out),
            Command::Stat(stat) => stat.run(out),
            Command::Clients(clients) => clients.run(out),
            Command::Dump(dump) => dump.run(out),
        };
        // Without this, an error of writing what is still in the buffer would not be reported.
        done.and_then(|()| Ok(out.flush()?))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
