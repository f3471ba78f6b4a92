//! A client's socket, with or without TLS on top of it.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, read, readv};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_domain};
use rustix::net::{AddressFamily, Shutdown, shutdown};
use rustls::ServerConfig;

use super::arrival::on_the_way;
use super::socket::{Fault, send};
use super::tls_session::TlsSession;

/// A Unix socket counts as not writable when the client has not taken this many bytes, although the socket takes more.
///
/// What the kernel adds to each message is included. The number is room for about 8 answers of 4 KiB that are sent one
/// by one, and for twice as many that are sent together. The kernel uses a quarter of its buffer as this limit, and its
/// buffer is twice the requested size.
const BEHIND: usize = 72 << 10;

/// A stream of bytes in both directions. No function here blocks.
#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    /// A Unix socket. The client can take what it was sent even after this side has closed the socket.
    is_unix: bool,
    tls_session: Option<Box<TlsSession>>,
}

impl Stream {
    /// Creates a stream over a non-blocking socket, without encryption.
    pub(super) fn new(socket: OwnedFd) -> Self {
        let is_unix = socket_domain(&socket) == Ok(AddressFamily::UNIX);
        // TCP chooses its buffers by itself, as the path to the client needs them. If this call fails, a client counts
        // as behind at another number of bytes.
        if is_unix {
            let _ = set_socket_send_buffer_size(&socket, 2 * BEHIND);
        }
        Self { socket, is_unix, tls_session: None }
    }

    /// From here on bytes are encrypted. The handshake comes first.
    ///
    /// # Errors
    /// No TLS session can be made with the configuration.
    pub(super) fn secure(&mut self, config: &Arc<ServerConfig>) -> Result<(), Fault> {
        self.tls_session = Some(Box::new(TlsSession::new(config)?));
        Ok(())
    }

    /// Takes a step of the handshake. Returns whether it is over.
    ///
    /// # Errors
    /// `AGAIN` if the caller has to wait for the socket: until it is writable if [`wants_write`](Self::wants_write),
    /// else until it is readable. Or the client is gone, speaks no TLS, or is not let in.
    pub(super) fn shake_hands(&mut self) -> Result<bool, Fault> {
        let socket = self.socket.as_fd();
        self.tls_session.as_mut().map_or(Ok(true), |tls_session| tls_session.shake_hands(socket))
    }

    /// Returns the name in the client's certificate.
    pub(super) fn peer_name(&self) -> Option<String> {
        self.tls_session.as_ref()?.peer_name()
    }

    /// Receives what is there, up to the length of all slices. Returns the number of bytes, which is 0 if the client
    /// sends no more, and whether there is nothing more until the socket is readable again.
    ///
    /// COST: without TLS one system call. With TLS one system call for each 64 KiB, a copy of the bytes, and
    /// allocations in the TLS library.
    ///
    /// # Errors
    /// `AGAIN` if nothing is there.
    pub(super) fn receive(&mut self, slices: &mut [IoSliceMut<'_>]) -> Result<(usize, bool), Fault> {
        match &mut self.tls_session {
            None => {
                let len: usize = slices.iter().map(|slice| slice.len()).sum();
                let all = readv(&self.socket, slices)?;
                Ok((all, all < len))
            }
            Some(tls_session) => tls_session.receive(self.socket.as_fd(), slices),
        }
    }

    /// Sends as much as the socket takes now, in order. Returns how many bytes the caller need not send again. With TLS
    /// some of these bytes may still wait for the socket, see [`wants_write`](Self::wants_write).
    ///
    /// COST: without TLS one system call and no copy. With TLS one system call for up to 64 KiB, which are encrypted
    /// into memory of the TLS library.
    ///
    /// # Errors
    /// `AGAIN` if the socket takes nothing now.
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Fault> {
        match &mut self.tls_session {
            None => Ok(send(self.socket.as_fd(), slices)?),
            Some(tls_session) => tls_session.send(self.socket.as_fd(), slices),
        }
    }

    /// Returns true if TLS has bytes for the socket that the socket has not got yet. [`send`](Self::send) sends them,
    /// also when it is called without any slice.
    pub(super) fn wants_write(&self) -> bool {
        self.tls_session.as_ref().is_some_and(|tls_session| tls_session.wants_write())
    }

    /// Returns the number of bytes to receive from now on, if bytes that reach the socket later do not count.
    pub(super) fn last_bytes(&mut self) -> usize {
        let waiting = rustix::io::ioctl_fionread(&self.socket).unwrap_or(0);
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
        match &mut self.tls_session {
            None => waiting,
            // The TLS session counts the bytes that it takes from the socket, which are more than come out.
            Some(tls_session) => {
                tls_session.limit(waiting);
                usize::MAX
            }
        }
    }

    /// Tells the client that nothing more comes. TLS has a message for that. The function may be called again.
    ///
    /// # Errors
    /// `AGAIN` if the socket does not take the message now.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.tls_session.as_mut().map_or(Ok(()), |tls_session| tls_session.close(self.socket.as_fd()))
    }

    /// Tells the client that nothing more is sent, once it has got what was.
    pub(super) fn end_sending(&self) {
        // A socket that is not connected any more has no client to tell.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Returns how many of the bytes that were sent are neither with the client, nor with a system that delivers them
    /// even if this socket is closed.
    pub(super) fn on_the_way(&self) -> usize {
        // If the socket does not know, there is nothing to wait for.
        if self.is_unix { 0 } else { on_the_way(self.socket.as_fd()).unwrap_or(0) }
    }

    /// Discards what the client still sends. Returns how many bytes would be lost if the socket were closed now: none
    /// if the client sends no more, or if everything that was sent to it has arrived.
    pub(super) fn see_off(&self) -> usize {
        let mut passed_over = [0; 4096];
        // The loop has a limit, so that a client that sends without end does not delay the check of what has arrived.
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
        // In every case the client is told of the end if the socket has room. The thread does not wait for room any
        // more.
        let _ = self.close();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Red if the limit is the system's usual default of 208 KiB, or if the socket is full at the limit.
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
