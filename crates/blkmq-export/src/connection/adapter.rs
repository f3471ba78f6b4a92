//! Where requests of the protocol go to the engine, and where tasks that are over become replies.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use blkmq::{Buffer, Submitter, Time};
use blkmq_engine::{Ask, Cause, Engine, Entry, Failure, Hints, Piece, Request, TaskId};

use super::Session;
use super::offer::terms;
use super::outbox::Outbox;
use super::socket::Fault;
use super::stream::Stream;
use crate::nbd::command::{Command, Terms};
use crate::nbd::extents::{EXTENT_SIZE, MAX_EXTENTS, describe};
use crate::nbd::negotiation::Agreement;
use crate::nbd::reply::{Head, Refusal};
use crate::nbd::{self, Errno};

/// What a reply needs beside what the engine knows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own {
    cookie: u64,
    /// How many extents are told, if it is a block status.
    nr_extents: usize,
}

/// What a connection is working on between its socket and the engine.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) terms: Terms,
    session: Session,
    outbox: Outbox,
}

impl Adapter {
    /// An adapter for a client that has chosen an export, with a submitter of this many slots.
    pub(super) fn new(engine: &Arc<Engine>, agreement: &Agreement, nr_slots: usize, entry: Arc<Entry>) -> Self {
        let terms = terms(&engine.exports[agreement.export], agreement);
        let session = Session::new(engine, agreement.export, entry, nr_slots);
        Self { terms, session, outbox: Outbox::default() }
    }

    /// Tells the time, from which requests that are taken now are measured.
    pub(super) fn set_now(&mut self, now: Time) {
        self.session.set_now(now);
    }

    /// How long the thread may sleep before it submits again, if nothing wakes it.
    pub(super) fn max_sleep(&self) -> Option<Duration> {
        self.session.max_sleep()
    }

