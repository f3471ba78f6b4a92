//! `blkmq ublk`: the block devices that the kernel's ublk has, whichever program serves them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use blkmq_program::{EXIT_CODES, Failure};
use blkmq_ublk::abi::{DeviceInfo, State, feature};
use blkmq_ublk::control::{block_path, ids};
use blkmq_ublk::{Control, Error};
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  blkmq serve --device file,path=disk.img --ublk id=0,recover
  blkmq ublk list
  blkmq ublk del 0
  blkmq ublk features

'blkmq serve --ublk' makes a device. All of these take root's rights.";

/// List and remove the block devices of ublk.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Ublk {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices: state, queues and depth, largest request, the server's process, features.
    List,
    /// Remove devices, and end servers that have no other clients.
    Del {
        /// The devices' numbers.
        #[arg(value_name = "N", required = true)]
        ids: Vec<u32>,
        /// Also if a device is in use: what was not written is lost then.
        #[arg(long)]
        force: bool,
    },
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

/// Has the kernel write what it has in memory for a block device, unless a program or a file system has the device.
fn settle(id: u32, force: bool) -> Result<(), Failure> {
    let path = block_path(id);
    let flags = if force { 0 } else { libc::O_EXCL };
    let opened = OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC | libc::O_NONBLOCK).open(&path);
    match opened.and_then(|file: File| file.sync_all()) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let what = format!("ublk: {path} is in use, as by a file system; unmount it first, or give --force");
            Err(Failure::Running(what))
        }
        // There may be no block device, and nothing is left to write then.
        Err(error) if error.kind() != io::ErrorKind::NotFound && !force => {
            Err(Failure::Running(format!("ublk: {path}: {error}; give --force to remove it all the same")))
        }
        _ => Ok(()),
    }
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
            Command::Del { ids, force } => {
                for id in ids {
                    let info = control.info(*id).map_err(failure)?;
                    // Without a server nothing can be written, and it would be waited for.
                    if info.state == State::Live {
                        settle(*id, *force)?;
                    }
                    control.stop(*id).map_err(failure)?;
                    match control.delete(*id) {
                        // A server that ends has removed it.
                        Ok(()) | Err(Error::NoDevice(_)) => (),
                        Err(error) => return Err(failure(error)),
                    }
                }
            }
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
