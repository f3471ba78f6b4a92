//! How one server takes the place of another. The new server gets the sockets that clients come through, and then waits
//! until the other server has ended. Clients that connect meanwhile wait in those sockets.
//!
//! 1. The new server asks, and the old one sends the sockets. It offers them to one server at a time.
//! 2. The new server checks the sockets, and says that it takes them: [`TAKEN`].
//! 3. The old server answers with the same byte, and ends.
//!
//! Before step 3 either side may give up by closing the connection, and then the old server goes on. A new server that
//! has read the byte knows that the old one ends, and that no other server gets the sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often the server says that it waits for the other server.
const EVERY: Duration = Duration::from_secs(5);

/// What each server says once: the new one that it takes the sockets, and then the old one that it ends.
const TAKEN: [u8; 1] = [b'\n'];

/// Whether sockets are offered to a server, or were taken by one. A process has one server.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// The right of one server to take the place of this one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim(());

impl Claim {
    /// `None` if another server has it.
    pub(super) fn take() -> Option<Self> {
        // Relaxed: of two callers one gets it, and nothing else is passed from one caller to the other.
        (!IS_CLAIMED.swap(true, Ordering::Relaxed)).then_some(Self(()))
    }

    /// From now on no other server gets it.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Relaxed: for the same reason as where it is taken.
        IS_CLAIMED.store(false, Ordering::Relaxed);
    }
}

/// Sends an answer with the sockets. Returns once the other server has taken them, and knows that this one ends.
///
/// # Errors
/// The other server has given up, or says nothing. Then this server goes on.
pub(super) fn hand_over(mut stream: &UnixStream, answer: &Answer, sockets: &[OwnedFd]) -> io::Result<()> {
    send(stream, answer, sockets)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut said = TAKEN;
    stream.read_exact(&mut said)?;
    if said != TAKEN {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&TAKEN)
}

/// Sends an answer with the sockets.
fn send(stream: &UnixStream, answer: &Answer, sockets: &[OwnedFd]) -> io::Result<()> {
    let mut bytes = Vec::new();
    answer.write(&mut bytes)?;
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let message = SendAncillaryMessage::ScmRights(&borrowed);
    let mut space = vec![MaybeUninit::uninit(); message.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(message) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    stream.set_write_timeout(Some(TIMEOUT))?;
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

/// Asks the server with this control socket for its sockets. That server then ends, unless `check` refuses the sockets.
pub(crate) fn take_over(
    path: &Path,
    check: impl FnOnce(&[OwnedFd]) -> io::Result<()>,
) -> Result<(Vec<OwnedFd>, Predecessor), Failure> {
    let failed = |what: &str| Failure::Running(format!("--replace: {}: {what}", path.display()));
    let ask = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"POST /replace HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let (bytes, sockets) = receive(&stream)?;
        Ok((stream, bytes, sockets))
    };
    let (mut stream, bytes, sockets) = ask().map_err(|error: io::Error| failed(&error.to_string()))?;
    match client::parse(&bytes) {
        Some((200, _)) if !sockets.is_empty() => (),
        Some((200, _)) => return Err(failed("the server ends already")),
        Some((_, body)) => return Err(failed(&client::refusal(body))),
        None => return Err(failed("this is not the control socket of a server")),
    }
    check(&sockets).map_err(|error| failed(&format!("{error}; that server goes on")))?;
    let taken = stream.write_all(&TAKEN).and_then(|()| stream.read_exact(&mut [0]));
    taken.map_err(|error| failed(&format!("that server has not said that it ends: {error}")))?;
    Ok((sockets, Predecessor { stream }))
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
