//! The requests of one connection: received, done and answered, many at a time.

mod shutdown;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::idle::Idle;
use blkmq::{Buffer, Clock, Submitter};
use blkmq_engine::{Cause, Entry, Failure, IdleTimeout, Phase, Piece, Stop, TaskId, Watch};
use rustix::event::PollFlags;
use rustix::io::Errno as SystemError;

use super::adapter::Adapter;
use super::input::Input;
use super::poll_heuristic::{Awaited, PollHeuristic, Rest};
use super::socket::Fault::System;
use super::stream::Stream;
use super::{Ending, broken, wait};
use crate::nbd::Request;
use crate::nbd::command::{Command, NoRequest};

/// How long the connection gives a client time to take its many answers. During this time the connection is not woken
/// for each request that the client sends. A client that takes no answer before it has sent more requests can still
/// send them.
const RELIEF: Duration = Duration::from_micros(200);

/// How long a client may take nothing while its replies take memory for which others wait.
const CLAIM: Duration = Duration::from_secs(5);
/// How often a connection whose client takes nothing looks whether others wait.
const LOOK: Duration = Duration::from_secs(1);

/// The data of a request that is being received.
#[derive(Debug)]
struct Incoming {
    task: TaskId,
    /// Bytes still to come.
    left: usize,
    /// The buffer that takes the bytes. `None` if they are skipped, or if there is no memory for a buffer yet.
    buffer: Option<Buffer>,
    /// Whether there is no memory yet for a buffer.
    is_waiting: bool,
    /// Bytes in the buffer.
    filled: usize,
}

/// A connection that has chosen its export.
#[derive(Debug)]
pub(super) struct Transmission {
    stream: Stream,
    bell: Arc<EventFd>,
    entry: Arc<Entry>,
    stop: Stop,
    submitter: Submitter,
    adapter: Adapter,
    input: Input,
    incoming: Option<Incoming>,
    /// The first request of the input waits until other requests are answered.
    is_full: bool,
    /// Whether the client may have sent something.
    is_readable: bool,
    /// Whether the socket may take something.
    is_writable: bool,
    /// Bytes that are still read from the socket, once the server is being drained.
    last_bytes: Option<usize>,
    /// Why nothing more is read. The request whose data is not complete fails with this. Requests in progress are still
    /// answered, and then the connection ends.
    end: Option<Failure>,
    /// Whether all that was sent had arrived when everything was answered.
    has_arrived: bool,
    /// The client takes no replies any more. Requests of the client that change the export are done all the same,
    /// because the client may have left in order. The other requests are not needed any more.
    is_gone: bool,
    /// The idle timeout with a client that has to read.
    reader: IdleTimeout,
    /// The idle timeout with a client that has to send the rest of a request's data.
    sender: IdleTimeout,
    stall_timeout: Option<Duration>,
    poll_heuristic: PollHeuristic,
    /// Nothing was found to do since there was last something to do.
    is_idle: bool,
    idle: Idle,
}

impl Transmission {
    pub(super) fn new(
        stream: Stream,
        entry: Arc<Entry>,
        stop: Stop,
        stall_timeout: Option<Duration>,
        submitter: Submitter,
        adapter: Adapter,
        input: Input,
    ) -> Self {
        Self {
            stream,
            bell: Arc::clone(&entry.bell),
            entry,
            stop,
            submitter,
            adapter,
            input,
            incoming: None,
            is_full: false,
            is_readable: true,
            is_writable: true,
            last_bytes: None,
            end: None,
            has_arrived: false,
            is_gone: false,
            reader: IdleTimeout::new(stall_timeout),
            sender: IdleTimeout::new(stall_timeout),
            stall_timeout,
            poll_heuristic: PollHeuristic::default(),
            is_idle: false,
            idle: Idle::new(),
        }
    }

