//! Where clients come in: the thread that accepts them, and the thread of each client, which it starts.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use blkmq::Notify;
use blkmq::event::EventFd;
use blkmq_engine::{Accepted, Acceptor, Clients, Entry, FrontEnd, Listener, Phase, Reason, Topic};

use crate::connection::shared::Shared;
use crate::connection::{Connection, Ending};

/// Starts a thread for a client. Returns false if too many clients negotiate.
pub(super) fn serve(shared: &Arc<Shared>, client: Accepted) -> io::Result<bool> {
    let Accepted { socket, peer, source } = client;
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
    let engine = &shared.engine;
    let mut acceptor = Acceptor::new(listeners, &engine.bell).turning_away(&engine.clients);
    while engine.stop.phase() == Phase::Running {
        let is_open = !engine.clients.is_crowded();
        if let Err(error) = acceptor.accept(is_open, |client| serve(shared, client).map(drop)) {
            engine.warn(Topic::Server, format_args!("a client could not be accepted: {error}"));
        }
    }
}
