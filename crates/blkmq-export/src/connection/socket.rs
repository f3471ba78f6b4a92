//! A bare socket, for the streams with and without TLS that send through it: how bytes are sent, and why they do not
//! get through.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::tls;

/// Why bytes do not get through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The socket failed. `AGAIN` means only that the caller has to wait for the socket.
    #[error("{0}")]
    System(#[from] Errno),
    /// The bytes that came are not allowed by TLS.
    #[error("TLS: {}", tls::told(.0))]
    Tls(rustls::Error),
}

/// Sends. If the client is gone, this is an error here and not a signal to the process.
pub(super) fn send(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
}
