//! One client: its socket from the greeting to the end. Each client has a thread, which calls in by [`Connection`].
//!
//! This page negotiates, as a [`handshake`] of the server. Then [`transmission`] receives requests and sends replies
//! through a [`stream`], with TLS or without, and the [`adapter`] brings requests to the engine and makes replies of
//! what comes back. [`shared`] is what all connections of a server use. The server makes it; from outside, nothing else
//! of this folder is called.

mod adapter;
mod arrival;
mod handshake;
mod input;
mod name;
mod offer;
mod outbox;
mod poll_heuristic;
pub(crate) mod shared;
mod socket;
mod stream;
mod tls_session;
mod transmission;

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkmq::Submitter;
use blkmq::event::EventFd;
use blkmq_engine::{Entry, Phase, Watch};
use rustix::event::PollFlags;
use rustix::io::Errno as SystemError;

use self::adapter::Adapter;
use self::handshake::Handshake;
use self::input::Input;
use self::shared::Shared;
use self::socket::Fault;
use self::socket::Fault::System;
use self::stream::Stream;
use self::transmission::Transmission;
use crate::nbd::command::NoRequest;
use crate::nbd::negotiation::{Agreement, Encryption, Negotiation, Progress};
use crate::tls::Tls;

/// The engine's part of a connection.
type Session = blkmq_engine::Session<adapter::ReplyContext>;

/// Why a connection ended, if the client did not end it in order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ending {
    /// The client closed the connection.
    #[error("the client closed the connection")]
    Gone,
    /// The socket failed, or TLS did.
    #[error("the connection failed: {0}")]
    Broken(Fault),
    /// The client asked for TLS, and the handshake failed.
    #[error("no encrypted connection came about: {0}")]
    Handshake(Fault),
    /// The client was refused an export. The refusal was logged already, and the protocol has no reply that refuses the
    /// export.
    #[error("the connection is closed, for the client asked in a way that has no other answer")]
    Refused,
    /// The negotiation broke the protocol.
    #[error("{0}")]
    Negotiation(String),
    /// A request broke the protocol.
    #[error("{0}")]
    NoRequest(NoRequest),
    /// The negotiation took longer than this.
    #[error("no export was chosen within {0:?}")]
    Late(Duration),
    /// The client had said nothing for a while, and another connection needed its place in the negotiation.
    #[error("it was silent, and too many others negotiate")]
    Displaced,
    /// The client took nothing of what it was to be sent for this long.
    #[error("it has read nothing of its replies for {0:?}, and is waited for no longer")]
    StalledReader(Duration),
    /// The client took nothing for this long, and another client waited for the memory of its replies.
    #[error("it has read nothing of its replies for {0:?}, and others wait for the memory of these")]
    InTheWay(Duration),
    /// The client sent nothing of a request that it had begun for this long.
    #[error("it has sent nothing of a request that it began for {0:?}, and is waited for no longer")]
    StalledSender(Duration),
    /// The server stopped.
    #[error("the server stopped")]
    Stopped,
}

/// Waits until one of `events` holds for the socket (if there is one), the bell rings, or the time is over. Returns the
/// events of the socket, and also `PRI` if the bell ended the wait. The bell has been silenced then.
fn wait(
    socket: Option<BorrowedFd<'_>>,
    bell: &EventFd,
    events: PollFlags,
    timeout: Option<Duration>,
) -> Result<PollFlags, Ending> {
    let mut watch = socket.map(|fd| Watch { fd, wanted: events, ready: PollFlags::empty() });
    let has_rung = blkmq_engine::wait(watch.as_mut_slice(), bell, &[], timeout).map_err(broken)?;
    let ready = watch.map_or(PollFlags::empty(), |watch| watch.ready);
    Ok(if has_rung { ready | PollFlags::PRI } else { ready })
}

/// Returns the end of a connection that cannot wait.
fn broken(error: SystemError) -> Ending {
    Ending::Broken(error.into())
}

/// A client that negotiates, and then is served.
pub(crate) struct Connection {
    stream: Stream,
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    input: Input,
    /// Answers of the negotiation that are not sent yet.
    output: Vec<u8>,
    /// The end of the negotiation, at the latest.
    deadline: Instant,
}

impl Connection {
    /// Makes a connection, whose negotiation begins now. `socket` must be non-blocking.
    pub(crate) fn new(socket: OwnedFd, shared: Arc<Shared>, entry: Arc<Entry>) -> Self {
        let deadline = Instant::now() + shared.negotiation_timeout;
        Self { stream: Stream::new(socket), shared, entry, input: Input::new(), output: Vec::new(), deadline }
    }

