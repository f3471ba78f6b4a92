//! Replies to requests: their headers as bytes. Data is not copied into the headers, but sent after them.

use super::{BASE_ALLOCATION_ID, Chunk, Errno, SimpleReply, chunks};

/// Longest header in bytes: that of data in a structured reply.
const MAX_HEAD: usize = 28;

/// Longest message beside an error, in bytes.
const MAX_MESSAGE: usize = 512;

/// The part of a reply that comes before its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; MAX_HEAD],
    len: u8,
}

impl Head {
    const EMPTY: Self = Self { bytes: [0; MAX_HEAD], len: 0 };

    fn with(mut self, bytes: &[u8]) -> Self {
        let from = usize::from(self.len);
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
        self
    }

    /// Creates a simple reply; the data of a read follows it.
    #[must_use]
    pub fn simple(cookie: u64, errno: Option<Errno>) -> Self {
        let errno = errno.map_or(0, Errno::number);
        Self::EMPTY.with(&SimpleReply { errno, cookie }.encode())
    }

    /// The only chunk of a structured reply; `len` bytes follow its header.
    fn chunk(cookie: u64, kind: u16, len: u32) -> Self {
        Self::EMPTY.with(&Chunk { flags: chunks::FLAG_DONE, kind, cookie, len }.encode())
    }

    /// The structured reply to a read of `len` bytes, which follow it; `len` is at most
    /// [`MAX_PAYLOAD`](super::MAX_PAYLOAD).
    #[must_use]
    pub fn data(cookie: u64, offset: u64, len: u32) -> Self {
        match len {
            // A chunk of data holds at least one byte.
            0 => Self::chunk(cookie, chunks::NONE, 0),
            _ => Self::chunk(cookie, chunks::OFFSET_DATA, 8 + len).with(&offset.to_be_bytes()),
        }
    }

    /// The structured reply to a block status, whose extents follow it in `len` bytes, at most
    /// [`MAX_EXTENTS`](super::extents::MAX_EXTENTS) extents of [`EXTENT_SIZE`](super::extents::EXTENT_SIZE) bytes.
    #[must_use]
    pub fn extents(cookie: u64, len: u32) -> Self {
        Self::chunk(cookie, chunks::BLOCK_STATUS, 4 + len).with(&BASE_ALLOCATION_ID.to_be_bytes())
    }

    /// The structured reply to a request that failed, and the part of the message that follows it.
    #[must_use]
    pub fn error(cookie: u64, errno: Errno, message: &str) -> (Self, &str) {
        let message = &message[..message.floor_char_boundary(MAX_MESSAGE)];
        let head = Self::chunk(cookie, chunks::ERROR, 6 + message.len() as u32)
            .with(&errno.number().to_be_bytes())
            .with(&(message.len() as u16).to_be_bytes());
        (head, message)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_long_as_the_protocol_says() {
        assert_eq!(Head::simple(1, None).bytes().len(), 16);
        let data = Head::data(1, 2, 512);
        assert_eq!(data.bytes()[16..], [&520_u32.to_be_bytes()[..], &2_u64.to_be_bytes()].concat());
        assert_eq!(Head::data(1, 2, 0).bytes().len(), 20);
        assert_eq!(Head::extents(1, 16).bytes().len(), 24);
        assert_eq!(Head::extents(1, 16).bytes()[16..20], 20_u32.to_be_bytes());
        assert_eq!(Head::error(1, Errno::Io, "no").0.bytes().len(), 26);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = "é".repeat(400);
        let long = format!("x{long}");
        let (head, message) = Head::error(1, Errno::Io, &long);
        assert_eq!(message.len(), 511);
        assert_eq!(head.bytes()[24..26], 511_u16.to_be_bytes());
        assert_eq!(head.bytes()[16..20], 517_u32.to_be_bytes());
    }
}
