//! Where clients come in: the thread that accepts them, and the thread of each client, which it starts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use blkmq::Notify;
use blkmq::event::EventFd;
use blkmq_engine::{Clients, Entry, FrontEnd, Phase, Reason, Source, Topic};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::listener::Listener;
use super::reserve::Reserve;
use crate::connection::shared::Shared;
use crate::connection::{Connection, Ending};

/// How long the server pauses accepting when the system has no descriptors or memory left.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts a thread for a client. Returns false if too many clients negotiate.
pub(super) fn serve(shared: &Arc<Shared>, socket: OwnedFd, peer: String, source: Source) -> io::Result<bool> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let bell = Arc::new(EventFd::new()?);
    let Some(entry) = shared.engine.clients.join(FrontEnd::Nbd, peer.clone(), source, bell) else {
        shared.engine.warn(Topic::Refusal, format_args!("a client from {peer} is refused: too many negotiate"));
        return Ok(false);
    };
    let registration = Registration {
        clients: Arc::clone(&shared.engine.clients),
        bell: Arc::clone(&shared.engine.bell),
        number: entry.number,
    };
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name(format!("nbd {}", entry.number));
    // No thread joins this thread. This thread gives back its place last, after it has released the queues.
    let serve = move || {
        let _registration = registration;
        // A variable of the closure's body, so that it is dropped before `_registration`. What is captured is dropped
        // later.
        let shared = shared;
        serve_alone(&shared, socket, entry);
    };
    thread.spawn(serve).map(|_| true)
}

/// Serves one client until its end.
fn serve_alone(shared: &Arc<Shared>, socket: OwnedFd, entry: Arc<Entry>) {
    match Connection::new(socket, Arc::clone(shared), Arc::clone(&entry)).run() {
        Ok(()) => shared.engine.inform(format_args!("{entry} left")),
        Err(ending @ (Ending::Gone | Ending::Stopped | Ending::Refused)) => {
            shared.engine.inform(format_args!("{entry}: {ending}"));
        }
        Err(ending) => {
            match ending {
                Ending::Late(_) => shared.engine.clients.reject(Reason::Late),
                Ending::Displaced => shared.engine.clients.reject(Reason::Crowded),
                _ => (),
            }
            shared.engine.warn(Topic::Ending, format_args!("{entry}: {ending}"));
        }
    }
}

/// A connection's place among the clients. The place is given back when this value is dropped, also if the thread
/// panics.
struct Registration {
    clients: Arc<Clients>,
    bell: Arc<EventFd>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.leave(self.number);
        // Now there may be room for another client.
        self.bell.notify();
    }
}

/// Accepts clients until the server stops. The listeners are dropped with it.
pub(super) fn accept_all(shared: &Arc<Shared>, listeners: &[Listener]) {
    let mut pauses = false;
    let mut reserve = Reserve::new();
    while shared.engine.stop.phase() == Phase::Running {
        let is_open = !pauses && !shared.engine.clients.is_crowded();
        let events = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds: Vec<_> =
            listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), events)).collect();
        fds.push(PollFd::new(&*shared.engine.bell, PollFlags::IN));
        if let Err(error) = poll(&mut fds, pauses.then_some(&PAUSE))
            && error != Errno::INTR
        {
            shared.engine.warn(Topic::Server, format_args!("clients are accepted no more: {error}"));
            return;
        }
        shared.engine.bell.drain();
        reserve.renew();
        pauses = false;
        let ready = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN));
        for (listener, _) in listeners.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let accepted =
                listener.accept().inspect_err(|error| reserve.turn_away(listener, error, &shared.engine.clients));
            let accepted = accepted.and_then(|accepted| match accepted {
                Some((socket, peer, source)) => serve(shared, socket, peer, source).map(drop),
                None => Ok(()),
            });
            if let Err(error) = accepted {
                shared.engine.warn(Topic::Server, format_args!("a client could not be accepted: {error}"));
                pauses = true;
            }
        }
    }
}
