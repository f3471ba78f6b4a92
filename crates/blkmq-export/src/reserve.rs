//! What a server does when the system has no descriptors left.

use std::io;

use blkmq::event::EventFd;
use rustix::io::Errno;

use crate::clients::{Clients, Reason};
use crate::listener::Listener;

/// A descriptor that is kept for when there is none left. With it a client that waits to be accepted is told so, by a
/// connection that is closed at once; else it would wait until somebody leaves.
pub(crate) struct Reserve(Option<EventFd>);

impl Reserve {
    pub(crate) fn new() -> Self {
        Self(EventFd::new().ok())
    }

    /// Takes one again if there was none the last time.
    pub(crate) fn renew(&mut self) {
        if self.0.is_none() {
            *self = Self::new();
        }
    }

    /// Closes the connection of the client that waits next, if it is for want of descriptors that it was not accepted.
    pub(crate) fn turn_away(&mut self, listener: &Listener, error: &io::Error, clients: &Clients) {
        if let Some(Errno::MFILE | Errno::NFILE) = Errno::from_io_error(error) {
            drop(self.0.take());
            // Another thread may have been quicker to take its place, and then the client waits until the next try.
            if let Ok(Some(_)) = listener.accept() {
                clients.reject(Reason::NoDescriptor);
            }
            self.renew();
        }
    }
}
