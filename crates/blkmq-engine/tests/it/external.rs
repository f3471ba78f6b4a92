//! Requests whose data lies in memory of the front-end's own, as that of a virtual machine, beside others.
#![expect(unsafe_code, reason = "buffers borrow the memory of the guest")]

use std::ptr::NonNull;
use std::sync::Arc;

use blkmq::driver::{Batch, Driver, Topology, spec};
use blkmq::event::EventFd;
use blkmq::{Buffer, Buffers, Limits, RequestQueue, Status, Submitter, Time};
use blkmq_engine::{
    Ask, Bounds, Cause, Engine, Entry, Export, Failure, FrontEnd, Journal, Level, Piece, Request, Session, Source,
    TaskId, least_memory, sleep,
};

const MIB: usize = 1 << 20;

/// Memory of a guest, of which buffers are made.
struct Guest {
    start: NonNull<u8>,
    len: usize,
}

impl Guest {
    fn new(len: usize) -> Self {
        let memory = Box::leak(vec![0_u8; len].into_boxed_slice());
        Self { start: NonNull::from(memory).cast(), len }
    }

    fn buffer(&self, start: usize, len: usize) -> Buffer {
        assert!(start + len <= self.len);
        // SAFETY: the part lies within the memory, as was just checked.
        let start = unsafe { self.start.add(start) };
        // SAFETY: the memory stays forever, and a test looks at it only when no operation has it.
        unsafe { Buffer::borrowed(start, len) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: no operation has the memory, and it was initialised.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A client of an engine, with what its thread has.
struct Client {
    session: Session<u32>,
    submitter: Submitter,
    entry: Arc<Entry>,
    engine: Arc<Engine>,
    /// Steps in which something was done.
    nr_steps: usize,
}

/// An engine with one device. `nr_slots`: how many requests of the device one operation may become.
fn engine(device: &str, nr_slots: u16) -> Arc<Engine> {
    engine_of(spec::open(device).expect("a device"), nr_slots)
}

fn engine_of(device: Arc<dyn Driver>, nr_slots: u16) -> Arc<Engine> {
    let q = RequestQueue::builder(device).slots(nr_slots).build().expect("a queue");
    let (journal, _) = Journal::start(Arc::new(|_: Level, _: &str| ()), "log").expect("a thread");
    let (bell, bounds) = (Arc::new(EventFd::new().expect("a descriptor")), Bounds { requests: 8, ..Bounds::default() });
    Arc::new(Engine::new(vec![Export::new("", q)], bounds, least_memory(2), 2, bell, journal))
}

impl Client {
    fn new(engine: &Arc<Engine>, front_end: FrontEnd) -> Self {
        let bell = Arc::new(EventFd::new().expect("a descriptor"));
        let entry =
            engine.clients.join(front_end, "a test".into(), Source::User(0), Arc::clone(&bell)).expect("a place");
        assert!(engine.clients.admit(&entry));
        let mut submitter = engine.exports[0].join(&entry).expect("it may").expect("a place in the queue");
        let session = Session::new(engine, 0, &entry, &mut submitter);
        Self { session, submitter, entry, engine: Arc::clone(engine), nr_steps: 0 }
    }

    /// Returns whether anything was done.
    fn step(&mut self) -> bool {
        let is_busy = self.session.submit(&mut self.submitter) | self.session.drive(&mut self.submitter);
        self.nr_steps += usize::from(is_busy);
        is_busy
    }

    fn finish(&mut self) -> (TaskId, Option<Failure>) {
        loop {
            let is_busy = self.step();
            match self.session.next_finished() {
                Some(finished) => return finished,
                None if is_busy => (),
                None => sleep(&mut self.submitter, &mut [], &self.entry.bell, None).expect("it can wait"),
            }
        }
    }

    /// What the device has there, read into memory of the engine.
    fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let request = Request::new(Ask::Read, offset as u64, len as u64, 0);
        let id = self.session.take(&request).expect("there is room");
        let (_, failure) = self.finish();
        let bytes = self.session.pieces(id).flatten().copied().collect();
        self.session.forget(id);
        assert_eq!(failure, None);
        bytes
    }

    /// Does a request with the guest's memory. Returns the cause of its failure, and the buffers.
    fn do_external(&mut self, ask: Ask, offset: u64, mut buffers: Buffers) -> (Option<Cause>, Buffers) {
        let request = Request::new(ask, offset, buffers.len() as u64, 7);
        let id = self.session.take_external(&request, &mut buffers).expect("there is room");
        assert!(matches!(buffers, Buffers::None));
        let (finished, failure) = self.finish();
        assert_eq!((finished, *self.session.own(id)), (id, 7));
        let buffers = self.session.reclaim(id);
        self.session.forget(id);
        (failure.map(|failure| failure.cause), buffers)
    }
}

fn pattern(len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(|at| (at / 512 + at % 251) as u8)
}

/// Red if the pieces of memory are taken in another order, if a long request is not cut into operations, loses or
/// repeats bytes there, or if the buffers do not come back.
#[test]
fn data_goes_from_and_to_the_memory_that_was_brought() {
    let engine = engine("ram,size=32M", 1);
    let mut client = Client::new(&engine, FrontEnd::VhostUser);
    let most = engine.exports[0].queue.limits().max_sectors as usize * 512;
    let whole = 16 * MIB;
    assert!(most < whole / 4, "a request of {most} bytes is cut");
    let mut guest = Guest::new(2 * whole);
    // Pieces that end where no operation ends, in the reverse of their order in memory.
    let pieces = |guest: &Guest, from: usize, len: usize| {
        let lens = [512, 4096, 3 * 512, MIB + 512, len];
        let (mut at, mut pieces) = (0, Vec::new());
        for piece in lens {
            let piece = piece.min(len - at);
            at += piece;
            pieces.push(guest.buffer(from + len - at, piece));
        }
        Buffers::Many(pieces)
    };
    for len in [8192, whole] {
        let (mut out, mut bytes) = (pieces(&guest, 0, len), pattern(len));
        out.iter_mut()
            .flat_map(|piece| piece.iter_mut())
            .for_each(|to| *to = bytes.next().expect("as many as there are"));
        guest.bytes()[whole..].fill(0);
        let nr_steps = client.nr_steps;
        let (failure, buffers) = client.do_external(Ask::Write { fua: false }, 4096, out);
        assert!(client.nr_steps - nr_steps >= len / most, "an operation in each step at most");
        assert_eq!(failure, None);
        assert!(buffers.iter().count() > 0, "they come back");
        let into = pieces(&guest, whole, len);
        assert_eq!(client.do_external(Ask::Read, 4096, into).0, None);
        let [written, read] = [0, whole].map(|from| guest.bytes()[from..from + len].to_vec());
        assert!(written == read, "{len} bytes");
        // The same in short requests, none of which is cut.
        for start in (0..len).step_by(65536) {
            let part = 65536.min(len - start);
            assert!(client.read(4096 + start, part).into_iter().eq(pattern(len).skip(start).take(part)), "at {start}");
        }
    }
    let info = &client.engine.clients.list()[0];
    assert_eq!((info.front_end, info.requests, info.unanswered), (FrontEnd::VhostUser, 4 + 1 + 256, 0));
    assert_eq!(info.bytes, 3 * (8192 + whole as u64));
}

/// Red if a request is accepted whose buffers are not whole blocks, or not as many as it says; if what the queue
/// refuses is not told; or if there is a place for more requests than the bounds allow.
#[test]
fn what_cannot_be_done_with_external_memory_is_refused() {
    let engine = engine("ram,size=1M,bs=4K", 8);
    let mut client = Client::new(&engine, FrontEnd::VhostUser);
    let guest = Guest::new(MIB);
    let one = |len| Buffers::One(guest.buffer(0, len));
    for (offset, len) in [(0, 512), (512, 4096), (MIB as u64, 4096), (u64::MAX - 4095, 4096)] {
        let (cause, buffers) = client.do_external(Ask::Write { fua: false }, offset, one(len));
        assert_eq!(cause, Some(Cause::Invalid), "{len} bytes at {offset}");
        assert_eq!(buffers.len(), len, "the memory comes back");
    }
    assert_eq!(client.do_external(Ask::Flush, 0, one(4096)).0, Some(Cause::Invalid));
    assert_eq!(engine.clients.list()[0].memory, 0, "nothing of the engine's memory is used");
    let request = Request::new(Ask::Read, 0, 4096, 0);
    for taken in 0..9 {
        let mut buffers = one(4096);
        let id = client.session.take_external(&request, &mut buffers);
        assert_eq!((id.is_some(), buffers.is_empty()), (taken < 8, taken < 8), "after {taken} others");
    }
    for _ in 0..8 {
        let (id, failure) = client.finish();
        assert_eq!(failure, None);
        client.session.forget(id);
    }
    assert!(client.session.is_idle());
}

/// Red before a read of a device that keeps no data left what the memory had: a machine's own, or what another process
/// had written through the same buffer.
#[test]
fn a_device_that_keeps_nothing_reads_as_zeroes() {
    let engine = engine("null,size=32M", 1);
    let mut client = Client::new(&engine, FrontEnd::Ublk);
    let mut guest = Guest::new(8 * MIB);
    for len in [4096, 4 * MIB] {
        guest.bytes().fill(7);
        let parts = [guest.buffer(512, 512), guest.buffer(MIB, len - 512)];
        let (failure, buffers) = client.do_external(Ask::Read, 0, Buffers::Many(parts.into()));
        assert_eq!(failure, None);
        drop(buffers);
        let is_read = |at: usize| (512..1024).contains(&at) || (MIB..MIB + len - 512).contains(&at);
        let wrong = guest.bytes().iter().enumerate().find(|(at, byte)| (**byte == 0) != is_read(*at));
        assert_eq!(wrong, None, "{len} bytes");
    }
}

/// A device of 1000 bytes, which says that everything is done.
#[derive(Debug)]
struct Odd;

impl Driver for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn limits(&self) -> Limits {
        let most = 8;
        Limits {
            capacity_sectors: 2,
            missing_bytes: 24,
            max_discard_sectors: most,
            max_write_zeroes_sectors: most,
            ..Limits::default()
        }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 1)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        batch.finish_all(Status::Ok);
    }
}

