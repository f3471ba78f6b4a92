//! The control socket of a server: HTTP and JSON, so that `curl` speaks to it too. The metrics alone can be read by TCP
//! as well.
//!
//! The server's side is here, in `http`, which reads requests, and in `routes` and `tenants`, which answer them; `blkmq
//! serve` calls [`start`]. What clients receive is noted by [`sampler`], in a `history` of what was `due`. The other
//! commands call in at [`client`], which asks a running server, and at [`schema`] and [`limiter`], the JSON of both
//! sides. A server that takes another's place asks it by [`handover`].

pub(crate) mod client;
mod due;
pub(crate) mod exports;
pub(crate) mod folder;
pub(crate) mod handover;
mod history;
mod http;
pub(crate) mod limiter;
mod metrics;
pub(crate) mod name;
mod routes;
pub(crate) mod sampler;
pub(crate) mod schema;
mod seats;
pub(crate) mod shares;
mod tenants;

use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq::event::EventFd;
use blkmq_engine::{Acceptor, Listener};
use blkmq_export::Placement;

use exports::Exports;
use http::{Answer, Hasty, Request, Unread};
use seats::{Phase, Seats, Taken};
use shares::Shares;

use crate::operator;

/// The most connections that are served at once. A further one takes the place of one that is silent.
const MAX_CONNECTIONS: usize = 16;
/// How long a client may take to ask, and one that has asked then again to read the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A queue that is served.
#[derive(Debug)]
pub(crate) struct Served {
    /// The export's name, or `default` for the one without a name.
    pub(crate) name: String,
    /// The device's spec.
    pub(crate) device: String,
    pub(crate) description: String,
    pub(crate) read_only: bool,
    /// The URIs at which clients find it.
    pub(crate) uris: Vec<String>,
    /// The weights and priorities that the configuration gives its exports.
    pub(crate) shares: Shares,
    pub(crate) q: RequestQueue,
    /// Which clients its connections are.
    pub(crate) placement: Arc<Placement>,
    /// What its clients received.
    pub(crate) history: sampler::Shared,
}

impl Served {
    /// Whether an operator has configured who gets what of the queue.
    pub(crate) fn has_shares(&self) -> bool {
        self.shares.are_set() || self.placement.sets_weights()
    }

    /// Says on standard error which settings of its exports have no effect with the present queue. Returns these lines.
    pub(crate) fn warn_of_shares(&self) -> Vec<String> {
        let warnings = self.shares.warnings(&self.q, self.placement.sets_weights());
        warnings.iter().for_each(|warning| operator::say(&format!("{}: {warning}", self.name)));
        warnings
    }
}

/// What the control socket controls.
pub(crate) struct State {
    pub(crate) queues: Vec<Served>,
    pub(crate) exports: Exports,
    /// Begins to end the server gracefully.
    pub(crate) stop: Box<dyn Fn() + Send + Sync>,
}

/// What happens after an answer.
pub(crate) enum Then {
    /// Nothing.
    GoOn,
    /// The server ends.
    Stop,
    /// The server ends, if the program that asked takes these sockets, which go to it together with the answer.
    HandOver(handover::Claim, Vec<OwnedFd>),
}

/// Makes the answer to a request, and says what happens after it.
type Respond = fn(&State, &Request) -> (Answer, Then);

/// Listens for as long as the process lives. At `metrics`, only the metrics can be read.
pub(crate) fn start(listener: UnixListener, metrics: Option<TcpListener>, state: State) -> io::Result<()> {
    let state = Arc::new(state);
    if let Some(metrics) = metrics {
        listen("metrics", metrics.into(), &state, routes::metrics_alone)?;
    }
    listen("control", listener.into(), &state, routes::answer)
}

/// Answers all connections, each in a thread of its own. The connections of one listener leave places for those of
/// another.
fn listen(name: &str, socket: OwnedFd, state: &Arc<State>, respond: Respond) -> io::Result<()> {
    let (state, bell) = (Arc::clone(state), EventFd::new()?);
    let listeners = [Listener::adopt(socket, None).map_err(io::Error::other)?];
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let (seats, mut acceptor) = (Arc::new(Seats::new(MAX_CONNECTIONS)), Acceptor::new(&listeners, &bell));
        loop {
            // After an error the acceptor pauses. If there is no thread, the connection is closed, which is answer
            // enough.
            let _ = acceptor.accept(true, |client| {
                // A stream is read, written and shut down in the same way whatever its address family is.
                let stream = UnixStream::from(client.socket);
                stream.set_nonblocking(false)?;
                match seats.take(stream) {
                    Ok(seat) => {
                        let state = Arc::clone(&state);
                        let talk = move || serve(&seat, &state, respond);
                        thread::Builder::new().name("control client".to_owned()).spawn(talk)?;
                    }
                    Err(stream) => turn_away(&stream),
                }
                Ok(())
            });
        }
    })?;
    Ok(())
}

fn turn_away(mut stream: &UnixStream) {
    let mut bytes = Vec::new();
    let _ = Answer::refusal(http::UNAVAILABLE, "too many connections at once").write(&mut bytes);
    // A few bytes always fit into the buffer of a new connection, so this does not wait.
    let _ = stream.write(&bytes);
}

fn serve(seat: &Taken, state: &State, respond: Respond) {
    let (answer, then) = match http::read(&mut Hasty::new(seat, TIMEOUT)) {
        Ok(request) => {
            seat.begin(Phase::Waiting);
            respond(state, &request)
        }
        Err(Unread::Wrong(answer)) => (answer, Then::GoOn),
        Err(Unread::Gone) => return,
    };
    if let Then::HandOver(claim, sockets) = then {
        let Ok(answers) = seat.stream().try_clone() else { return };
        if handover::hand_over(&answers, &answer, &sockets).is_ok() {
            claim.keep();
            (state.stop)();
            // This stream stays open until the process ends: its end tells the other server that this process has
            // ended.
            std::mem::forget(answers);
        }
        return;
    }
    seat.begin(Phase::Reading);
    let mut answers = Hasty::new(seat, TIMEOUT);
    // Nothing more is waited for from a client that has had its time.
    if answer.write(&mut answers).is_ok() && answer.status != http::TIMED_OUT {
        answers.end();
    }
    // This comes last. Otherwise the process might end before the answer is written.
    if matches!(then, Then::Stop) {
        (state.stop)();
    }
}