    /// Serves the client until it leaves, breaks the protocol, or the server stops.
    ///
    /// COST: per turn one system call to receive and one to send, for all requests that came together. These requests
    /// go through the queue as one plug. Before the connection sleeps: none for most clients that wait for their
    /// answers, one or two to look again for others, and two for each look that the idle policy allows. One to sleep.
    pub(super) fn run(&mut self) -> Result<(), Ending> {
        loop {
            self.look_at_stop()?;
            let mut is_busy = self.receive()?;
            is_busy |= self.parse()?;
            is_busy |= self.adapter.drive(&mut self.submitter);
            is_busy |= self.send()?;
            if self.is_ended() && !self.is_full && self.adapter.session.is_idle() && self.has_closed()? {
                return if self.is_gone { Err(Ending::Gone) } else { self.see_off() };
            }
            if is_busy {
                self.is_idle = false;
                self.idle.end();
            } else {
                self.rest()?;
            }
        }
    }

    fn look_at_stop(&mut self) -> Result<(), Ending> {
        match self.stop.phase() {
            Phase::Running => Ok(()),
            Phase::Draining if self.last_bytes.is_some() => Ok(()),
            Phase::Draining => {
                // Everything that has reached the socket by now is answered. A client that goes on sending does not
                // delay the end.
                self.last_bytes = Some(self.stream.last_bytes());
                self.is_readable = true;
                Ok(())
            }
            Phase::Stopped => Err(Ending::Stopped),
        }
    }

    fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    fn wants_input(&self) -> bool {
        !self.is_ended() && !self.is_full
    }

    /// Receives what one call returns. Returns whether there was anything.
    fn receive(&mut self) -> Result<bool, Ending> {
        if !self.wants_input() || !self.is_readable {
            return Ok(false);
        }
        if self.last_bytes == Some(0) {
            self.end_input(Failure::new(Cause::Shutdown, "the server is shutting down"));
            return Ok(true);
        }
        let most = self.last_bytes.unwrap_or(usize::MAX);
        let payload = match &mut self.incoming {
            Some(Incoming { buffer: Some(buffer), filled, .. }) => &mut buffer[*filled..],
            _ => &mut [],
        };
        match self.input.receive(&mut self.stream, payload, most) {
            Ok(received) if received.all == 0 => {
                self.end_input(Failure::new(Cause::Io, "the client stopped within the data of the request"));
            }
            Ok(received) => {
                self.adapter.session.set_now(self.submitter.queue().clock().now());
                // This comes before the work for the device, which takes time.
                self.idle.arrive();
                self.sender.end();
                // A connection does not wait for the socket of a client that is gone, so it reads that socket to its
                // end.
                self.is_readable = !received.is_short || self.last_bytes.is_some() || self.is_gone;
                if let Some(left) = &mut self.last_bytes {
                    *left -= received.all;
                }
                if let Some(incoming) = &mut self.incoming {
                    incoming.filled += received.payload;
                    incoming.left -= received.payload;
                }
            }
            Err(System(SystemError::AGAIN)) => {
                self.is_readable = false;
                // Everything that the kernel counted has come, or there is no client to send more.
                let is_all = self.last_bytes.is_some() || self.is_gone;
                if is_all {
                    self.end_input(Failure::new(Cause::Shutdown, "the connection is being closed"));
                }
                return Ok(is_all);
            }
            Err(System(SystemError::CONNRESET)) => {
                self.lose_client();
                self.end_input(Failure::new(Cause::Io, "the client is gone"));
            }
            Err(System(SystemError::INTR)) => (),
            Err(error) => return Err(Ending::Broken(error)),
        }
        Ok(true)
    }

    /// Called when the client is gone: the client has closed the whole connection, and not only its own direction.
    fn lose_client(&mut self) {
        // No client needs what waits for the socket, and the socket will never say that it has room. The rest of the
        // input is read without waiting.
        (self.is_gone, self.is_readable, self.is_writable) = (true, true, true);
        self.sender.end();
        self.note_progress();
        self.adapter.abandon();
    }

    /// Called when nothing more is read. A request whose data is not complete fails, also if it is taken later.
    fn end_input(&mut self, failure: Failure) {
        let failure = self.end.get_or_insert(failure);
        if let Some(Incoming { task, buffer, .. }) = self.incoming.take() {
            self.adapter.session.break_payload(task, buffer, failure.clone());
        }
    }

