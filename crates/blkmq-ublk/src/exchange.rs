//! How a queue's thread exchanges tags with the kernel.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::abi::DeviceInfo;
use crate::ring::Ring;
use crate::single::Single;

/// A way to exchange tags. The kernel has a tag until a request comes for it, and again once the request's result is
/// told.
#[derive(Debug)]
pub(crate) enum Exchange {
    /// Each tag by a command of its own.
    Single(Single),
}

impl Exchange {
    /// The way for which the device was made, for the tags of a queue of its character device.
    pub(crate) fn new(info: &DeviceInfo, file: Arc<File>, number: u16) -> Self {
        Self::Single(Single::new(file, number, info.queue_depth))
    }

    /// Gives the kernel all tags. `address`: that of a tag's buffer.
    pub(crate) fn begin(&mut self, ring: &mut Ring, address: impl FnMut(u16) -> u64) -> io::Result<()> {
        match self {
            Self::Single(single) => single.begin(ring, address),
        }
    }

    /// Notes how a tag's request ended: bytes, or an error number below 0. `address`: the buffer for the tag's next
    /// request.
    pub(crate) fn tell(&mut self, ring: &mut Ring, tag: u16, result: i32, address: u64) -> io::Result<()> {
        match self {
            Self::Single(single) => single.tell(ring, tag, result, address),
        }
    }

    /// Takes what the kernel has said off the ring. Calls `arrive` with each tag that has a request. Returns whether
    /// there was a request, or tags came back for good.
    pub(crate) fn take(&mut self, ring: &mut Ring, arrive: impl FnMut(u16)) -> io::Result<bool> {
        match self {
            Self::Single(single) => single.take(ring, arrive),
        }
    }

    /// The same at an end, where no error is one any more: the kernel takes nothing for the tag then.
    pub(crate) fn take_last(&mut self, ring: &mut Ring, arrive: impl FnMut(u16)) -> io::Result<()> {
        match self {
            Self::Single(single) => single.take_last(ring, arrive),
        }
    }

    /// Whether no request comes any more: the kernel has given back all tags for good.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Single(single) => single.is_over(),
        }
    }

    /// Whether the kernel knows of all results.
    pub(crate) fn is_told(&self, ring: &mut Ring) -> bool {
        match self {
            Self::Single(_) => ring.is_empty(),
        }
    }
}
