//! Replies on their way to the client.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::IoSlice;

use blkmq_engine::TaskId;

use super::Session;
use super::socket::Fault;
use super::stream::Stream;
use crate::nbd::reply::Head;

/// The most pieces of memory that one call sends. The kernel takes 1024.
const MAX_SLICES: usize = 128;

/// A reply: its header, the message of an error, and the data that its task read.
#[derive(Debug)]
struct Reply {
    head: Head,
    message: Cow<'static, str>,
    message_len: usize,
    task: TaskId,
    /// Bytes in all.
    len: usize,
}

impl Reply {
    fn parts<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = &'a [u8]> {
        let data = session.pieces(self.task);
        [self.head.bytes(), &self.message.as_bytes()[..self.message_len]].into_iter().chain(data)
    }
}

/// Replies that are not sent yet, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are sent already.
    sent: usize,
}

impl Outbox {
    /// Adds the reply to a task: a header, `message_len` bytes of a message, and the task's data.
    pub(super) fn push(
        &mut self,
        head: Head,
        message: Cow<'static, str>,
        message_len: usize,
        task: TaskId,
        session: &Session,
    ) {
        let mut reply = Reply { head, message, message_len, task, len: 0 };
        reply.len = reply.parts(session).map(<[u8]>::len).sum();
        self.replies.push_back(reply);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Sends as much as one call takes. Returns the number of bytes. [`pop_sent`](Self::pop_sent) then tells which
    /// replies are completely sent.
    ///
    /// COST: without TLS one system call for up to 64 replies. Headers and data are sent without a copy.
    ///
    /// # Errors
    /// Those of [`Stream::send`]; `AGAIN` if the socket takes nothing now.
    pub(super) fn send(&mut self, stream: &mut Stream, session: &Session) -> Result<usize, Fault> {
        debug_assert!(
            !self.is_empty() || stream.wants_write(),
            "there is a reply to send, or what TLS still has of one"
        );
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let (mut count, mut skip) = (0, self.sent);
        for part in self.replies.iter().flat_map(|reply| reply.parts(session)) {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                slices[count] = IoSlice::new(&part[skipped..]);
                count += 1;
            }
            if count == MAX_SLICES {
                break;
            }
        }
        let sent = stream.send(&slices[..count])?;
        self.sent += sent;
        Ok(sent)
    }

    /// Treats every reply as sent, because no client is there to get it.
    pub(super) fn discard(&mut self) {
        self.sent = self.replies.iter().map(|reply| reply.len).sum();
    }

    /// Removes the first reply if it is completely sent, and returns its task.
    pub(super) fn pop_sent(&mut self) -> Option<TaskId> {
        let reply = self.replies.pop_front_if(|reply| reply.len <= self.sent)?;
        self.sent -= reply.len;
        Some(reply.task)
    }
}
