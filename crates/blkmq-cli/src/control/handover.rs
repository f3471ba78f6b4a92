//! How one server takes the place of another. The new server gets the sockets that clients come through, and then waits
//! until the other server has ended. Clients that connect meanwhile wait in those sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::client;
use super::http::Answer;
use blkmq_program::Failure;

/// The most sockets that are handed over. The system's own limit is only a little higher.
pub(super) const MAX_SOCKETS: usize = 250;
/// How long the other server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the server says that it waits for the other server.
const EVERY: Duration = Duration::from_secs(5);

/// Sends an answer with the sockets.
pub(super) fn send(stream: &UnixStream, answer: &Answer, sockets: &[OwnedFd]) -> io::Result<()> {
    let mut bytes = Vec::new();
    answer.write(&mut bytes)?;
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let message = SendAncillaryMessage::ScmRights(&borrowed);
    let mut space = vec![MaybeUninit::uninit(); message.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(message) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut rest = stream;
    rest.write_all(&bytes[sent..])
}

/// The part of the answer that one message carries, and the sockets that came with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 4096];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    bytes.truncate(received.bytes);
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    Ok((bytes, sockets))
}

/// A server that has handed over its sockets and ends.
#[derive(Debug)]
pub(crate) struct Predecessor {
    /// The other end closes when the other server's process has ended.
    stream: UnixStream,
}

/// Asks the server with this control socket for its sockets. That server then ends.
pub(crate) fn take_over(path: &Path) -> Result<(Vec<OwnedFd>, Predecessor), Failure> {
    let failed = |what: &str| Failure::Running(format!("--replace: {}: {what}", path.display()));
    let ask = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"POST /replace HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let (bytes, sockets) = receive(&stream)?;
        Ok((stream, bytes, sockets))
    };
    let (stream, bytes, sockets) = ask().map_err(|error: io::Error| failed(&error.to_string()))?;
    match client::parse(&bytes) {
        Some((200, _)) if !sockets.is_empty() => Ok((sockets, Predecessor { stream })),
        Some((200, _)) => Err(failed("the server ends already")),
        Some((_, body)) => Err(failed(&client::refusal(body))),
        None => Err(failed("this is not the control socket of a server")),
    }
}

impl Predecessor {
    /// Waits until the server is gone. Calls `say` now and then while it waits.
    pub(crate) fn wait(mut self, say: impl Fn(&str)) -> io::Result<()> {
        self.stream.set_read_timeout(Some(EVERY))?;
        loop {
            match self.stream.read(&mut [0; 64]) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    say("--replace: the other server has not ended yet; clients that connect wait");
                }
                // A process that is killed may have left bytes unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
    }
}
