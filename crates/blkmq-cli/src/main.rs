//! The blkmq program: each command is a module of its name, with a folder where it has parts.
//!
//! - [`bench`], [`calibrate`], [`judge`], [`replay`], [`reproduce`] and [`demo`] run loads, on what a [`target`]
//!   describes.
//! - [`serve`] is a server, and [`control`] its control socket. [`list`], [`get`], [`set`], [`stat`], [`clients`],
//!   [`groups`] and [`dump`] speak to a running server by [`control::client`].
//! - [`ublk`] lists and removes the block devices of the kernel's ublk.
//! - [`devices`] and [`schedulers`] print what there is; `torture` and `simulate` start programs of their own that lie
//!   [`beside`] this one.
//!
//! The other modules are what several commands share: [`device`], [`knob`], [`page`], [`percent`], [`flood`],
//! [`progress`], [`operator`]. What they share with other programs is in [`blkmq_program`]. Of a command's
//! folder other commands see nothing.

mod bench;
mod beside;
mod calibrate;
mod clients;
mod control;
mod demo;
mod device;
mod devices;
mod dump;
mod flood;
mod get;
mod groups;
mod judge;
mod knob;
mod list;
mod operator;
mod page;
mod percent;
mod progress;
mod replay;
mod reproduce;
mod schedulers;
mod serve;
mod set;
mod stat;
mod target;
mod ublk;

use std::process::ExitCode;

use blkmq_program::{file, machine};
use clap::{Parser, Subcommand};

/// The multi-queue block layer for user space: serves devices, runs fio's job files, replays Linux's traces,
/// repeats published measurements.
#[derive(Debug, Parser)]
#[command(name = "blkmq", version, after_help = blkmq_program::after_help(include_str!("help/blkmq.txt")))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Bench(Box<bench::Bench>),
    Calibrate(calibrate::Calibrate),
    Judge(judge::Judge),
    Reproduce(reproduce::Reproduce),
    Replay(Box<replay::Replay>),
    /// Torture the block layer on virtual CPUs, and check all that it promises.
    #[command(disable_help_flag = true)]
    Torture(beside::Options),
    /// Model the block layer on machines with many cores.
    #[command(disable_help_flag = true)]
    Simulate(beside::Options),
    Devices(devices::Devices),
    Schedulers(schedulers::Schedulers),
    Serve(Box<serve::Serve>),
    List(list::List),
    Get(get::Get),
    Set(set::Set),
    Stat(stat::StatCommand),
    Clients(clients::Clients),
    Groups(groups::Groups),
    Dump(dump::Dump),
    Ublk(ublk::Ublk),
}

fn main() -> ExitCode {
    blkmq_program::main(|cli: Cli, out| match cli.command {
        Command::Demo(demo) => demo.run(out),
        Command::Bench(bench) => bench.run(out),
        Command::Calibrate(calibrate) => calibrate.run(out),
        Command::Judge(judge) => judge.run(out),
        Command::Reproduce(reproduce) => reproduce.run(out),
        Command::Replay(replay) => replay.run(out),
        Command::Torture(torture) => Err(beside::start("torture", torture)),
        Command::Simulate(simulate) => Err(beside::start("simulate", simulate)),
        Command::Devices(devices) => devices.run(out),
        Command::Schedulers(schedulers) => schedulers.run(out),
        Command::Serve(serve) => serve.run(out),
        Command::List(list) => list.run(out),
        Command::Get(get) => get.run(out),
        Command::Set(set) => set.run(out),
        Command::Stat(stat) => stat.run(out),
        Command::Clients(clients) => clients.run(out),
        Command::Groups(groups) => groups.run(out),
        Command::Dump(dump) => dump.run(out),
        Command::Ublk(ublk) => ublk.run(out),
    })
}
