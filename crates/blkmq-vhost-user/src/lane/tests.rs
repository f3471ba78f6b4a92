//! A ring at a desk, beside clients of other front-ends.

use blkmq::driver::spec;
use blkmq::event::EventFd;
use blkmq::{RequestQueue, Submitter};
use blkmq_engine::{Bounds, Engine, Export, FrontEnd, Journal, Level, least_memory};

use super::*;
use crate::ring::tests::{DATA, Entry as Descriptor, Guest, WRITE};

impl Terms {
    /// Nothing particular.
    pub(crate) fn plain() -> Self {
        Self {
            limits: Limits::default(),
            is_read_only: false,
            is_write_through: AtomicBool::new(false),
            name: [0; NAME],
            guest_priority: None,
            most_copied: 1 << 20,
        }
    }
}

/// An engine with one export, of this device.
pub(crate) fn engine(device: &str, memory: usize) -> Arc<Engine> {
    let q = RequestQueue::builder(spec::open(device).unwrap()).build().unwrap();
    let (journal, _) = Journal::start(Arc::new(|_: Level, _: &str| ()), "log").unwrap();
    let (exports, bell) = (vec![Export::new("", q)], Arc::new(EventFd::new().unwrap()));
    Arc::new(Engine::new(exports, Bounds::default(), memory, 1, bell, journal))
}

/// What a thread has.
pub(crate) struct Hand<F> {
    /// Before the desk: its end waits for operations.
    pub(crate) submitter: Submitter,
    pub(crate) desk: Desk<F>,
}

impl<F: Copy + Default> Hand<F> {
    pub(crate) fn new(engine: &Arc<Engine>, front_end: FrontEnd) -> Self {
        let bell = Arc::new(EventFd::new().unwrap());
        let entry = engine.clients.enter(front_end, "a test".into(), vec![Arc::clone(&bell)]);
        let mut submitter = engine.exports[0].join_own(&entry).unwrap();
        submitter.set_notify(Some(bell));
        let desk = Desk::of_thread(engine, 0, (&entry, 0), engine.bounds, submitter.nr_slots());
        Self { submitter, desk }
    }

    /// One of a machine, in front of a device in memory.
    pub(crate) fn plain() -> Self {
        Self::new(&engine("ram,size=1M", least_memory(1)), FrontEnd::VhostUser)
    }

    /// Submits, drives, and returns what is over.
    pub(crate) fn turn(&mut self) -> Vec<(TaskId, Option<Failure>)> {
        self.desk.submit(&mut self.submitter);
        self.desk.drive(&mut self.submitter);
        std::iter::from_fn(|| self.desk.next_finished()).collect()
    }
}

/// A guest with a ring, and the thread that serves it.
struct Machine {
    guest: Guest,
    lane: Lane,
    hand: Hand<Own>,
    nr_asked: u16,
}

/// Where the n-th request has its header, and behind that its status.
fn place(nr: u16) -> u64 {
    DATA + 64 * u64::from(nr % 8)
}

/// Where the data of requests may lie.
const FAR: u64 = DATA + 0x10000;

impl Machine {
    fn new(engine: &Arc<Engine>, most_copied: usize) -> Self {
        let guest = Guest::new(8, true, true);
        let limits = engine.exports[0].queue.limits();
        let terms = Arc::new(Terms { limits, most_copied, ..Terms::plain() });
        let lane = Lane::new(0, 8, guest.ring(), &guest.memory, None, terms).unwrap();
        Self { guest, lane, hand: Hand::new(engine, FrontEnd::VhostUser), nr_asked: 0 }
    }

