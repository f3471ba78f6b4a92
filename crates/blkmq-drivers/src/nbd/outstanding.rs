//! A request that a server was asked for: its header, its data, and what has become of it.
//!
//! Each tag of a connection has an [`Outstanding`]. It has the request until the request is over, so that the request
//! can be sent once more, to the next server.

use std::time::Instant;

use blkmq::SECTOR_SIZE;
use blkmq::driver::{BorrowedRequest, Done, Request};
use blkmq::{Op, RqId, Status};
use blkmq_nbd::{self as nbd, command_flags, commands};

/// A request that the server has, or that it gets when it can be reached again.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// The request, borrowed. `None` while the tag is free.
    borrowed: Option<BorrowedRequest>,
    id: RqId,
    head: [u8; nbd::Request::SIZE],
    op: Op,
    /// Whether the answer promises that something is durable.
    is_durable: bool,
    /// For a flush: what had been acknowledged when the flush was sent, as [`Cache`](super::cache::Cache) counts.
    pub(super) covers: u64,
    /// Whether the server has the request, or gets it when the socket takes more, and has not answered it.
    pub(super) is_sent: bool,
    /// Whether the request was sent once more over a new connection, and has not been overdue since.
    is_sent_again: bool,
    /// When the first server went away that the request waited for, if the request has been sent once more since.
    waits_since: Option<Instant>,
    /// Whether the request has failed. The next thread that polls reports that, and it is not sent any more.
    is_given_up: bool,
    /// The number of bytes of its data.
    pub(super) len: usize,
}

/// Returns the tag and the length of the request with which these bytes begin, its data included.
pub(super) fn measure(bytes: &[u8]) -> (u16, usize) {
    let request = bytes.first_chunk().and_then(|head| nbd::Request::decode(head).ok());
    let request = request.expect("only requests are sent");
    (request.cookie as u16, nbd::Request::SIZE + request.payload() as usize)
}

/// Returns a command's number.
const fn number(op: Op) -> u16 {
    match op {
        Op::Read => commands::READ,
        Op::Write => commands::WRITE,
        Op::Flush => commands::FLUSH,
        Op::Discard => commands::TRIM,
        Op::WriteZeroes => commands::WRITE_ZEROES,
    }
}

/// Returns true if the answer to a request promises that something is durable.
pub(super) fn is_durable(rq: &Request<'_>) -> bool {
    rq.op() == Op::Flush || rq.flags().fua && rq.op() != Op::Read
}

impl Outstanding {
    pub(super) const fn new() -> Self {
        Self {
            borrowed: None,
            id: RqId(0),
            head: [0; nbd::Request::SIZE],
            op: Op::Flush,
            is_durable: false,
            covers: 0,
            is_sent: false,
            is_sent_again: false,
            waits_since: None,
            is_given_up: false,
            len: 0,
        }
    }

    /// Notes a borrowed request next. Until then no other thread looks at this.
    pub(super) fn note(&mut self, rq: &mut Request<'_>, covers: u64) {
        assert!(
            self.borrowed.is_none(),
            "tag {} is with the server already; each tag of a hardware queue is out once",
            rq.tag()
        );
        let op = rq.op();
        self.is_durable = is_durable(rq);
        let fua = if self.is_durable && op != Op::Flush { command_flags::FUA } else { 0 };
        let no_hole = if rq.flags().nounmap && op == Op::WriteZeroes { command_flags::NO_HOLE } else { 0 };
        let (offset, length) = match op {
            Op::Flush => (0, 0),
            _ => (rq.sector() * SECTOR_SIZE as u64, rq.nr_sectors() * SECTOR_SIZE as u32),
        };
        let (flags, cookie) = (fua | no_hole, rq.tag().into());
        self.head = nbd::Request { flags, kind: number(op), cookie, offset, length }.encode();
        (self.id, self.op, self.covers) = (rq.id(), op, covers);
        (self.is_sent_again, self.waits_since, self.is_given_up) = (false, None, false);
        self.len = rq.segments().map(|segment| segment.len()).sum();
    }

    /// Takes the borrowed request, which is with the device from now on.
    pub(super) fn borrow(&mut self, borrowed: BorrowedRequest) {
        self.borrowed = Some(borrowed);
    }

    /// Returns true if the request is with the device.
    pub(super) const fn is_out(&self) -> bool {
        self.borrowed.is_some()
    }

    /// The server has not done the request, and need not answer it any more. The request is kept.
    pub(super) fn take_back(&mut self) {
        self.is_sent = false;
    }

