//! How a queue's thread exchanges tags with the kernel.
//!
//! The kernel has a tag until a request comes for it, and again once the request's result is told. One command
//! (`COMMIT_AND_FETCH_REQ`) tells the result and gives the kernel the tag. It completes when the next request comes for
//! the tag.

use std::io;
use std::sync::Arc;

use io_uring::{opcode, types};

use crate::abi::{IoCommand, io as command};
use crate::character::Character;
use crate::ring::Ring;

/// Tags on their way between a queue and the kernel.
#[derive(Debug)]
pub(crate) struct Exchange {
    file: Arc<Character>,
    /// The queue.
    number: u16,
    /// Tags that the kernel has not given back for good.
    nr_tags: u16,
}

impl Exchange {
    /// For the tags of a queue of this character device.
    pub(crate) fn new(file: Arc<Character>, number: u16, depth: u16) -> Self {
        Self { file, number, nr_tags: depth }
    }

    /// Gives the kernel all tags. `address`: that of a tag's buffer.
    pub(crate) fn begin(&mut self, ring: &mut Ring, mut address: impl FnMut(u16) -> u64) -> io::Result<()> {
        (0..self.nr_tags).try_for_each(|tag| self.command(ring, command::FETCH_REQ, tag, -1, address(tag)))
    }

    /// Tells how a tag's request ended: bytes, or an error number below 0. `address`: the buffer for the tag's next
    /// request.
    pub(crate) fn tell(&mut self, ring: &mut Ring, tag: u16, result: i32, address: u64) -> io::Result<()> {
        self.command(ring, command::COMMIT_AND_FETCH_REQ, tag, result, address)
    }

    /// Puts a command on the ring that gives the kernel a tag, with its buffer. Its completion has the tag's number.
    fn command(&mut self, ring: &mut Ring, op: u32, tag: u16, result: i32, addr: u64) -> io::Result<()> {
        let command = IoCommand { q_id: self.number, tag, result, addr };
        let entry = opcode::UringCmd16::new(types::Fd(self.file.number().raw()), op).cmd(command.to_bytes()).build();
        ring.push(&entry.user_data(tag.into()))
    }

    /// Takes what the kernel has said off the ring. Calls `arrive` with each tag that has a request. Returns whether
    /// there was a request, or tags came back for good. At an end no error is one any more: the kernel takes nothing
    /// for the tag then.
    pub(crate) fn take(&mut self, ring: &mut Ring, is_end: bool, mut arrive: impl FnMut(u16)) -> io::Result<bool> {
        let (nr_tags, mut has_any) = (&mut self.nr_tags, false);
        ring.take(|entry| {
            has_any = true;
            match entry.result() {
                0 => arrive(entry.user_data() as u16),
                // The device is stopped, or its server is given up.
                error if is_end || error == -libc::ENODEV => *nr_tags -= 1,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            Ok(())
        })?;
        Ok(has_any)
    }

    /// Whether no request comes any more: the kernel has given back all tags for good.
    pub(crate) fn is_over(&self) -> bool {
        self.nr_tags == 0
    }
}
