//! Ending a server, from any thread.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::clients::Clients;

/// How far a server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It serves.
    Running,
    /// What was asked for by now is still answered.
    Draining,
    /// Nothing is answered any more.
    Stopped,
}

struct Shared {
    /// A [`Phase`], which only grows.
    phase: AtomicU8,
    clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    acceptor: Arc<EventFd>,
    /// Wake threads of other front-ends that let clients in.
    others: Mutex<Vec<Weak<EventFd>>>,
}

/// Ends a server. All clones end the same server. To end it twice has the same effect as once.
#[derive(Clone)]
pub struct Stop(Arc<Shared>);

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.phase()).finish()
    }
}

impl Stop {
    /// The handle of a server that runs, with these clients. `acceptor` wakes the thread that accepts.
    #[must_use]
    pub fn new(clients: Arc<Clients>, acceptor: Arc<EventFd>) -> Self {
        Self(Arc::new(Shared {
            phase: AtomicU8::new(Phase::Running as u8),
            clients,
            acceptor,
            others: Mutex::default(),
        }))
    }

    /// Rings this bell too when the server is to end: that of a thread that lets clients of a further front-end in. The
    /// thread looks at the [phase](Self::phase) before it sleeps.
    pub fn ring_too(&self, bell: &Arc<EventFd>) {
        let mut others = self.0.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.retain(|other| other.strong_count() > 0);
        others.push(Arc::downgrade(bell));
    }

    /// Ends the server gracefully. The server accepts no new connections, and answers every request that had reached a
    /// socket. Then the server tells each client that the connection has ended, and closes the connection when the
    /// replies have arrived (with TCP, at the client's system). The call returns at once. The end takes as long as a
    /// client takes to receive its replies; [`now`](Self::now) ends that, and so does the server's stall timeout for a
    /// client that takes none. Connections that still negotiate are closed.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Ends the server at once: connections are closed, whatever was asked. The call returns at once. The connections'
    /// threads still wait for operations that the queue has.
    pub fn now(&self) {
        self.advance(Phase::Stopped);
    }

    fn advance(&self, phase: Phase) {
        // Release: publishes what the caller did before; pairs with the Acquire in `phase`. The bells ring after this
        // store, so a thread that a bell wakes sees the new phase.
        self.0.phase.fetch_max(phase as u8, Ordering::Release);
        self.0.acceptor.notify();
        self.0.clients.ring();
        let others = self.0.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.iter().filter_map(Weak::upgrade).for_each(|bell| bell.notify());
    }

    /// Returns how far the server is from its end.
    #[must_use]
    pub fn phase(&self) -> Phase {
        // Acquire: pairs with the Release in `advance`.
        match self.0.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Red if a thread that lets clients in sleeps on when the server is to end, because it is not the first one.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn every_thread_that_lets_clients_in_is_woken() {
        let bells: Vec<_> = (0..3).map(|_| Arc::new(EventFd::new().unwrap())).collect();
        let stop = Stop::new(Arc::new(Clients::new(1)), Arc::clone(&bells[0]));
        bells[1..].iter().for_each(|bell| stop.ring_too(bell));
        drop(EventFd::new().map(|gone| stop.ring_too(&Arc::new(gone))));
        assert_eq!(stop.phase(), Phase::Running);
        stop.drain();
        let has_rung = |bell: &Arc<EventFd>| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)], Some(&now)) == Ok(1)
        };
        assert!(bells.iter().all(has_rung) && stop.phase() == Phase::Draining);
    }
}
