//! Tags that are exchanged one by one, as every kernel with ublk does.
//!
//! One command (`COMMIT_AND_FETCH_REQ`) tells a request's result and gives the kernel the tag. It completes when the
//! next request comes for the tag.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};

use crate::abi::{IoCommand, io as command};
use crate::ring::Ring;

#[derive(Debug)]
pub(crate) struct Single {
    file: Arc<File>,
    /// The queue.
    number: u16,
    /// Tags that the kernel has not given back for good.
    nr_tags: u16,
}

impl Single {
    /// For the tags of a queue of this character device.
    pub(crate) fn new(file: Arc<File>, number: u16, depth: u16) -> Self {
        Self { file, number, nr_tags: depth }
    }

    pub(crate) fn begin(&mut self, ring: &mut Ring, mut address: impl FnMut(u16) -> u64) -> io::Result<()> {
        (0..self.nr_tags).try_for_each(|tag| self.command(ring, command::FETCH_REQ, tag, -1, address(tag)))
    }

    pub(crate) fn tell(&mut self, ring: &mut Ring, tag: u16, result: i32, address: u64) -> io::Result<()> {
        self.command(ring, command::COMMIT_AND_FETCH_REQ, tag, result, address)
    }

    /// Puts a command on the ring that gives the kernel a tag, with its buffer. Its completion has the tag's number.
    fn command(&mut self, ring: &mut Ring, op: u32, tag: u16, result: i32, addr: u64) -> io::Result<()> {
        let command = IoCommand { q_id: self.number, tag, result, addr };
        let entry = opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), op).cmd(command.to_bytes()).build();
        ring.push(&entry.user_data(tag.into()))
    }

    pub(crate) fn take(&mut self, ring: &mut Ring, mut arrive: impl FnMut(u16)) -> io::Result<bool> {
        let (nr_tags, mut has_any) = (&mut self.nr_tags, false);
        ring.take(|entry| {
            has_any = true;
            match entry.result() {
                0 => arrive(entry.user_data() as u16),
                // The device is stopped, or its server is given up.
                error if error == -libc::ENODEV => *nr_tags -= 1,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            Ok(())
        })?;
        Ok(has_any)
    }

    pub(crate) fn take_last(&mut self, ring: &mut Ring, mut arrive: impl FnMut(u16)) -> io::Result<()> {
        let nr_tags = &mut self.nr_tags;
        ring.take(|entry| {
            match entry.result() {
                0 => arrive(entry.user_data() as u16),
                // The device is stopped, or takes nothing for this tag any more.
                _ => *nr_tags -= 1,
            }
            Ok(())
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.nr_tags == 0
    }
}