    /// Makes a request available, and has the lane take it. Returns its number.
    fn ask(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> u16 {
        let nr = self.nr_asked;
        self.nr_asked += 1;
        let at = place(nr) as usize;
        self.guest.all.write(at, kind.to_le_bytes());
        self.guest.all.write(at + 8, sector.to_le_bytes());
        self.guest.all.write(at + 16, 0xff_u8);
        let direction = if kind == 0 { WRITE } else { 0 };
        let data = data.iter().map(|&(start, len)| (start, len, direction, 0));
        let chain: Vec<Descriptor> =
            [(at as u64, 16, 0, 0)].into_iter().chain(data).chain([(at as u64 + 16, 1, WRITE, 0)]).collect();
        self.guest.offer_packed(nr, &chain);
        let mut chain = Chain::default();
        let taken = self.lane.take(&mut chain).unwrap().expect("there is one");
        self.lane.begin(taken, &mut chain, &mut self.hand.desk);
        nr
    }

    /// A round of the worker.
    fn turn(&mut self) {
        self.lane.catch_up(&mut self.hand.desk);
        for (id, failure) in self.hand.turn() {
            self.lane.finish(id, failure, &mut self.hand.desk);
        }
        self.lane.publish();
    }

    /// The status of a request; `0xff` if there is none yet.
    fn status(&self, nr: u16) -> u8 {
        self.guest.all.read(place(nr) as usize + 16)
    }

    fn finish(&mut self, nr: u16) -> u8 {
        while self.status(nr) == 0xff {
            self.turn();
        }
        self.status(nr)
    }

    fn fill(&self, at: u64, len: usize, byte: impl Fn(usize) -> u8) {
        (0..len).for_each(|offset| self.guest.all.write(at as usize + offset, byte(offset)));
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        (0..len).map(|offset| self.guest.all.read(at as usize + offset)).collect()
    }
}

/// Red before machines were clients of the engine: an NBD client that changes a part of a block reads the block, puts
/// its bytes in, and writes the block. A write, or zeroes, that came between were told done, and undone.
#[test]
fn nothing_that_is_told_done_is_undone_by_a_client_that_changes_a_part_of_the_block() {
    for zeroes in [false, true] {
        let engine = engine("ram,size=1M,bs=4096", least_memory(1));
        let mut part = Hand::<u8>::new(&engine, FrontEnd::Nbd);
        let mut machine = Machine::new(&engine, 1 << 20);
        for round in 1..=9_u8 {
            let (ask, hints) = (engine::Ask::Write { fua: false }, Hints::default());
            let request = engine::Request { ask, offset: 512, length: 512, priority: None, hints, own: 0 };
            let id = part.desk.take(&request).unwrap();
            let engine::Piece::Here(mut buffer, filled) = part.desk.next_piece(id) else { panic!("there is memory") };
            buffer[filled..].fill(round);
            part.desk.take_piece(id, buffer);
            part.desk.end_payload(id);
            part.desk.submit(&mut part.submitter);
            // As a worker does when its bell rings.
            machine.turn();
            // The read of the part is done, and its write is not.
            part.desk.submit(&mut part.submitter);
            machine.fill(FAR, 4096, |_| !round);
            let nr = if zeroes {
                machine.guest.all.write(FAR as usize, 0_u64.to_le_bytes());
                machine.guest.all.write(FAR as usize + 8, 8_u64.to_le_bytes());
                machine.ask(13, 0, &[(FAR, 16)])
            } else {
                machine.ask(1, 0, &[(FAR, 4096)])
            };
            machine.turn();
            let mut is_over = false;
            while !is_over || machine.status(nr) == 0xff {
                for finished in part.turn() {
                    assert_eq!(finished, (id, None));
                    part.desk.forget(id);
                    is_over = true;
                }
                machine.turn();
            }
            assert_eq!(machine.status(nr), STATUS_OK);
            let read = machine.ask(0, 0, &[(FAR, 4096)]);
            assert_eq!(machine.finish(read), STATUS_OK);
            let written = if zeroes { 0 } else { !round };
            let bytes = machine.bytes(FAR, 4096);
            let mut outside = bytes[..512].iter().chain(&bytes[1024..]);
            assert!(outside.all(|byte| *byte == written), "round {round}: what was told done was undone");
        }
    }
}

/// Red if a request of parts of sectors, or of parts of the device's blocks, loses bytes, takes others with it, or is
/// done although there is never memory for it.
#[test]
fn what_is_no_whole_sectors_or_blocks_is_copied() {
    let mut machine = Machine::new(&engine("ram,size=1M,bs=4096", least_memory(1)), 8192);
    machine.fill(FAR, 8192, |at| (at % 251) as u8);
    let all = machine.ask(1, 0, &[(FAR, 8192)]);
    assert_eq!(machine.finish(all), STATUS_OK);
    // A sector at the end of a block and one at the beginning of the next, from three odd places.
    machine.fill(FAR, 1024, |_| 0xee);
    let part = machine.ask(1, 7, &[(FAR, 3), (FAR + 100, 720), (FAR + 3, 301)]);
    assert_eq!(machine.finish(part), STATUS_OK);
    let read = machine.ask(0, 1, &[(FAR + 0x2001, 4000), (FAR + 0x4000, 3679)]);
    assert_eq!(machine.finish(read), STATUS_ERROR, "no whole sectors");
    let read = machine.ask(0, 1, &[(FAR + 0x2001, 4000), (FAR + 0x4000, 3680)]);
    assert_eq!(machine.finish(read), STATUS_OK);
    let found = [machine.bytes(FAR + 0x2001, 4000), machine.bytes(FAR + 0x4000, 3680)].concat();
    let expected = (512..8192).map(|at| if (3584..4608).contains(&at) { 0xee } else { (at % 251) as u8 });
    assert!(found.into_iter().eq(expected));
    let long = machine.ask(0, 0, &[(FAR, 1), (FAR, 8192 + 511)]);
    assert_eq!(machine.finish(long), STATUS_ERROR, "there is never memory for it");
    assert!(machine.hand.desk.is_idle() && machine.lane.is_idle());
}

/// Red before a request that takes more slots than a submitter has was done one part after the other: it was refused.
#[test]
fn a_request_may_be_longer_than_the_slots_allow() {
    let mut machine = Machine::new(&engine("hdd,size=2M,max_sectors=8", least_memory(1)), 0);
    let nr_slots = machine.hand.submitter.nr_slots();
    let piece = (FAR, 0x40000_u32);
    assert!(nr_slots * 4096 < 5 * piece.1 as usize, "{nr_slots} requests of 4 KiB are less");
    machine.fill(FAR, piece.1 as usize, |at| (at / 512) as u8);
    for kind in [1, 0] {
        let nr = machine.ask(kind, 0, &[piece; 5]);
        assert_eq!(machine.finish(nr), STATUS_OK);
    }
    assert!(machine.bytes(FAR, piece.1 as usize).into_iter().eq((0..piece.1).map(|at| (at / 512) as u8)));
    assert!(machine.lane.is_idle());
}

/// Red if a request for which there is no memory now is lost, or lets others pass that the ring has behind it.
#[test]
fn a_copy_waits_for_memory() {
    let engine = engine("ram,size=1M,bs=4096", least_memory(1));
    let mut machine = Machine::new(&engine, 1 << 20);
    // Requests of the same thread that keep the memory: answers that nobody has read.
    let ask = engine::Ask::Tell { bytes: 64 << 10 };
    let mut held = Vec::new();
    while let Some(id) = machine.hand.desk.take(&engine::Request {
        ask,
        offset: 0,
        length: 0,
        priority: None,
        hints: Hints::default(),
        own: Own::default(),
    }) {
        held.push(id);
    }
    assert!(!held.is_empty() && held.len() < 100);
    assert_eq!(machine.hand.turn().len(), held.len());
    machine.fill(FAR, 512, |_| 5);
    let late = machine.ask(1, 1, &[(FAR, 512)]);
    assert!(!machine.lane.has_room(), "what is behind it waits");
    machine.turn();
    assert_eq!((machine.status(late), machine.lane.is_idle()), (0xff, false));
    held.into_iter().for_each(|id| machine.hand.desk.forget(id));
    assert_eq!(machine.finish(late), STATUS_OK);
    let read = machine.ask(0, 1, &[(FAR + 512, 512)]);
    assert_eq!((machine.finish(read), machine.bytes(FAR + 512, 512)), (STATUS_OK, vec![5; 512]));
    assert!(machine.lane.is_idle());
}

/// Red if a request of a machine is not counted, or not as one of its own.
#[test]
fn a_machine_is_a_client_with_its_counts() {
    let engine = engine("ram,size=1M", least_memory(1));
    let mut machine = Machine::new(&engine, 1 << 20);
    let asked = [machine.ask(0, 0, &[(FAR, 4096)]), machine.ask(77, 0, &[])];
    let told = || engine.clients.list().pop().unwrap();
    assert_eq!(told().unanswered, 2);
    asked.iter().for_each(|nr| _ = machine.finish(*nr));
    let info = told();
    assert_eq!((info.requests, info.unanswered, info.bytes, info.memory), (2, 0, 4096, 0));
    assert_eq!((info.errors.of(Cause::Unsupported), info.errors.count()), (1, 1));
    assert_eq!((info.front_end, info.client.as_deref()), (FrontEnd::VhostUser, Some("a test@default")));
}
