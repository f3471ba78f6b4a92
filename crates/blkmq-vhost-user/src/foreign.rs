//! Descriptors that a front-end has sent.
//!
//! To close one may take as long as its owner likes: the last descriptor of a socket that lingers waits for the other
//! end, and close(2) on a file system in user space asks that file system. So what the server does not use is closed by
//! a thread that nobody waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

/// The descriptors that wait to be closed behind one that takes long. A further one is closed by the thread that has
/// it: a front-end with so many then holds up its own connection, and does not take all descriptors of the process.
const MAX_WAITING: usize = 64;

/// A descriptor of a front-end about which nothing is known. Dropping it waits for nobody.
#[derive(Debug)]
pub(crate) struct Foreign(Option<OwnedFd>);

impl Foreign {
    pub(crate) const fn new(file: OwnedFd) -> Self {
        Self(Some(file))
    }

    fn file(&self) -> &OwnedFd {
        self.0.as_ref().expect("the descriptor is there until it is dropped or taken")
    }

    /// The descriptor, for a caller that `check` tells that closing it waits for nobody.
    pub(crate) fn admit<E>(mut self, check: impl FnOnce(&OwnedFd) -> Result<(), E>) -> Result<OwnedFd, E> {
        check(self.file())?;
        Ok(self.0.take().expect("the descriptor was just looked at"))
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        static CLOSER: OnceLock<Option<SyncSender<OwnedFd>>> = OnceLock::new();
        let Some(file) = self.0.take() else { return };
        let closer = CLOSER.get_or_init(|| {
            let (closer, files) = sync_channel(MAX_WAITING);
            let work = move || files.into_iter().for_each(drop);
            thread::Builder::new().name("closer".to_owned()).spawn(work).is_ok().then_some(closer)
        });
        if let Some(closer) = closer
            && let Err(TrySendError::Full(file) | TrySendError::Disconnected(file)) = closer.try_send(file)
        {
            drop(file);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;

    /// A descriptor that takes an hour to close: a socket with data that nobody takes. With the other end.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        // A socket that does not block does not linger.
        near.set_nonblocking(false).unwrap();
        set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
        (near.into(), far)
    }
}
