//! `blkmq ublk`: the block devices that the kernel's ublk has, whichever program serves them.

mod add;
mod del;

use std::io::Write;

use blkmq_program::Failure;
use blkmq_ublk::abi::{DeviceInfo, State, feature};
use blkmq_ublk::control::{block_path, ids};
use blkmq_ublk::{Control, Error};
use clap::{Args, Subcommand};

/// Add, list and remove the block devices of ublk.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/ublk.txt")))]
pub(crate) struct Ublk {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a server in the background, and tell the paths of its block devices when they are there.
    Add(add::Add),
    /// List the devices: state, queues and depth, largest request, the server's process, features.
    List,
    /// Remove devices, and end servers that have no other clients.
    Del(del::Del),
    /// List the features of this kernel's ublk.
    Features,
}

fn failure(error: Error) -> Failure {
    Failure::Running(error.to_string())
}

/// The names of features.
fn names(features: u64) -> String {
    let names = feature::NAMES.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name);
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

fn line(info: &DeviceInfo) -> String {
    let state = match info.state {
        State::Dead => "dead".to_owned(),
        State::Live => "live".to_owned(),
        State::Quiesced => "waits for a server".to_owned(),
        State::FailIo => "fails until there is a server".to_owned(),
        State::Other(number) => format!("state {number}"),
    };
    format!(
        "{}: {state}, {} x {} requests of up to {} KiB, process {}, {}",
        block_path(info.dev_id),
        info.nr_hw_queues,
        info.queue_depth,
        info.max_io_buf_bytes >> 10,
        info.server_pid,
        names(info.flags),
    )
}

impl Ublk {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let control = Control::open().map_err(failure)?;
        let mut text = String::new();
        match &self.command {
            Command::List => {
                for id in ids().map_err(|error| Failure::Running(format!("ublk: /dev: {error}")))? {
                    match control.info(id) {
                        Ok(info) => text += &format!("{}\n", line(&info)),
                        // It has just gone.
                        Err(Error::NoDevice(_)) => (),
                        Err(error) => return Err(failure(error)),
                    }
                }
            }
            Command::Del(del) => return del.run(&control, out),
            Command::Add(add) => return add.run(&control, out),
            Command::Features => text = format!("{}\n", names(control.features().map_err(failure)?)),
        }
        out.write_all(text.as_bytes()).map_err(|error| Failure::Running(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_in_one_line() {
        let info = DeviceInfo {
            nr_hw_queues: 2,
            queue_depth: 64,
            state: State::Quiesced,
            max_io_buf_bytes: 1 << 19,
            dev_id: 3,
            server_pid: 77,
            flags: feature::USER_RECOVERY | feature::CMD_IOCTL_ENCODE,
            server_flags: 0,
        };
        let expected = "/dev/ublkb3: waits for a server, 2 x 64 requests of up to 512 KiB, process 77, \
                        user_recovery,cmd_ioctl_encode";
        assert_eq!(line(&info), expected);
        assert_eq!(names(0), "none");
    }
}