    /// Takes the requests that are complete, as far as the bounds allow, and submits them together. Returns whether
    /// there were any.
    fn parse(&mut self) -> Result<bool, Ending> {
        self.is_full = false;
        let mut has_any = self.incoming.is_some() && self.take_payload();
        let mut nr_requests = 0;
        while self.incoming.is_none() {
            let Some(head) = self.input.bytes().first_chunk() else { break };
            let request = Request::decode(head).map_err(|magic| Ending::NoRequest(NoRequest(magic)))?;
            let checked = self.adapter.terms.check(&request);
            if checked == Ok(Command::Disconnect) {
                self.end_input(Failure::new(Cause::Shutdown, "the client has left"));
                self.input.clear();
                break;
            }
            let Some(task) = self.adapter.take(&request, checked) else {
                self.is_full = true;
                break;
            };
            has_any = true;
            nr_requests += 1;
            self.input.consume(Request::SIZE);
            if request.payload() > 0 {
                let left = request.payload() as usize;
                self.incoming = Some(Incoming { task, left, buffer: None, is_waiting: true, filled: 0 });
                self.take_payload();
            }
        }
        self.poll_heuristic.note(nr_requests);
        if let Some(failure) = self.end.take() {
            self.end_input(failure);
        }
        Ok(has_any | self.adapter.submit(&mut self.submitter))
    }

    /// Continues with the data of a request. Returns whether a piece of the data is complete.
    fn take_payload(&mut self) -> bool {
        let mut has_piece = false;
        while let Some(mut incoming) = self.incoming.take() {
            if incoming.is_waiting {
                let (buffer, filled) = match self.adapter.session.next_piece(incoming.task) {
                    Piece::Here(buffer, filled) => (Some(buffer), filled),
                    Piece::Useless => (None, 0),
                    Piece::Later => {
                        // Every event that gives memory back also wakes this thread.
                        self.is_full = true;
                        self.incoming = Some(incoming);
                        break;
                    }
                };
                incoming = Incoming { buffer, filled, is_waiting: false, ..incoming };
            }
            if let Some(buffer) = &mut incoming.buffer {
                let taken = self.input.move_to(&mut buffer[incoming.filled..]);
                incoming.filled += taken;
                incoming.left -= taken;
                if incoming.filled < buffer.len() {
                    self.incoming = Some(incoming);
                    break;
                }
            } else {
                let skipped = incoming.left.min(self.input.bytes().len());
                self.input.consume(skipped);
                incoming.left -= skipped;
                if incoming.left > 0 {
                    self.incoming = Some(incoming);
                    break;
                }
            }
            has_piece = true;
            if let Some(buffer) = incoming.buffer.take() {
                self.adapter.session.take_piece(incoming.task, buffer);
            }
            if incoming.left == 0 {
                self.adapter.session.end_payload(incoming.task);
                break;
            }
            self.incoming = Some(Incoming { is_waiting: true, ..incoming });
        }
        has_piece
    }

    /// Returns true if bytes wait for the socket. For a client that is gone, the bytes that TLS has would wait for
    /// ever.
    fn has_output(&self) -> bool {
        self.adapter.has_replies() || (!self.is_gone && self.stream.wants_write())
    }

    /// Sends replies until the socket takes no more. Returns whether any reply was completely sent.
    fn send(&mut self) -> Result<bool, Ending> {
        let mut has_any = false;
        while self.is_writable && self.has_output() {
            if self.is_gone {
                return Ok(self.adapter.discard());
            }
            match self.adapter.send(&mut self.stream) {
                Ok(_) => {
                    self.note_progress();
                    has_any |= self.adapter.forget_sent();
                }
                Err(System(SystemError::AGAIN)) => {
                    self.is_writable = false;
                    self.note_blocked();
                }
                Err(System(SystemError::INTR)) => (),
                Err(System(SystemError::PIPE | SystemError::CONNRESET)) => self.lose_client(),
                Err(error) => return Err(Ending::Broken(error)),
            }
        }
        Ok(has_any)
    }

    /// Called when the client has taken something.
    fn note_progress(&mut self) {
        if self.reader.end() {
            self.entry.note_reading();
            self.adapter.session.note_stalled(false);
        }
    }

    /// Called when the client has to read before more can be sent.
    fn note_blocked(&mut self) {
        if self.reader.begin() {
            self.entry.note_blocked();
            self.adapter.session.note_stalled(true);
        }
    }