    /// Whether every request is answered.
    pub(super) fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    /// Whether there are replies that are not sent.
    pub(super) fn has_replies(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Called when the client is gone, and no client would get an answer.
    pub(super) fn abandon(&mut self) {
        self.session.abandon();
        self.answer();
    }

    /// Takes a request, if the bounds allow one more. `checked` is the result of its check.
    pub(super) fn take(&mut self, request: &nbd::Request, checked: Result<Command, Refusal>) -> Option<TaskId> {
        let mut own = Own { cookie: request.cookie, nr_extents: 0 };
        let ask = match checked {
            Ok(Command::Read) => Ask::Read,
            Ok(Command::Write { fua }) => Ask::Write { fua },
            Ok(Command::Flush) => Ask::Flush,
            Ok(Command::Trim { fua }) => Ask::Discard { fua },
            Ok(Command::Cache) => Ask::Cache,
            Ok(Command::WriteZeroes { fua, fast, no_hole }) => Ask::WriteZeroes { fua, no_hole, fast },
            Ok(Command::BlockStatus { one }) => {
                own.nr_extents = if one { 1 } else { MAX_EXTENTS };
                Ask::Tell { bytes: (MAX_EXTENTS * EXTENT_SIZE) as u32 }
            }
            // A client that leaves gets no answer, and is not taken.
            Ok(Command::Disconnect) => return None,
            Err(Refusal { errno, message }) => {
                let failure = Failure::new(cause(errno), message);
                return self.session.refuse(own, failure, request.payload() > 0);
            }
        };
        let (offset, length) = (request.offset, request.length.into());
        self.session.take(&Request { ask, offset, length, priority: None, hints: Hints::default(), own })
    }

    /// Where the next piece of a write's data goes.
    pub(super) fn next_piece(&mut self, id: TaskId) -> Piece {
        self.session.next_piece(id)
    }

    /// Called when a piece of a write's data has arrived.
    pub(super) fn take_piece(&mut self, id: TaskId, buffer: Buffer) {
        self.session.take_piece(id, buffer);
    }

    /// Called when all data of a request has arrived, or is skipped.
    pub(super) fn end_payload(&mut self, id: TaskId) {
        self.session.end_payload(id);
    }

    /// Called when the data of a request will never be complete. `buffer` was to take the data.
    pub(super) fn break_payload(&mut self, id: TaskId, buffer: Option<Buffer>, refusal: Refusal) {
        let failure = Failure::new(cause(refusal.errno), refusal.message);
        self.session.break_payload(id, buffer, failure);
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    pub(super) fn submit(&mut self, submitter: &mut Submitter) -> bool {
        let has_taken = self.session.submit(submitter);
        self.answer();
        has_taken
    }

    /// Drives the queue, and makes the replies to what is over. Returns whether anything was done.
    pub(super) fn drive(&mut self, submitter: &mut Submitter) -> bool {
        let has_any = self.session.drive(submitter);
        self.answer();
        has_any
    }

    /// Notes whether the client takes nothing of the replies that wait for it.
    pub(super) fn note_deaf(&mut self, is_deaf: bool) {
        self.session.note_deaf(is_deaf);
    }

    /// Whether another client waits for memory that replies to this one take.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.session.is_in_the_way()
    }

    /// Called when everything is answered, and no more requests come.
    pub(super) fn leave(&mut self) {
        self.session.leave();
    }

    /// Writes the replies to the tasks that are over.
    fn answer(&mut self) {
        while let Some((id, failure)) = self.session.next_finished() {
            self.reply(id, failure);
        }
    }

    fn reply(&mut self, id: TaskId, mut failure: Option<Failure>) {
        let Self { terms, session, outbox } = self;
        let (ask, (offset, length), Own { cookie, nr_extents }) =
            (session.ask(id), session.range(id), *session.own(id));
        let mut head = match ask {
            Ask::Read if terms.has_structured_replies => Head::data(cookie, offset, length as u32),
            _ => Head::simple(cookie, None),
        };
        if nr_extents > 0 && failure.is_none() {
            match tell_extents(session, id, nr_extents, terms.block) {
                Ok(len) => head = Head::extents(cookie, len as u32),
                Err(error) => failure = Some(error),
            }
        }
        let Some(Failure { cause, message, .. }) = failure else {
            return outbox.push(head, Cow::Borrowed(""), 0, id, session);
        };
        let errno = errno(cause, ask);
        session.count_error(self::cause(errno));
        let (head, message_len) = if terms.has_structured_replies {
            let (head, sent) = Head::error(cookie, errno, &message);
            (head, sent.len())
        } else {
            (Head::simple(cookie, Some(errno)), 0)
        };
        outbox.push(head, message, message_len, id, session);
    }

    /// Sends as much as one call takes. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of [`Outbox::send`].
    pub(super) fn send(&mut self, stream: &mut Stream) -> Result<usize, Fault> {
        self.outbox.send(stream, &self.session)
    }

    /// Treats every reply as sent. Returns whether there were any.
    pub(super) fn discard(&mut self) -> bool {
        self.outbox.discard();
        self.forget_sent()
    }

    /// Forgets the tasks whose replies are sent. Returns whether there were any.
    pub(super) fn forget_sent(&mut self) -> bool {
        let mut has_any = false;
        while let Some(id) = self.outbox.pop_sent() {
            self.session.forget(id);
            has_any = true;
        }
        if has_any {
            self.session.shrink();
        }
        has_any
    }
}

/// Writes extents into the task's answer, at most so many. Returns how many bytes they take.
fn tell_extents(session: &mut Session, id: TaskId, most: usize, block: u32) -> Result<usize, Failure> {
    let (offset, length) = session.range(id);
    let queue = session.queue().clone();
    let extents = session.answer(id, most * EXTENT_SIZE)?;
    let len = describe(offset, length as u32, block, extents, |start, bytes| queue.driver().extent(start, bytes));
    let fits = extents.set_len(len);
    debug_assert!(fits, "it becomes no longer");
    Ok(len)
}

/// The error of the protocol for a task that asked for this. The protocol keeps `ENOTSUP` for fast zeroes, so for any
/// other operation that a device cannot do the error is `EINVAL`. A request that was refused asks for nothing, and its
/// error is that of the refusal.
fn errno(cause: Cause, ask: Ask) -> Errno {
    match cause {
        Cause::NotPermitted => Errno::Perm,
        Cause::Io => Errno::Io,
        Cause::NoMemory => Errno::NoMemory,
        Cause::Invalid => Errno::Invalid,
        Cause::NoSpace => Errno::NoSpace,
        Cause::Unsupported if matches!(ask, Ask::WriteZeroes { fast: true, .. } | Ask::Tell { .. }) => {
            Errno::NotSupported
        }
        Cause::Unsupported => Errno::Invalid,
        Cause::Shutdown => Errno::Shutdown,
    }
}

/// The engine's word for an error of the protocol.
const fn cause(errno: Errno) -> Cause {
    match errno {
        Errno::Perm => Cause::NotPermitted,
        Errno::Io => Cause::Io,
        Errno::NoMemory => Cause::NoMemory,
        Errno::Invalid => Cause::Invalid,
        Errno::NoSpace => Cause::NoSpace,
        Errno::NotSupported => Cause::Unsupported,
        Errno::Shutdown => Cause::Shutdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if an error becomes another one on its way through the engine, or if a client is told `ENOTSUP` for anything
    /// else than fast zeroes.
    #[test]
    fn every_error_comes_back_as_it_was() {
        let refused = Ask::Tell { bytes: 0 };
        for kind in Errno::ALL {
            assert_eq!(errno(cause(kind), refused), kind);
            let expected = if kind == Errno::NotSupported { Errno::Invalid } else { kind };
            let slow = Ask::WriteZeroes { fua: true, no_hole: true, fast: false };
            for ask in [Ask::Read, Ask::Flush, Ask::Discard { fua: false }, slow] {
                assert_eq!(errno(cause(kind), ask), expected, "{ask:?}");
            }
        }
        let fast = Ask::WriteZeroes { fua: false, no_hole: false, fast: true };
        assert_eq!(errno(Cause::Unsupported, fast), Errno::NotSupported);
        assert_eq!(errno(Cause::Io, fast), Errno::Io);
    }
}