    /// Serves the client until the end. All operations of the client are over when this returns.
    pub(crate) fn run(mut self) -> Result<(), Ending> {
        let Some((agreement, mut submitter)) = self.negotiate()? else { return Ok(()) };
        self.send_all()?;
        let Self { stream, shared, entry, input, .. } = self;
        let name = &shared.engine.exports[agreement.export].name;
        shared.engine.inform(format_args!("{entry} uses export {name:?}"));
        let adapter = Adapter::new(&shared.engine, &agreement, &entry, &mut submitter);
        let stop = shared.engine.stop.clone();
        Transmission::new(stream, entry, stop, shared.stall_timeout, submitter, adapter, input).run()
    }

    /// Talks to the client until it has chosen an export, and has a place in that export's queue. The answer to the
    /// choice is left in `output`. `None` if the client wants no export.
    fn negotiate(&mut self) -> Result<Option<(Agreement, Submitter)>, Ending> {
        let encryption = self.shared.tls.as_ref().map_or(Encryption::Off, Tls::encryption);
        let handshake = Arc::new(Handshake::new(Arc::clone(&self.shared), Arc::clone(&self.entry)));
        let mut negotiation = Negotiation::begin(Arc::clone(&handshake), encryption, &mut self.output);
        loop {
            // Nothing is answered before the last answer is sent, so a client that does not read cannot make `output`
            // grow.
            self.send_all()?;
            let (used, step) = negotiation.advance(self.input.bytes(), &mut self.output);
            self.input.consume(used);
            match step {
                Progress::On => (),
                Progress::Short => self.receive()?,
                Progress::Secure => {
                    self.send_all()?;
                    self.secure()?;
                }
                Progress::Chosen(agreement) => {
                    let submitter = handshake.take_place().expect("a client that is admitted has joined the queue");
                    return Ok(Some((agreement, submitter)));
                }
                Progress::Aborted => {
                    // A client that does not wait for this answer does nothing wrong.
                    let _ = self.send_all();
                    return Ok(None);
                }
                Progress::Refused => return Err(Ending::Refused),
                Progress::Broken(text) => return Err(Ending::Negotiation(text)),
            }
        }
    }

    /// Returns how long the negotiation may still take. An error if that time is over, or if the server does not run
    /// any more.
    fn time_left(&self) -> Result<Duration, Ending> {
        if self.shared.engine.stop.phase() != Phase::Running {
            return Err(Ending::Stopped);
        }
        if self.entry.is_displaced() {
            return Err(Ending::Displaced);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Ending::Late(self.shared.negotiation_timeout)) } else { Ok(left) }
    }

    /// Waits for the socket while there is time and the server runs.
    fn wait_for(&self, events: PollFlags) -> Result<(), Ending> {
        // The state is also checked before the wait: the thread that stops the server rings the bells only of the
        // clients that it finds.
        let left = self.time_left()?;
        wait(Some(self.stream.as_fd()), &self.entry.bell, events, Some(left)).map(drop)
    }

    /// Begins to encrypt the connection. The client has been told that already.
    fn secure(&mut self) -> Result<(), Ending> {
        // A client waits for the answer to STARTTLS. Bytes that came together with the STARTTLS may be from an attacker
        // on the way. If these bytes stayed, they would count as the client's words inside TLS.
        if !self.input.bytes().is_empty() {
            return Err(Ending::Negotiation("the client went on in the clear after it had asked for TLS".into()));
        }
        if let Some(tls) = &self.shared.tls {
            self.stream.secure(&tls.config()).map_err(Ending::Handshake)?;
        }
        loop {
            match self.stream.shake_hands() {
                Ok(true) => break,
                Ok(false) => {
                    self.entry.note_word();
                    self.time_left()?;
                }
                Err(System(SystemError::INTR)) => _ = self.time_left()?,
                Err(System(SystemError::AGAIN)) => {
                    self.wait_for(if self.stream.wants_write() { PollFlags::OUT } else { PollFlags::IN })?;
                }
                Err(fault) => return Err(Ending::Handshake(fault)),
            }
        }
        if let Some(name) = self.stream.peer_name() {
            self.entry.identify(name);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Ending> {
        loop {
            match self.input.receive(&mut self.stream, &mut [], usize::MAX) {
                Ok(received) if received.all == 0 => return Err(Ending::Gone),
                Ok(_) => {
                    self.entry.note_word();
                    return Ok(());
                }
                Err(System(SystemError::AGAIN)) => self.wait_for(PollFlags::IN)?,
                Err(System(SystemError::INTR)) => (),
                Err(fault) => return Err(Ending::Broken(fault)),
            }
        }
    }

    /// Sends all of `output`.
    fn send_all(&mut self) -> Result<(), Ending> {
        let mut sent = 0;
        while sent < self.output.len() || self.stream.wants_write() {
            match self.stream.send(&[IoSlice::new(&self.output[sent..])]) {
                Ok(more) => sent += more,
                Err(System(SystemError::AGAIN)) => self.wait_for(PollFlags::OUT)?,
                Err(System(SystemError::INTR)) => (),
                Err(fault) => return Err(Ending::Broken(fault)),
            }
        }
        self.output.clear();
        Ok(())
    }
}