/// Red before a request of all of a sector of which the device has a part was told done: what the device has no bytes
/// for was lost.
#[test]
fn nothing_behind_the_last_byte_is_told_done() {
    let engine = engine_of(Arc::new(Odd), 8);
    let mut client = Client::new(&engine, FrontEnd::VhostUser);
    let guest = Guest::new(1024);
    let write = Ask::Write { fua: false };
    for (offset, len, expected) in [(0, 512, None), (512, 512, Some(Cause::Invalid)), (0, 1024, Some(Cause::Invalid))] {
        for ask in [Ask::Read, write] {
            let buffers = Buffers::One(guest.buffer(0, len));
            assert_eq!(client.do_external(ask, offset, buffers).0, expected, "{ask:?}, {len} bytes at {offset}");
        }
        let zeroes = Ask::WriteZeroes { fua: false, no_hole: false, fast: true };
        for ask in [Ask::Read, write, Ask::Discard { fua: false }, zeroes] {
            let id = client.session.take(&Request::new(ask, offset, len as u64, 0)).expect("there is room");
            if ask == write && expected.is_none() {
                let Piece::Here(buffer, 0) = client.session.next_piece(id) else { panic!("there is memory") };
                client.session.take_piece(id, buffer);
            }
            if ask == write {
                client.session.end_payload(id);
            }
            let (finished, failure) = client.finish();
            assert_eq!((finished, failure.map(|failure| failure.cause)), (id, expected), "{ask:?}, {len} at {offset}");
            client.session.forget(id);
        }
    }
}

