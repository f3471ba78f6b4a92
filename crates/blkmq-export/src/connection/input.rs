//! Bytes that came from the client and are not used yet.

use std::io::IoSliceMut;

use super::socket::Fault;
use super::stream::Stream;

/// The most bytes that one call receives here: room for about 2000 requests without data, or for any option. Data of a
/// write whose buffer is there already goes directly to the buffer, and does not count. Data that one call receives
/// together with the write's header, or behind the piece before it, lies here first, and `take_payload` copies it.
const SIZE: usize = 64 << 10;

/// What was received.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// The result of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes that went into the payload.
    pub(super) payload: usize,
    /// All bytes. 0 if the client sends no more.
    pub(super) all: usize,
    /// There is nothing more until the socket is readable again.
    pub(super) is_short: bool,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; SIZE].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Returns the bytes that are not used yet.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Moves bytes to the front of `target`, as many as there are and fit. Returns how many.
    pub(super) fn move_to(&mut self, target: &mut [u8]) -> usize {
        let len = target.len().min(self.end - self.start);
        target[..len].copy_from_slice(&self.bytes[self.start..self.start + len]);
        self.consume(len);
        len
    }

    /// Receives up to `most` bytes: first into `payload`, then into the free space here. If `payload` is not empty, no
    /// bytes may be left here.
    ///
    /// COST: that of [`Stream::receive`], which without TLS is one system call. Before the call, the rest of a request
    /// moves to the front: fewer than 28 bytes, or an option.
    ///
    /// # Errors
    /// Those of [`Stream::receive`]; `AGAIN` if nothing is there.
    pub(super) fn receive(&mut self, stream: &mut Stream, payload: &mut [u8], most: usize) -> Result<Received, Fault> {
        debug_assert!(payload.is_empty() || self.start == self.end, "bytes stay in order");
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let payload_len = payload.len().min(most);
        let rest_len = (self.bytes.len() - self.end).min(most - payload_len);
        let rest = &mut self.bytes[self.end..self.end + rest_len];
        let mut slices = [IoSliceMut::new(&mut payload[..payload_len]), IoSliceMut::new(rest)];
        let (all, is_short) = stream.receive(&mut slices)?;
        let payload = all.min(payload_len);
        self.end += all - payload;
        Ok(Received { payload, all, is_short })
    }
}
