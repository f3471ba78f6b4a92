//! The requests of one connection: received, done and answered, many at a time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::{Buffer, Clock, Submitter};
use rustix::event::PollFlags;
use rustix::io::Errno as SystemError;

use super::desk::{Desk, Piece};
use super::input::Input;
use super::patience::Patience;
use super::stream::Fault::System;
use super::stream::Stream;
use super::task::TaskId;
use super::vigil::{Awaited, Look, Vigil};
use super::{Ending, wait};
use crate::clients::Entry;
use crate::nbd::Errno;
use crate::nbd::command::{Command, REQUEST_SIZE, Request};
use crate::nbd::reply::Refusal;
use crate::stop::{Phase, Stop};

/// How long a client that has many answers to take is left to do just that. Its connection is not woken meanwhile for
/// each request that it sends; one that takes no answer before it has sent more still gets there.
const RELIEF: Duration = Duration::from_micros(200);

/// How often a connection that has ended looks whether the client has got everything, which wakes nobody.
const SEEING_OFF: Duration = Duration::from_millis(5);

/// How long a client that has got all its replies is waited for to hear of the end: its host may be gone.
const PARTING: Duration = Duration::from_millis(500);

/// The data of a request, as far as it has come.
#[derive(Debug)]
struct Incoming {
    task: TaskId,
    /// Bytes still to come.
    left: usize,
    /// What takes them; `None` to pass them over, or if there is no memory yet.
    buffer: Option<Buffer>,
    /// There is no memory yet for what takes them.
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
    desk: Desk,
    input: Input,
    incoming: Option<Incoming>,
    /// The first request of the input waits until others are answered.
    is_full: bool,
    /// The client may have sent something.
    is_readable: bool,
    /// The socket may take something.
    is_writable: bool,
    /// Bytes that are still read from the socket, once the server is being drained.
    last_bytes: Option<usize>,
    /// Why nothing more is read, which fails the request whose data is not complete: what is in hand is answered, and
    /// that is all.
    end: Option<Refusal>,
    /// When everything was answered, all that was sent had arrived.
    has_arrived: bool,
    /// The client takes no replies any more. What it sent that changes the export is done all the same, for it may have
    /// left in order; the rest is of no use to anybody.
    is_gone: bool,
    /// With the client to read.
    reader: Patience,
    /// With the client to send the rest of a request's data.
    sender: Patience,
    stall_timeout: Option<Duration>,
    vigil: Vigil,
}

impl Transmission {
    pub(super) fn new(
        stream: Stream,
        entry: Arc<Entry>,
        stop: Stop,
        stall_timeout: Option<Duration>,
        submitter: Submitter,
        desk: Desk,
        input: Input,
    ) -> Self {
        Self {
            stream,
            bell: Arc::clone(&entry.bell),
            entry,
            stop,
            submitter,
            desk,
            input,
            incoming: None,
            is_full: false,
            is_readable: true,
            is_writable: true,
            last_bytes: None,
            end: None,
            has_arrived: false,
            is_gone: false,
            reader: Patience::new(stall_timeout),
            sender: Patience::new(stall_timeout),
            stall_timeout,
            vigil: Vigil::default(),
        }
    }

    /// Serves the client until it leaves, breaks the protocol, or the server stops.
    ///
    /// COST: per turn one system call to receive and one to send, for all requests that came together, which go through
    /// the queue as one plug; before it sleeps three or four to look again, and one to sleep.
    pub(super) fn run(&mut self) -> Result<(), Ending> {
        loop {
            self.look_at_stop()?;
            let mut is_busy = self.receive()?;
            is_busy |= self.parse()?;
            is_busy |= self.drive();
            is_busy |= self.send()?;
            if self.is_ended() && !self.is_full && self.desk.is_idle() && self.has_closed()? {
                return if self.is_gone { Err(Ending::Gone) } else { self.see_off() };
            }
            if is_busy {
                self.vigil.end();
            } else {
                self.idle()?;
            }
        }
    }

