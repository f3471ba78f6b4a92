//! `blkmq ublk del`: block devices are removed, by a process that may stay behind.
//!
//! While the kernel removes a block device it waits for the device's requests, and no signal ends the process that has
//! asked for that: such a process cannot exit before the kernel has answered. So another process asks, and what that
//! process is told or has given up it says here by one line. If it cannot exit, it stays behind until the device's
//! server is gone.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use blkmq_program::Failure;
use blkmq_ublk::abi::State;
use blkmq_ublk::control::block_path;
use blkmq_ublk::{Control, Error};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct Del {
    /// The devices' numbers.
    #[arg(value_name = "N", required = true)]
    ids: Vec<u32>,
    /// Also if a device is in use: what was not written is lost then.
    #[arg(long)]
    force: bool,
    /// This is the process that may stay behind.
    #[arg(long, hide = true)]
    behind: bool,
}

/// What the other process says when it has removed everything.
const DONE: &str = "done";

/// Has the kernel write what it has in memory for a block device, unless a program or a file system has the device.
fn settle(control: &Control, id: u32) -> Result<(), String> {
    control.write_back(id).map_err(|error| match error {
        Error::Device(path, error) if error.raw_os_error() == Some(libc::EBUSY) => {
            format!("ublk: {path} is in use, as by a file system; unmount it first, or give --force")
        }
        error => format!("{error}; give --force to remove it all the same"),
    })
}

fn remove(control: &Control, id: u32, force: bool) -> Result<(), String> {
    let info = control.info(id).map_err(|error| error.to_string())?;
    // Without a server nothing can be written, and it would be waited for.
    if info.state == State::Live && !force {
        settle(control, id)?;
    }
    let stuck = |error: Error| match error {
        Error::NoAnswer(..) => format!(
            "{error}; the requests of {} are not over, or a program has it open: it is removed when they are over and it \
             is closed, or when its server, process {}, is killed",
            block_path(id),
            info.server_pid
        ),
        _ => error.to_string(),
    };
    control.stop(id).map_err(stuck)?;
    match control.delete(id) {
        // A server that ends has removed it.
        Ok(()) | Err(Error::NoDevice(_)) => Ok(()),
        Err(error) => Err(stuck(error)),
    }
}

/// What the other process has said.
fn answer(line: &str) -> Result<(), Failure> {
    match line.trim_end() {
        DONE => Ok(()),
        "" => Err(Failure::Running("ublk del: the process that removes block devices has ended".to_owned())),
        error => Err(Failure::Running(error.to_owned())),
    }
}

impl Del {
    pub(super) fn run(&self, control: &Control, out: &mut dyn Write) -> Result<(), Failure> {
        if self.behind {
            let removed = self.ids.iter().try_for_each(|id| remove(control, *id, self.force));
            let line = removed.err().unwrap_or_else(|| DONE.to_owned());
            // The exit may take forever, so the output must not wait for it.
            return writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::from);
        }
        let failed = |error| Failure::Running(format!("ublk del: {error}"));
        let mut process = Command::new(env::current_exe().map_err(failed)?);
        process.args(["ublk", "del", "--behind"]).args(self.force.then_some("--force"));
        process.args(self.ids.iter().map(u32::to_string)).stdin(Stdio::null()).stdout(Stdio::piped());
        // It may stay behind: then it must not keep a pipe or a folder of the caller.
        process.stderr(Stdio::null()).current_dir("/");
        let mut process = process.process_group(0).spawn().map_err(failed)?;
        let mut line = String::new();
        if let Some(said) = process.stdout.take() {
            BufReader::new(said).read_line(&mut line).map_err(failed)?;
        }
        answer(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a process that ends without a word, or with an error, counts as success.
    #[test]
    fn only_a_word_says_that_all_is_removed() {
        assert!(answer("done\n").is_ok());
        for bad in ["", "\n", "ublk: there is no device 1\n", "don"] {
            let Err(Failure::Running(what)) = answer(bad) else { panic!("{bad:?}") };
            assert!(!what.is_empty());
        }
    }
}
