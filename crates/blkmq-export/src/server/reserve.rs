//! What a server does when the system has no descriptors left.

use std::io;

use blkmq::event::EventFd;
use blkmq_engine::{Clients, Reason};
use rustix::io::Errno;

use super::listener::Listener;

/// A descriptor that is kept for the case that none is left. With this descriptor the server can tell a client that
/// waits to be accepted: the server accepts the connection and closes it at once. Otherwise the client would wait until
/// another client leaves.
pub(super) struct Reserve(Option<EventFd>);

impl Reserve {
    pub(super) fn new() -> Self {
        Self(EventFd::new().ok())
    }

    /// Takes a descriptor again if there was none the last time.
    pub(super) fn renew(&mut self) {
        if self.0.is_none() {
            *self = Self::new();
        }
    }

    /// Closes the connection of the next client that waits, if the lack of descriptors is why it was not accepted.
    pub(super) fn turn_away(&mut self, listener: &Listener, error: &io::Error, clients: &Clients) {
        if let Some(Errno::MFILE | Errno::NFILE) = Errno::from_io_error(error) {
            drop(self.0.take());
            // Another thread may have taken the free descriptor first. Then the client waits until the next try.
            if let Ok(Some(_)) = listener.accept() {
                clients.reject(Reason::NoDescriptor);
            }
            self.renew();
        }
    }
}