/// Red if a write of whole blocks with external memory does not take its turn at a block of which a client of another
/// front-end changes a part: the part's write, which has read the block before, would undo it.
#[test]
fn external_memory_takes_its_turn_at_blocks_that_others_change_in_part() {
    let engine = engine("ram,size=1M,bs=4K", 8);
    let [mut part, mut whole] = [FrontEnd::Nbd, FrontEnd::VhostUser].map(|front| Client::new(&engine, front));
    let (mut guest, write) = (Guest::new(4096), Ask::Write { fua: false });
    for round in 1..=9_u8 {
        // A part of the first block, whose bytes come first.
        let id = part.session.take(&Request::new(write, 512, 512, 0)).unwrap();
        let Piece::Here(mut buffer, filled) = part.session.next_piece(id) else { panic!("there is memory") };
        buffer[filled..].fill(round);
        part.session.take_piece(id, buffer);
        part.session.end_payload(id);
        // The other client passes the claim, and the part's read is done before that client writes the whole block.
        part.session.submit(&mut part.submitter);
        whole.step();
        part.session.submit(&mut part.submitter);
        guest.bytes().fill(!round);
        let mut buffers = Buffers::One(guest.buffer(0, 4096));
        let other = whole.session.take_external(&Request::new(write, 0, 4096, 0), &mut buffers).unwrap();
        whole.step();
        let mut left = 2;
        while left > 0 {
            for (client, own) in [(&mut part, id), (&mut whole, other)] {
                client.step();
                if let Some((finished, failure)) = client.session.next_finished() {
                    assert_eq!((finished, failure), (own, None));
                    client.session.forget(finished);
                    left -= 1;
                }
            }
        }
        assert_eq!(whole.do_external(Ask::Read, 0, Buffers::One(guest.buffer(0, 4096))).0, None);
        let bytes = guest.bytes();
        let outside = bytes[..512].iter().chain(&bytes[1024..]);
        assert!(outside.copied().all(|byte| byte == !round), "round {round}: the write of the block was undone");
        assert!(bytes[512..1024].iter().all(|byte| *byte == round || *byte == !round));
    }
}