    /// Makes the request fail, if it is with the device.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = self.is_out();
    }

    /// Returns true if the request is with the device and no server will answer it: it was given up, or it promises
    /// that something is durable although data `is_lost`.
    pub(super) const fn must_fail(&self, is_lost: bool) -> bool {
        self.is_out() && (self.is_given_up || self.is_durable && is_lost)
    }

    pub(super) const fn is_read(&self) -> bool {
        matches!(self.op, Op::Read)
    }

    pub(super) const fn is_flush(&self) -> bool {
        matches!(self.op, Op::Flush)
    }

    /// Returns true if its change may be only in the server's cache once the server has answered.
    pub(super) const fn may_be_cached(&self) -> bool {
        !self.is_durable && !self.is_read()
    }

    /// Appends the request in the form of the protocol, with the data of a write.
    pub(super) fn send_to(&mut self, unsent: &mut Vec<u8>) {
        debug_assert!(self.is_out(), "its memory is there only then");
        self.is_sent = true;
        unsent.extend_from_slice(&self.head);
        if self.op == Op::Write {
            let borrowed = self.borrowed.as_mut().into_iter();
            borrowed.flat_map(BorrowedRequest::segments).for_each(|segment| segment.append_to(unsent));
        }
    }

    /// Appends the request once more for a new connection, after an outage that began at `since`. From now on it has
    /// waited for no answer.
    pub(super) fn send_again_to(&mut self, unsent: &mut Vec<u8>, since: Instant) {
        self.is_sent_again = true;
        self.waits_since.get_or_insert(since);
        self.send_to(unsent);
    }

    /// Returns when the first outage began that the request has waited through; `None` if it has waited through none,
    /// or no request is with the device.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waits_since.filter(|_| self.is_out())
    }

    /// Returns true if the server does not answer this request, if the request has this id and is reported as overdue.
    /// The answer is false while no server has the request. The answer is also false the first time after the request
    /// was sent once more: the time before that was spent waiting for the earlier server.
    pub(super) fn is_overdue(&mut self, id: RqId) -> bool {
        self.is_sent && self.id == id && !std::mem::take(&mut self.is_sent_again)
    }

    /// Copies bytes to the memory of a read, from byte `at` of the read on. Returns how many bytes fit.
    pub(super) fn fill(&mut self, mut at: usize, mut bytes: &[u8]) -> usize {
        debug_assert!(self.is_read(), "nothing else is filled");
        let before = bytes.len();
        for mut segment in self.borrowed.as_mut().into_iter().flat_map(BorrowedRequest::segments) {
            let skipped = at.min(segment.len());
            at -= skipped;
            let (now, later) = bytes.split_at(bytes.len().min(segment.len() - skipped));
            segment.copy_from(skipped, now);
            bytes = later;
        }
        before - bytes.len()
    }

    /// Ends the request. Does nothing if there is none.
    pub(super) fn finish(&mut self, status: Status, done: &mut Done<'_>) {
        self.is_sent = false;
        if let Some(borrowed) = self.borrowed.take() {
            done.give_back(borrowed, status);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use blkmq::driver::harness::Harness;
    use blkmq::driver::{Batch, Driver, Topology};
    use blkmq::{Bio, Buffer, Limits, Time};

    use super::*;
    use crate::lock;

    /// Red if a read counts as long as its data, or if only a part of a length is read.
    #[test]
    fn a_request_that_is_to_be_sent_is_as_long_as_its_header_and_what_it_writes() {
        for (kind, length, expected) in
            [(commands::READ, 4096, 28), (commands::WRITE, 512, 540), (commands::WRITE, 0x10_0200, 0x10_021c)]
        {
            let request = nbd::Request { flags: 0, kind, cookie: 0x102, offset: u64::MAX, length };
            assert_eq!(measure(&request.encode()), (0x102, expected));
        }
    }

    /// Answers each request at once with the bytes 0 to 255, again and again, as they might come from a socket.
    #[derive(Debug, Default)]
    struct Server(Mutex<Vec<Outstanding>>);

    impl Driver for Server {
        fn name(&self) -> &'static str {
            "server"
        }

        fn limits(&self) -> Limits {
            Limits { capacity_sectors: 8, ..Limits::default() }
        }

        fn topology(&self) -> Topology {
            Topology::new(1, 1)
        }

        fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, _: Time) {
            while let Some(mut rq) = batch.next_request() {
                let mut outstanding = Outstanding::new();
                outstanding.note(&mut rq, 0);
                outstanding.borrow(batch.borrow(rq));
                lock(&self.0).push(outstanding);
            }
        }

        fn poll(&self, _: u16, done: &mut Done<'_>, _: Time) {
            for mut outstanding in lock(&self.0).drain(..) {
                let bytes: Vec<_> = (0..=255).cycle().take(outstanding.len + 3).collect();
                let mut at = 0;
                for piece in bytes.chunks(300) {
                    at += outstanding.fill(at, piece);
                }
                assert_eq!(at, outstanding.len, "what is beyond belongs to the next reply");
                outstanding.finish(Status::Ok, done);
            }
        }
    }

    /// Red if a piece goes to the wrong place, or if bytes of the next reply are taken.
    #[test]
    fn data_goes_to_the_segments_in_order() {
        let server = Server::default();
        let buffers = vec![Buffer::zeroed(512), Buffer::zeroed(1024)];
        let (bio, status) = Harness::new(&server, 0).run(Bio::read(0, buffers));
        assert!(status.is_ok());
        let data: Vec<_> = bio.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert!(data.iter().copied().eq((0..=255).cycle().take(1536)), "{data:?}");
    }
}