    fn look_at_stop(&mut self) -> Result<(), Ending> {
        match self.stop.phase() {
            Phase::Running => Ok(()),
            Phase::Draining if self.last_bytes.is_some() => Ok(()),
            Phase::Draining => {
                // What has reached the socket by now is answered; a client that goes on sending does not put off the
                // end.
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

    /// Receives what one call brings. Returns whether there was anything.
    fn receive(&mut self) -> Result<bool, Ending> {
        if !self.wants_input() || !self.is_readable {
            return Ok(false);
        }
        if self.last_bytes == Some(0) {
            self.end_input(Refusal::new(Errno::Shutdown, "the server is shutting down"));
            return Ok(true);
        }
        let most = self.last_bytes.unwrap_or(usize::MAX);
        let payload = match &mut self.incoming {
            Some(Incoming { buffer: Some(buffer), filled, .. }) => &mut buffer[*filled..],
            _ => &mut [],
        };
        match self.input.receive(&mut self.stream, payload, most) {
            Ok(received) if received.all == 0 => {
                self.end_input(Refusal::new(Errno::Io, "the client stopped within the data of the request"));
            }
            Ok(received) => {
                self.desk.now = self.submitter.queue().clock().now();
                // Before the device takes its time.
                self.vigil.end();
                self.sender.end();
                // The socket of a client that is gone is not waited for, so it is read to its end.
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
                // What the kernel counted has come, or nobody is there to send more.
                let is_all = self.last_bytes.is_some() || self.is_gone;
                if is_all {
                    self.end_input(Refusal::new(Errno::Shutdown, "the connection is being closed"));
                }
                return Ok(is_all);
            }
            Err(System(SystemError::CONNRESET)) => {
                self.lose_client();
                self.end_input(Refusal::new(Errno::Io, "the client is gone"));
            }
            Err(System(SystemError::INTR)) => (),
            Err(error) => return Err(Ending::Broken(error)),
        }
        Ok(true)
    }

    /// The client is gone: it has closed the connection, and not only its own side of it.
    fn lose_client(&mut self) {
        // What waits for the socket is for nobody, and the socket will never say that it has room. What is left to be
        // read comes without being waited for.
        (self.is_gone, self.is_readable, self.is_writable) = (true, true, true);
        self.sender.end();
        self.note_progress();
        self.desk.abandon();
    }

    /// Nothing more comes. Data that is not complete fails its request, also one that is taken later.
    fn end_input(&mut self, refusal: Refusal) {
        let refusal = self.end.get_or_insert(refusal);
        if let Some(Incoming { task, buffer, .. }) = self.incoming.take() {
            self.desk.break_payload(task, buffer, refusal.clone());
        }
    }

    /// Takes the requests that are whole, as far as the bounds allow, and submits them together. Returns whether there
    /// were any.
    fn parse(&mut self) -> Result<bool, Ending> {
        self.is_full = false;
        let mut has_any = self.incoming.is_some() && self.take_payload();
        let mut nr_requests = 0;
        while self.incoming.is_none() {
            let Some(head) = self.input.bytes().first_chunk::<REQUEST_SIZE>() else { break };
            let request = Request::parse(head).map_err(Ending::NoRequest)?;
            let checked = request.check(&self.desk.terms);
            if checked == Ok(Command::Disconnect) {
                self.end_input(Refusal::new(Errno::Shutdown, "the client has left"));
                self.input.clear();
                break;
            }
            let Some(task) = self.desk.take(&request, checked) else {
                self.is_full = true;
                break;
            };
            has_any = true;
            nr_requests += 1;
            self.input.consume(REQUEST_SIZE);
            if request.payload() > 0 {
                let left = request.payload() as usize;
                self.incoming = Some(Incoming { task, left, buffer: None, is_waiting: true, filled: 0 });
                self.take_payload();
            }
        }
        self.vigil.note(nr_requests);
        if let Some(refusal) = self.end.take() {
            self.end_input(refusal);
        }
        Ok(has_any | self.desk.submit(&mut self.submitter))
    }

    /// Moves on with the data of a request. Returns whether a piece of it is complete.
    fn take_payload(&mut self) -> bool {
        let mut has_piece = false;
        while let Some(mut incoming) = self.incoming.take() {
            if incoming.is_waiting {
                let (buffer, filled) = match self.desk.next_piece(incoming.task) {
                    Piece::Here(buffer, filled) => (Some(buffer), filled),
                    Piece::Useless => (None, 0),
                    Piece::Later => {
                        // Whatever it is that gives memory back also wakes this thread.
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
                self.desk.take_piece(incoming.task, buffer);
            }
            if incoming.left == 0 {
                self.desk.end_payload(incoming.task);
                break;
            }
            self.incoming = Some(Incoming { is_waiting: true, ..incoming });
        }
        has_piece
    }

    /// Drives the queue, and settles what is over. Returns whether anything was.
    fn drive(&mut self) -> bool {
        let Self { submitter, desk, .. } = self;
        if submitter.nr_outstanding() == 0 {
            return false;
        }
        submitter.poll();
        desk.now = submitter.queue().clock().now();
        let has_any = submitter.reap_all(|done| desk.settle(done.bio, done.status)) > 0;
        has_any | desk.submit(submitter)
    }

    /// Whether something waits for the socket. What TLS has for a client that is gone waits for ever.
    fn has_output(&self) -> bool {
        !self.desk.outbox.is_empty() || (!self.is_gone && self.stream.wants_write())
    }

    /// Everything is answered. Tells the client that this is the end, and returns whether that, and all before it, is
    /// with the socket.
    fn has_closed(&mut self) -> Result<bool, Ending> {
        if self.is_gone {
            return Ok(true);
        }
        self.has_arrived = self.has_arrived || self.stream.on_the_way() == 0;
        match self.stream.close() {
            Ok(()) | Err(System(SystemError::PIPE | SystemError::CONNRESET)) => Ok(true),
            Err(System(SystemError::AGAIN)) => {
                self.is_writable = false;
                Ok(false)
            }
            Err(System(SystemError::INTR)) => Ok(false),
            Err(fault) => Err(Ending::Broken(fault)),
        }
    }

    /// Waits until a client that may go on sending has got what it was sent. A TCP socket that is closed with something
    /// unread, or sent something after that, takes back what is still on its way.
    fn see_off(&mut self) -> Result<(), Ending> {
        self.desk.leave();
        self.stream.end_sending();
        let (mut waited, mut last) = (Duration::ZERO, usize::MAX);
        loop {
            let left = self.stream.see_off();
            if left == 0 {
                break;
            }
            if left < last {
                last = left;
                self.note_progress();
            }
            self.note_blocked();
            self.check_patience()?;
            if self.stop.phase() == Phase::Stopped {
                return Err(Ending::Stopped);
            }
            if self.has_arrived && waited >= PARTING {
                break;
            }
            // Not for the socket: who sends without end is read no faster than this.
            wait(None, &self.bell, &[], PollFlags::empty(), Some(SEEING_OFF))?;
            waited += SEEING_OFF;
        }
        Ok(())
    }

    /// Sends replies until the socket takes no more. Returns whether any was sent to its end.
    fn send(&mut self) -> Result<bool, Ending> {
        let mut has_any = false;
        while self.is_writable && self.has_output() {
            if self.is_gone {
                self.desk.outbox.discard();
                return Ok(self.desk.forget_sent());
            }
            let (outbox, tasks) = self.desk.outgoing();
            match outbox.send(&mut self.stream, tasks) {
                Ok(_) => {
                    self.note_progress();
                    has_any |= self.desk.forget_sent();
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

    /// The client has taken something.
    fn note_progress(&mut self) {
        if self.reader.end() {
            self.entry.note_reading();
        }
    }

    /// The client has to read before more can be sent.
    fn note_blocked(&mut self) {
        if self.reader.begin() {
            self.entry.note_blocked();
        }
    }

    /// How long the client is still waited for, if that has an end; an error if it has come. A client that holds
    /// the memory of a reply or of a request for that long would hold it for ever.
    fn check_patience(&self) -> Result<Option<Duration>, Ending> {
        let limit = self.stall_timeout.unwrap_or(Duration::MAX);
        let (reader, sender) = (self.reader.left(), self.sender.left());
        match (reader, sender) {
            (Some(Duration::ZERO), _) => Err(Ending::Deaf(limit)),
            (_, Some(Duration::ZERO)) => Err(Ending::Mute(limit)),
            (Some(reader), Some(sender)) => Ok(Some(reader.min(sender))),
            _ => Ok(reader.or(sender)),
        }
    }

    fn awaited(&self) -> Awaited {
        // A virtual clock mostly does not move while somebody looks.
        if self.submitter.nr_outstanding() > 0 || !matches!(self.submitter.queue().clock(), Clock::Real(_)) {
            Awaited::Others
        } else if self.incoming.is_some() || !self.input.bytes().is_empty() {
            Awaited::Sender
        } else {
            Awaited::Client
        }
    }

    /// Looks again or sleeps: there was nothing to do.
    fn idle(&mut self) -> Result<(), Ending> {
        // A client that has not taken its answers is in no hurry for more.
        if !self.wants_input() || self.has_output() {
            return self.sleep();
        }
        let awaited = self.awaited();
        match self.vigil.look(awaited) {
            Some(Look::AtOnce) => (),
            // Whatever it was that ended it.
            Some(Look::AfterAnswers) => _ = self.leave_alone()?,
            Some(Look::Yielding) => {
                thread::yield_now();
                self.vigil.note_yield();
            }
            None => return self.sleep(),
        }
        self.is_readable = true;
        Ok(())
    }

    /// Sleeps until the socket is ready, something completes, the queue wants to be driven, or the server stops.
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
        let patience = self.check_patience()?;
        if self.has_output() {
            events |= PollFlags::OUT;
        }
        // What the device has done for others is theirs to find. Who polls for them may be waited for, before the time
        // is looked at.
        let device = if is_waiting { self.submitter.device_fds() } else { Vec::new() };
        let wakeup = self.submitter.next_wakeup();
        let clock = self.submitter.queue().clock();
        let timeout = wakeup.map(|wakeup| match clock {
            Clock::Virtual(_) => Duration::ZERO,
            Clock::Real(_) => Duration::from_nanos(wakeup.since(clock.now())),
        });
        let timeout = [timeout, patience].into_iter().flatten().min();
        let ready = wait(self.socket(), &self.bell, &device, events, timeout)?;
        if let (Clock::Virtual(clock), Some(wakeup), true) = (clock, wakeup, ready.is_empty()) {
            // As when a submitter waits: sleeping moves the clock.
            clock.advance_to(wakeup);
        }
        self.note_ready(ready);
        Ok(())
    }

    /// Leaves a client alone that has many answers to take. Returns whether it is ready for more, or something else is
    /// to be done.
    ///
    /// COST: a system call, and for a client that is behind up to [`RELIEF`] of sleep.
    fn leave_alone(&mut self) -> Result<bool, Ending> {
        let ready = wait(self.socket(), &self.bell, &[], PollFlags::OUT, Some(RELIEF))?;
        self.note_ready(ready);
        Ok(!ready.is_empty())
    }

    /// The socket of a client that is gone is always ready, and has nothing to say.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_gone).then(|| self.stream.as_fd())
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
