//! A client's socket, with or without TLS on top of it.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, read, readv};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_domain};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};
use rustls::ServerConfig;

use super::arrival::on_the_way;
use super::session::Session;
use crate::tls;

/// A Unix socket with so many bytes that the client has not taken is not writable, though it takes more.
///
/// What the kernel adds to each message counts too: it is room for some 8 answers of 4 KiB sent one by one, and twice
/// as many sent together. The kernel draws the line at a quarter of a buffer that is twice what it is asked for.
const BEHIND: usize = 72 << 10;

/// Why bytes do not get through.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The socket says so; `AGAIN` if it only has to be waited for.
    System(Errno),
    /// What came is not what TLS allows.
    Tls(rustls::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Tls(error) => write!(f, "TLS: {}", tls::told(error)),
        }
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// A stream of bytes in either direction. Nothing here blocks.
#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    /// A Unix socket, from which the client takes what it was sent also when it is closed.
    is_unix: bool,
    session: Option<Box<Session>>,
}

impl Stream {
    /// The socket does not block. Bytes go over it as they are.
    pub(super) fn new(socket: OwnedFd) -> Self {
        let is_unix = socket_domain(&socket) == Ok(AddressFamily::UNIX);
        // TCP chooses its buffers by what the way to the client takes. If this fails, a client counts as behind sooner
        // or later.
        if is_unix {
            let _ = set_socket_send_buffer_size(&socket, 2 * BEHIND);
        }
        Self { socket, is_unix, session: None }
    }

    /// From here on bytes go over it encrypted; the handshake comes first.
    ///
    /// # Errors
    /// The configuration makes no session.
    pub(super) fn secure(&mut self, config: &Arc<ServerConfig>) -> Result<(), Fault> {
        self.session = Some(Box::new(Session::new(config)?));
        Ok(())
    }

    /// Takes a step of the handshake. Returns whether it is over.
    ///
    /// # Errors
    /// `AGAIN` if the socket has to be waited for: to write if [`wants_write`](Self::wants_write), else to read. Or the
    /// client is gone, speaks no TLS, or is not let in.
    pub(super) fn shake_hands(&mut self) -> Result<bool, Fault> {
        let socket = self.socket.as_fd();
        self.session.as_mut().map_or(Ok(true), |session| session.shake_hands(socket))
    }

    /// What the client's certificate says who it is.
    pub(super) fn peer_name(&self) -> Option<String> {
        self.session.as_ref()?.peer_name()
    }

    /// Receives what is there, up to the length of all slices. Returns the bytes, none if the client sends no more, and
    /// whether there is no more just now: only a readable socket brings more then.
    ///
    /// COST: without TLS one system call. With it one for each 64 KiB, a copy of what it brings, and allocations in the
    /// TLS library.
    ///
    /// # Errors
    /// `AGAIN` if nothing is there.
    pub(super) fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> Result<(usize, bool), Fault> {
        match &mut self.session {
            None => {
                let len: usize = slices.iter().map(|slice| slice.len()).sum();
                let all = readv(&self.socket, slices)?;
                Ok((all, all < len))
            }
            Some(session) => session.receive(self.socket.as_fd(), slices),
        }
    }

    /// Sends as much as goes now, in order. Returns how much of it the caller need not send again; with TLS some of
    /// that may still wait for the socket, see [`wants_write`](Self::wants_write).
    ///
    /// COST: without TLS one system call and no copy. With it one for up to 64 KiB, which are encrypted into memory of
    /// the TLS library.
    ///
    /// # Errors
    /// `AGAIN` if the socket takes nothing now.
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Fault> {
        match &mut self.session {
            None => Ok(send(self.socket.as_fd(), slices)?),
            Some(session) => session.send(self.socket.as_fd(), slices),
        }
    }

    /// Whether TLS has something for the socket that was not handed to it yet: [`send`](Self::send), also without any
    /// slice, goes on with it.
    pub(super) fn wants_write(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_write())
    }

    /// Bytes that may be received from now on if nothing that reaches the socket later is to count.
    pub(super) fn last_bytes(&mut self) -> usize {
        let waiting = rustix::io::ioctl_fionread(&self.socket).unwrap_or(0);
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
        match &mut self.session {
            None => waiting,
            // It counts what it takes from the socket, which is more than comes out.
            Some(session) => {
                session.limit(waiting);
                usize::MAX
            }
        }
    }

    /// Tells the client that nothing more comes, which TLS has a message for. May be called again.
    ///
    /// # Errors
    /// `AGAIN` if the socket does not take it now.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.session.as_mut().map_or(Ok(()), |session| session.close(self.socket.as_fd()))
    }

    /// Tells the client that nothing more is sent, once it has got what was.
    pub(super) fn end_sending(&self) {
        // One that is not connected any more has nothing to be told.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Bytes of what was sent that are neither with the client, nor with a system that hands them over whatever becomes
    /// of this socket.
    pub(super) fn on_the_way(&self) -> usize {
        // Where nobody knows there is nothing to wait for.
        if self.is_unix { 0 } else { on_the_way(self.socket.as_fd()).unwrap_or(0) }
    }

    /// Passes over what the client still sends. Returns how many bytes would be lost if the socket were closed: none if
    /// the client sends no more, or all that it was sent has arrived.
    pub(super) fn see_off(&self) -> usize {
        let mut passed_over = [0; 4096];
        // A client that sends without end does not put off the look at what has arrived.
        for _ in 0..64 {
            match read(&self.socket, &mut passed_over) {
                Ok(len) if len > 0 => (),
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => return 0,
            }
        }
        self.on_the_way()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // However it ends, the client hears so if the socket has room; there is nobody left to wait until it has.
        let _ = self.close();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends; a client that is gone is an error here, and no signal to the process.
pub(super) fn send(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Red if the line is where the system's usual default of 208 KiB has it, or the socket is full there.
    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn a_client_is_behind_before_its_socket_is_full() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut stream = Stream::new(ours.into());
        let mut states = Vec::new();
        for _ in 0..2 {
            assert_eq!(stream.send(&[IoSlice::new(&[0; 56 << 10])]).unwrap(), 56 << 10);
            let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT)];
            states.push(poll(&mut fds, Some(&Timespec::default())).unwrap() == 1);
        }
        assert_eq!(states, [true, false]);
        assert!(stream.send(&[IoSlice::new(&[0; 4096])]).is_ok());
    }
}
