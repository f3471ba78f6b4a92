//! The socket of a front-end: whole messages with their descriptors in, answers out. It does not wait for a front-end
//! that sends half a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::foreign::Foreign;

use super::message::{HEADER, Header, MAX_BODY, MAX_FILES, Message, MessageError};

/// The most descriptors that Linux lets come beside one message. Those for which there is no room would be closed by
/// the thread that receives.
const SCM_MAX_FD: usize = 253;
/// How long a front-end may take no answer. It is waiting for the answer, so it takes it at once.
const TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Why a connection's socket is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the front-end has gone")]
    Closed,
    #[error("the front-end has closed the connection within a message")]
    Short,
    #[error("the connection failed: {0}")]
    System(io::Error),
    #[error("{0}")]
    Message(#[from] MessageError),
    #[error("the front-end takes no answer")]
    Deaf,
}

/// A message with what came beside it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) message: Result<Message, MessageError>,
    pub(crate) files: Vec<Foreign>,
}

/// The socket, and what of the next message has come.
#[derive(Debug)]
pub(crate) struct Wire {
    /// With descriptors that have not been received.
    socket: Foreign,
    bytes: Vec<u8>,
    files: Vec<Foreign>,
}

impl Wire {
    /// `socket` does not block.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Foreign::new(socket), bytes: Vec::with_capacity(HEADER + MAX_BODY), files: Vec::new() }
    }

    /// The next message, if all of it has come.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, WireError> {
        loop {
            let header = self.bytes.first_chunk().map(Header::parse).transpose()?;
            let whole = HEADER + header.map_or(0, |header| header.len);
            if let (Some(header), true) = (header, self.bytes.len() == whole) {
                let body = self.bytes.split_off(HEADER);
                self.bytes.clear();
                let files = std::mem::take(&mut self.files);
                let message = Message::parse(header.code, &body, files.len());
                return Ok(Some(Received { header, body, message, files }));
            }
            // No more than this message: the next one may come with descriptors of its own.
            if !self.receive_until(whole)? {
                return Ok(None);
            }
        }
    }

    /// Receives what is there, up to `len` bytes in all. False if there is nothing yet.
    fn receive_until(&mut self, len: usize) -> Result<bool, WireError> {
        let had = self.bytes.len();
        self.bytes.resize(len, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.bytes[had..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.socket, &mut parts, &mut beside, flags);
        self.bytes.truncate(had + received.as_ref().map_or(0, |received| received.bytes));
        match received {
            Ok(received) => {
                for message in beside.drain() {
                    if let RecvAncillaryMessage::ScmRights(files) = message {
                        self.files.extend(files.map(Foreign::new));
                    }
                }
                if received.bytes == 0 {
                    return Err(if self.bytes.is_empty() { WireError::Closed } else { WireError::Short });
                }
                if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > MAX_FILES {
                    let code = self.bytes.first_chunk().map_or(0, |first: &[u8; 4]| u32::from_le_bytes(*first));
                    return Err(MessageError::Files { code, nr: self.files.len() + 1 }.into());
                }
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => Ok(true),
            Err(Errno::CONNRESET) => Err(WireError::Closed),
            Err(error) => Err(WireError::System(error.into())),
        }
    }
}

/// Sends bytes, with a descriptor beside the first one.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), WireError> {
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let files = file.filter(|_| sent == 0).map(|file| [file]);
        if let Some(files) = &files {
            beside.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(&bytes[sent..])], &mut beside, flags) {
            Ok(more) => sent += more,
            Err(Errno::INTR) => (),
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
                if matches!(poll(&mut fds, Some(&TIMEOUT)), Ok(0)) {
                    return Err(WireError::Deaf);
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(WireError::Closed),
            Err(error) => return Err(WireError::System(error.into())),
        }
    }
    Ok(())
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::protocol::message::Signal;

    fn pair() -> (UnixStream, Wire) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, Wire::new(server.into()))
    }

    fn frame(code: u32, body: &[u8]) -> Vec<u8> {
        let words = [code, 1, body.len() as u32];
        words.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()).collect()
    }

    /// Red if a message is taken before it is whole, or if the bytes of two messages are mixed up.
    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (mut client, mut wire) = pair();
        let bytes = [frame(2, &7_u64.to_le_bytes()), frame(1, &[])].concat();
        let mut found = Vec::new();
        for byte in bytes {
            client.write_all(&[byte]).unwrap();
            found.extend(wire.receive().unwrap().map(|received| received.message.unwrap()));
        }
        assert_eq!(found, [Message::SetFeatures(7), Message::GetFeatures]);
        client.write_all(&[1]).unwrap();
        drop(client);
        assert!(matches!(wire.receive(), Err(WireError::Short)));
    }

    /// Red if descriptors get lost, stay open, or come with another message than their own.
    #[test]
    fn descriptors_come_with_their_message() {
        let (client, mut wire) = pair();
        let file = crate::memory::tests::file(1);
        let kick = frame(12, &1_u64.to_le_bytes());
        send(client.as_fd(), &frame(1, &[]), None).unwrap();
        send(client.as_fd(), &kick, Some(file.as_fd())).unwrap();
        send(client.as_fd(), &kick, None).unwrap();
        let mut next = || wire.receive().unwrap().unwrap();
        assert_eq!(next().files.len(), 0);
        let received = next();
        assert_eq!(
            (received.message, received.files.len()),
            (Ok(Message::SetSignal { ring: 1, signal: Signal::Kick, has_file: true }), 1)
        );
        assert_eq!(next().message, Err(MessageError::Files { code: 12, nr: 0 }));
        send(wire.as_fd(), b"answer", None).unwrap();
        let mut answer = [0; 6];
        (&client).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
        drop(client);
        assert!(matches!(wire.receive(), Err(WireError::Closed)));
        assert!(matches!(send(wire.as_fd(), b"a", None), Err(WireError::Closed)));
    }
}