    /// Returns how long the connection still waits for the client, if there is a limit. An error if the limit has
    /// passed. Without a limit, a client could hold the memory of a reply or of a request forever.
    fn check_stall(&self) -> Result<Option<Duration>, Ending> {
        let Some(limit) = self.stall_timeout else { return Ok(None) };
        let (reader, sender) = (self.reader.left(), self.sender.left());
        match (reader, sender) {
            (Some(Duration::ZERO), _) => Err(Ending::StalledReader(limit)),
            (_, Some(Duration::ZERO)) => Err(Ending::StalledSender(limit)),
            (Some(_), _) if self.reader.has_waited(CLAIM) && self.adapter.session.is_in_the_way() => {
                Err(Ending::InTheWay(CLAIM))
            }
            (Some(reader), sender) => Ok(Some(reader.min(sender.unwrap_or(reader)).min(LOOK))),
            (None, sender) => Ok(sender),
        }
    }

    fn awaited(&self) -> Awaited {
        // A virtual clock mostly does not move while threads look at it.
        if self.submitter.nr_outstanding() > 0 || !matches!(self.submitter.queue().clock(), Clock::Real(_)) {
            Awaited::Others
        } else if self.incoming.is_some() || !self.input.bytes().is_empty() {
            Awaited::Sender
        } else {
            Awaited::Client
        }
    }

    /// Called when there was nothing to do: looks again, or sleeps.
    ///
    /// A connection first looks at once, or after the client has taken most of its answers: requests that came
    /// meanwhile are answered together with those that came before.
    fn rest(&mut self) -> Result<(), Ending> {
        let awaited = self.awaited();
        // A client that has not taken its answers is in no hurry to get more.
        if !self.wants_input() || self.has_output() {
            self.idle.give_up();
            return self.sleep();
        }
        let is_first = !std::mem::replace(&mut self.is_idle, true);
        match self.poll_heuristic.rest(awaited, is_first) {
            // Whatever ends this.
            Rest::LeaveAlone => _ = self.leave_alone()?,
            Rest::Recheck => (),
            Rest::Look if self.idle.poll() => (),
            Rest::Look | Rest::Sleep => return self.sleep(),
        }
        self.is_readable = true;
        Ok(())
    }

    /// Sleeps until the socket is ready, an operation completes, the queue wants to be driven, or the server stops.
    fn sleep(&mut self) -> Result<(), Ending> {
        let is_waiting = self.submitter.nr_outstanding() > 0;
        if self.has_output() && !is_waiting && self.leave_alone()? {
            return Ok(());
        }
        let mut events = PollFlags::empty();
        if self.wants_input() {
            events |= PollFlags::IN;
            if self.incoming.is_some() && !self.is_readable {
                self.sender.begin();
            }
        }
        let max_sleep = [self.check_stall()?, self.adapter.session.max_sleep()].into_iter().flatten().min();
        if self.has_output() {
            events |= PollFlags::OUT;
        }
        // `None` for a client that is gone: its socket is always ready, and brings nothing.
        let socket = (!self.is_gone).then(|| self.stream.as_fd());
        let mut watch = socket.map(|fd| Watch { fd, wanted: events, ready: PollFlags::empty() });
        blkmq_engine::sleep(&mut self.submitter, watch.as_mut_slice(), &self.bell, max_sleep).map_err(broken)?;
        if let Some(ready) = watch.map(|watch| watch.ready) {
            self.note_ready(ready);
        }
        Ok(())
    }

    /// Gives a client with many answers time to take them. Returns whether the client is ready for more, or something
    /// else is to be done.
    ///
    /// COST: a system call. For a client that is behind, up to [`RELIEF`] of sleep as well.
    fn leave_alone(&mut self) -> Result<bool, Ending> {
        let socket = (!self.is_gone).then(|| self.stream.as_fd());
        let ready = wait(socket, &self.bell, PollFlags::OUT, Some(RELIEF))?;
        self.note_ready(ready);
        Ok(!ready.is_empty())
    }

    fn note_ready(&mut self, ready: PollFlags) {
        if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
            self.lose_client();
        }
        self.is_readable |= ready.contains(PollFlags::IN);
        self.is_writable |= ready.contains(PollFlags::OUT);
    }
}

#[cfg(test)]
mod tests;
