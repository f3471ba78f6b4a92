//! Where requests of the protocol go to the engine, and where tasks that are over become replies.

use std::borrow::Cow;
use std::sync::Arc;

use blkmq::Submitter;
use blkmq_engine::{Ask, Cause, Engine, Entry, Failure, Request, TaskId};

use super::Session;
use super::offer::terms;
use super::outbox::Outbox;
use super::socket::Fault;
use super::stream::Stream;
use crate::nbd::command::{Command, Terms};
use crate::nbd::extents::{EXTENT_SIZE, MAX_EXTENTS, describe};
use crate::nbd::negotiation::Agreement;
use crate::nbd::reply::Head;
use crate::nbd::{self, Errno};

/// What a reply needs beside what the engine knows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplyContext {
    cookie: u64,
    /// How many extents are told, if it is a block status.
    nr_extents: usize,
}

/// What a connection is working on between its socket and the engine.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) terms: Terms,
    pub(super) session: Session,
    outbox: Outbox,
}

impl Adapter {
    /// Creates an adapter for a client that has chosen an export, with this submitter.
    pub(super) fn new(engine: &Arc<Engine>, agreement: &Agreement, entry: &Entry, submitter: &mut Submitter) -> Self {
        let terms = terms(&engine.exports[agreement.export], agreement);
        let session = Session::new(engine, agreement.export, entry, submitter);
        Self { terms, session, outbox: Outbox::default() }
    }

    /// Returns true if there are replies that are not sent.
    pub(super) fn has_replies(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Called when the client is gone, and no client would get an answer.
    pub(super) fn abandon(&mut self) {
        self.session.abandon();
        self.answer();
    }

    /// Takes a request, if the bounds allow one more. `checked` is the result of its check.
    pub(super) fn take(&mut self, request: &nbd::Request, checked: Result<Command, Failure>) -> Option<TaskId> {
        let mut own = ReplyContext { cookie: request.cookie, nr_extents: 0 };
        let ask = match checked {
            Ok(Command::Operation(ask)) => ask,
            Ok(Command::BlockStatus { max_extents }) => {
                own.nr_extents = max_extents;
                Ask::Tell { bytes: (MAX_EXTENTS * EXTENT_SIZE) as u32 }
            }
            // A client that leaves gets no answer, and is not taken.
            Ok(Command::Disconnect) => return None,
            Err(failure) => return self.session.refuse(own, failure, request.payload() > 0),
        };
        self.session.take(&Request::new(ask, request.offset, request.length.into(), own))
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

    /// Writes the replies to the tasks that are over.
    fn answer(&mut self) {
        while let Some((id, failure)) = self.session.next_finished() {
            self.reply(id, failure);
        }
    }

    fn reply(&mut self, id: TaskId, mut failure: Option<Failure>) {
        let Self { terms, session, outbox } = self;
        let (ask, (offset, length), ReplyContext { cookie, nr_extents }) =
            (session.ask(id), session.range(id), *session.own(id));
        let mut head = match ask {
            Ask::Read if terms.has_structured_replies => Head::data(cookie, offset, length as u32),
            _ => Head::simple(cookie, None),
        };
        if nr_extents > 0 && failure.is_none() {
            match tell_extents(session, id, nr_extents, terms.export.block) {
                Ok(len) => head = Head::extents(cookie, len as u32),
                Err(error) => failure = Some(error),
            }
        }
        let Some(Failure { cause, message, .. }) = failure else {
            return outbox.push(head, Cow::Borrowed(""), 0, id, session);
        };
        let cause = reported(cause, ask);
        session.count_error(cause);
        let errno = errno(cause);
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

/// Returns the cause that the client of a task is told. The protocol keeps `ENOTSUP` for fast zeroes, so any other
/// operation that a device cannot do is invalid. The failure of a request that was refused is that of the refusal.
fn reported(cause: Cause, ask: Ask) -> Cause {
    let may_be_unsupported = matches!(ask, Ask::WriteZeroes { fast: true, .. } | Ask::Tell { .. });
    if cause == Cause::Unsupported && !may_be_unsupported { Cause::Invalid } else { cause }
}

/// Returns the error number of a cause.
const fn errno(cause: Cause) -> Errno {
    match cause {
        Cause::NotPermitted => Errno::Perm,
        Cause::Io => Errno::Io,
        Cause::NoMemory => Errno::NoMemory,
        Cause::Invalid => Errno::Invalid,
        Cause::NoSpace => Errno::NoSpace,
        Cause::Unsupported => Errno::NotSupported,
        Cause::Shutdown => Errno::Shutdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if two causes have one number, or if a client is told `ENOTSUP` for anything else than fast zeroes.
    #[test]
    fn every_cause_has_its_error_and_only_fast_zeroes_are_unsupported() {
        assert_eq!(Cause::ALL.map(errno), Errno::ALL);
        let zeroes = |fast| Ask::WriteZeroes { fua: false, no_hole: true, fast };
        for cause in Cause::ALL {
            let expected = if cause == Cause::Unsupported { Cause::Invalid } else { cause };
            for ask in [Ask::Read, Ask::Flush, Ask::Discard { fua: false }, zeroes(false)] {
                assert_eq!(reported(cause, ask), expected, "{ask:?}");
            }
            assert_eq!([zeroes(true), Ask::Tell { bytes: 0 }].map(|ask| reported(cause, ask)), [cause; 2]);
        }
    }
}
