//! A request that a server was asked for: its header, and where its data is.
#![expect(unsafe_code, reason = "data is copied from and to memory that was noted when the request began")]

use std::time::Instant;

use blkmq::driver::{Done, Loan, Request, RqId};
use blkmq::limits::SECTOR_SIZE;
use blkmq::{Op, Status};
use blkmq_nbd::{REQUEST_MAGIC, command_flags, commands};

/// Bytes of a request without its data.
const HEAD_SIZE: usize = 28;

/// A request that the server has, or that it gets when it can be reached again.
///
/// # Invariant
/// While there is a loan, `pieces` name the memory of the loan's request. That memory lives as long as the loan, and no
/// other thread writes it. If the request is a read, no other thread reads it either.
#[derive(Debug)]
pub(super) struct Asked {
    /// The loan of the request. `None` while the tag is free.
    loan: Option<Loan>,
    id: RqId,
    head: [u8; HEAD_SIZE],
    op: Op,
    /// Whether the answer promises that something is durable.
    is_durable: bool,
    /// For a flush: what had been acknowledged when the flush was sent, as [`Cache`](super::cache::Cache) counts.
    pub(super) covers: u64,
    /// Whether the server has the request, or gets it when the socket takes more, and has not answered it.
    is_sent: bool,
    /// Whether the request was sent once more over a new connection, and has not been overdue since.
    is_sent_again: bool,
    /// When the first server went away that the request waited for, if the request has been sent once more since.
    waits_since: Option<Instant>,
    /// Whether the request has failed. The next thread that polls reports that, and it is not sent any more.
    is_given_up: bool,
    /// Start and length of each piece.
    pieces: Vec<(*mut u8, usize)>,
}

// SAFETY: by the invariant the addresses are valid on every thread.
unsafe impl Send for Asked {}