/// Red if a task that is cut short begins a further operation, ends as if all of it was done, or ends before what the
/// queue has of it; or if a task of which nothing was left to begin fails.
#[test]
fn a_task_that_is_cut_short_ends_with_what_it_has_begun() {
    let engine = engine("ram,size=8M", 1);
    let mut client = Client::new(&engine, FrontEnd::VhostUser);
    let guest = Guest::new(4 * MIB);
    for (length, expected) in [(4 * MIB, Some(Cause::Shutdown)), (512, None)] {
        let request = Request::new(Ask::Read, 0, length as u64, 0);
        let mut buffers = Buffers::One(guest.buffer(0, length));
        let id = client.session.take_external(&request, &mut buffers).expect("there is room");
        client.session.cut_short(id);
        assert!(client.session.next_finished().is_none(), "its first operation is not over");
        let (finished, failure) = client.finish();
        assert_eq!((finished, failure.map(|failure| failure.cause)), (id, expected));
        assert_eq!(client.nr_steps, 1, "no further operation was begun");
        client.nr_steps = 0;
        client.session.forget(id);
    }
}

/// Red before zeroes that were to be fast counted for no memory, although those at blocks that it changes in part need
/// some.
#[test]
fn the_edges_of_fast_zeroes_count_for_memory() {
    let engine = engine("ram,size=1M,bs=4K", 8);
    let mut client = Client::new(&engine, FrontEnd::VhostUser);
    for (length, expected) in [(4096, 0), (4096 + 512, 4096)] {
        let ask = Ask::WriteZeroes { fua: false, no_hole: false, fast: true };
        let id = client.session.take(&Request::new(ask, 8192, length, 0)).expect("there is room");
        assert_eq!(engine.clients.list()[0].memory, expected);
        let (finished, failure) = client.finish();
        assert_eq!((finished, failure), (id, None));
        client.session.forget(id);
    }
}

/// Red if a write whose data ends early is done, or if a read that needs more memory than there can be is never taken:
/// its client would wait for ever.
#[test]
fn what_cannot_be_done_whole_fails() {
    let engine = engine("ram,size=4M", 8);
    let mut client = Client::new(&engine, FrontEnd::Nbd);
    let id = client.session.take(&Request::new(Ask::Write { fua: false }, 0, MIB as u64, 0)).expect("there is room");
    let Piece::Here(buffer, 0) = client.session.next_piece(id) else { panic!("there is memory") };
    assert!(buffer.len() < MIB, "more is to come");
    client.session.take_piece(id, buffer);
    client.session.end_payload(id);
    let (finished, failure) = client.finish();
    assert_eq!((finished, failure.map(|failure| failure.cause)), (id, Some(Cause::Invalid)));
    client.session.forget(id);
    for (length, expected) in [(engine.longest(), None), (4 * MIB, Some(Cause::Invalid))] {
        let id = client.session.take(&Request::new(Ask::Read, 0, length as u64, 0)).expect("it is taken or has failed");
        let (finished, failure) = client.finish();
        assert_eq!((finished, failure.map(|failure| failure.cause)), (id, expected), "{length} bytes");
        client.session.forget(id);
    }
}
