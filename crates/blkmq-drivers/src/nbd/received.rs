//! What has come from the server and is not processed yet: replies, and the data of reads behind their replies.
//!
//! A [connection](super::connection) has one value of this, under the lock of its receiving side.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use blkmq_nbd::SimpleReply;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// The most bytes that one call receives.
const RECEIVED_AT_ONCE: usize = 256 << 10;

/// The server has closed the socket, the socket has broken, or the server has broken the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Bytes that have come from a socket and are not processed yet.
#[derive(Debug)]
pub(super) struct Received {
    socket: Arc<OwnedFd>,
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The tag of the data that comes next, and how many bytes of the data are processed already. `None` if a reply
    /// comes next.
    pub(super) data: Option<(u16, usize)>,
}

impl Received {
    pub(super) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, bytes: vec![0; RECEIVED_AT_ONCE].into_boxed_slice(), start: 0, end: 0, data: None }
    }

    /// Goes on with another socket. What came through the old one was [dropped](Self::clear).
    pub(super) fn use_socket(&mut self, socket: Arc<OwnedFd>) {
        debug_assert!(self.start == self.end, "bytes of the old socket are no replies of the new one");
        self.socket = socket;
    }

    /// Drops what has come.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.data) = (0, 0, None);
    }

    /// Receives once, without waiting. Returns whether more may be there, because all room was filled.
    ///
    /// # Errors
    /// No more comes through this socket.
    pub(super) fn receive(&mut self) -> Result<bool, Broken> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let free = &mut self.bytes[self.end..];
        let room = free.len();
        debug_assert!(room > 0, "what is left of a batch is shorter than a reply");
        loop {
            match recv(&*self.socket, &mut *free, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Broken),
                Ok((more, _)) => {
                    self.end += more;
                    return Ok(more == room);
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(Broken),
            }
        }
    }

    /// Returns the bytes that are not processed yet.
    pub(super) fn here(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Called when this many of the bytes are processed.
    pub(super) fn take(&mut self, len: usize) {
        debug_assert!(len <= self.here().len(), "what has not come cannot be processed");
        self.start += len;
    }

    /// Takes the next reply. `None` if not all of it is there.
    ///
    /// # Errors
    /// The bytes are no reply.
    pub(super) fn next_reply(&mut self) -> Result<Option<SimpleReply>, Broken> {
        let Some(head) = self.here().first_chunk() else { return Ok(None) };
        let reply = SimpleReply::decode(head).map_err(|_| Broken)?;
        self.take(SimpleReply::SIZE);
        Ok(Some(reply))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Red if a reply that comes in two parts, or behind the data of another one, is not found; if bytes that are no
    /// reply count as one; or if the end of the socket looks like a pause.
    #[test]
    fn replies_are_taken_whole_and_in_order() {
        let (ours, mut theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        let mut received = Received::new(Arc::new(ours.into()));
        assert_eq!((received.receive(), received.next_reply()), (Ok(false), Ok(None)), "nothing has come");
        let replies = [(0, 7), (5, 0x102)].map(|(errno, cookie)| SimpleReply { errno, cookie });
        let bytes = [&replies[0].encode()[..], b"data", &replies[1].encode(), &[0; SimpleReply::SIZE]].concat();
        let (first, second) = bytes.split_at(25);
        theirs.write_all(first).expect("there is room");
        assert_eq!(received.receive(), Ok(false));
        assert_eq!(received.next_reply(), Ok(Some(replies[0])));
        assert_eq!(&received.here()[..4], b"data");
        received.take(4);
        assert_eq!(received.next_reply(), Ok(None), "5 bytes of the second reply are there");
        theirs.write_all(second).expect("there is room");
        assert_eq!(received.receive(), Ok(false));
        assert_eq!(received.next_reply(), Ok(Some(replies[1])));
        assert_eq!(received.next_reply(), Err(Broken));
        drop(theirs);
        assert_eq!(received.receive(), Err(Broken));
    }
}