pub(super) fn head(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> [u8; HEAD_SIZE] {
    let mut head = [0; HEAD_SIZE];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

/// The tag and the length of the request with which these bytes begin, its data included.
pub(super) fn measure(bytes: &[u8]) -> (u16, usize) {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let data = (usize::from(word(24)) << 16) + usize::from(word(26));
    (word(14), HEAD_SIZE + if word(6) == commands::WRITE { data } else { 0 })
}

/// A command's number.
const fn number(op: Op) -> u16 {
    match op {
        Op::Read => commands::READ,
        Op::Write => commands::WRITE,
        Op::Flush => commands::FLUSH,
        Op::Discard => commands::TRIM,
        Op::WriteZeroes => commands::WRITE_ZEROES,
    }
}

/// Whether the answer to a request promises that something is durable.
pub(super) fn is_durable(rq: &Request<'_>) -> bool {
    rq.op() == Op::Flush || rq.flags().fua && rq.op() != Op::Read
}

impl Asked {
    pub(super) const fn new() -> Self {
        Self {
            loan: None,
            id: RqId(0),
            head: [0; HEAD_SIZE],
            op: Op::Flush,
            is_durable: false,
            covers: 0,
            is_sent: false,
            is_sent_again: false,
            waits_since: None,
            is_given_up: false,
            pieces: Vec::new(),
        }
    }

    /// Notes a request that is lent next. Until then no other thread looks at this.
    pub(super) fn note(&mut self, rq: &mut Request<'_>, covers: u64) {
        assert!(
            self.loan.is_none(),
            "tag {} is with the server already; each tag of a hardware queue is out once",
            rq.tag()
        );
        let op = rq.op();
        self.is_durable = is_durable(rq);
        let fua = if self.is_durable && op != Op::Flush { command_flags::FUA } else { 0 };
        let no_hole = if rq.flags().nounmap && op == Op::WriteZeroes { command_flags::NO_HOLE } else { 0 };
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (rq.sector() * SECTOR_SIZE as u64, rq.nr_sectors() * SECTOR_SIZE as u32),
        };
        self.head = head(fua | no_hole, number(op), rq.tag().into(), offset, len);
        (self.id, self.op, self.covers) = (rq.id(), op, covers);
        (self.is_sent_again, self.waits_since, self.is_given_up) = (false, None, false);
        self.pieces.clear();
        self.pieces.extend(rq.segments().map(|segment| (segment.as_ptr(), segment.len())));
    }

    /// Takes the loan. The request is with the device from now on.
    pub(super) fn lend(&mut self, loan: Loan) {
        self.loan = Some(loan);
    }

    /// Whether the request is with the device.
    pub(super) const fn is_out(&self) -> bool {
        self.loan.is_some()
    }

    /// Whether the server has to answer the request.
    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// The server has not done the request, and need not answer it any more. The request is kept.
    pub(super) fn take_back(&mut self) {
        self.is_sent = false;
    }

    /// Makes the request fail, if it is with the device.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = self.is_out();
    }

    /// Whether the request is with the device and no server will answer it: it was given up, or it promises that
    /// something is durable although data `is_lost`.
    pub(super) const fn must_fail(&self, is_lost: bool) -> bool {
        self.is_out() && (self.is_given_up || self.is_durable && is_lost)
    }

    pub(super) const fn is_read(&self) -> bool {
        matches!(self.op, Op::Read)
    }

    pub(super) const fn is_flush(&self) -> bool {
        matches!(self.op, Op::Flush)
    }

    /// Whether its change may be only in the server's cache once the server has answered.
    pub(super) const fn may_be_cached(&self) -> bool {
        !self.is_durable && !self.is_read()
    }

    /// Appends the request in the form of the protocol, with the data of a write.
    pub(super) fn send_to(&mut self, unsent: &mut Vec<u8>) {
        debug_assert!(self.is_out(), "its memory is there only then");
        self.is_sent = true;
        unsent.extend_from_slice(&self.head);
        if self.op == Op::Write {
            for &(start, len) in &self.pieces {
                // SAFETY: by the invariant the piece lives, and no thread writes it.
                unsent.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
            }
        }
    }

    /// Appends the request once more for a new connection, after an outage that began at `since`. From now on it has
    /// waited for no answer.
    pub(super) fn send_again_to(&mut self, unsent: &mut Vec<u8>, since: Instant) {
        self.is_sent_again = true;
        self.waits_since.get_or_insert(since);
        self.send_to(unsent);
    }

    /// When the first outage began that the request has waited through; `None` if it has waited through none, or no
    /// request is with the device.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waits_since.filter(|_| self.is_out())
    }

    /// Whether the server does not answer this request, if the request has this id and is reported as overdue. The
    /// answer is false while no server has the request. The answer is also false the first time after the request was
    /// sent once more: the time before that was spent waiting for the earlier server.
    pub(super) fn is_overdue(&mut self, id: RqId) -> bool {
        self.is_sent && self.id == id && !std::mem::take(&mut self.is_sent_again)
    }

    /// Copies bytes to the memory of a read, from byte `at` of the read on. Returns how many bytes fit.
    pub(super) fn fill(&self, mut at: usize, mut bytes: &[u8]) -> usize {
        debug_assert!(self.is_read(), "nothing else is filled");
        let mut taken = 0;
        for &(start, len) in &self.pieces {
            let skipped = at.min(len);
            at -= skipped;
            let now = bytes.len().min(len - skipped);
            // SAFETY: `skipped` is at most the piece's length.
            let to = unsafe { start.add(skipped) };
            // SAFETY: by the invariant only this request uses the piece, and the bytes fit into the rest of the piece.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, now) };
            bytes = &bytes[now..];
            taken += now;
        }
        taken
    }

    /// The number of bytes of its data.
    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(|(_, len)| len).sum()
    }

    /// Ends the request. Does nothing if there is none.
    pub(super) fn finish(&mut self, status: Status, done: &mut Done<'_>) {
        self.is_sent = false;
        if let Some(loan) = self.loan.take() {
            done.give_back(loan, status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a read counts as long as its data, or if only a part of a length is read.
    #[test]
    fn a_request_that_is_to_be_sent_is_as_long_as_its_header_and_what_it_writes() {
        for (command, len, expected) in
            [(commands::READ, 4096, 28), (commands::WRITE, 512, 540), (commands::WRITE, 0x10_0200, 0x10_021c)]
        {
            assert_eq!(measure(&head(0, command, 0x102, u64::MAX, len)), (0x102, expected));
        }
    }

    #[test]
    fn data_goes_to_the_pieces_in_order() {
        let (mut first, mut second) = ([0_u8; 3], [0_u8; 4]);
        let pieces = vec![(first.as_mut_ptr(), 3), (second.as_mut_ptr(), 4)];
        let asked = Asked { op: Op::Read, pieces, ..Asked::new() };
        assert_eq!(asked.len(), 7);
        assert_eq!(asked.fill(0, &[1, 2]), 2);
        assert_eq!(asked.fill(2, &[3, 4, 5]), 3);
        assert_eq!(asked.fill(5, &[6, 7, 8, 9]), 2, "what is beyond belongs to the next reply");
        assert_eq!((first, second), ([1, 2, 3], [4, 5, 6, 7]));
    }
}
