//! A ring at a session, beside clients of other front-ends.

use blkmq::driver::spec;
use blkmq::event::EventFd;
use blkmq::{RequestQueue, Submitter};
use blkmq_engine::{Engine, Export, FrontEnd, harness};

use super::*;
use crate::inflight::Inflight;
use crate::ring::WRITE;
use crate::ring::tests::{DATA, Entry as Descriptor, Guest};

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
pub(crate) fn engine(device: &str) -> Arc<Engine> {
    let q = RequestQueue::builder(spec::open(device).unwrap()).build().unwrap();
    harness::engine(Export::new("", q), 1)
}

/// What a thread has.
pub(crate) struct Hand<F> {
    /// Before the session: its end waits for operations.
    pub(crate) submitter: Submitter,
    pub(crate) session: Session<F>,
    pub(crate) lists: Lists,
}

impl<F: Copy + Default> Hand<F> {
    pub(crate) fn new(engine: &Arc<Engine>, front_end: FrontEnd) -> Self {
        let bell = Arc::new(EventFd::new().unwrap());
        let entry = engine.clients.enter(front_end, "a test".into(), vec![bell]);
        let (submitter, session) = Session::of_own(engine, 0, (&entry, 0), engine.bounds).unwrap();
        Self { submitter, session, lists: Lists::default() }
    }

    /// One of a machine, in front of a device in memory.
    pub(crate) fn plain() -> Self {
        Self::new(&engine("ram,size=1M"), FrontEnd::VhostUser)
    }

    /// Submits, drives, and returns what is over.
    pub(crate) fn turn(&mut self) -> Vec<(TaskId, Option<Failure>)> {
        self.session.submit(&mut self.submitter);
        self.session.drive(&mut self.submitter);
        std::iter::from_fn(|| self.session.next_finished()).collect()
    }
}

/// A guest with a ring, and the thread that serves it.
struct Machine {
    guest: Guest,
    ring_server: RingServer,
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
        let ring_server = RingServer::new(0, 8, guest.ring(), &guest.memory, terms);
        Self { guest, ring_server, hand: Hand::new(engine, FrontEnd::VhostUser), nr_asked: 0 }
    }

    /// Makes a request available, and has the ring server take it. Returns its number.
    fn ask(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> u16 {
        let (nr, mut chain, taken) = self.make(kind, sector, data);
        self.ring_server.begin(taken, &mut chain, &mut self.hand.session, &mut self.hand.lists);
        nr
    }

    /// As [`ask`](Self::ask), without a session.
    fn make(&mut self, kind: u32, sector: u64, data: &[(u64, u32)]) -> (u16, Chain, (Request, Taken)) {
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
        let taken = self.ring_server.take(&mut chain).unwrap().expect("there is one");
        (nr, chain, taken)
    }

    /// A round of the worker.
    fn turn(&mut self) {
        self.ring_server.catch_up(&mut self.hand.session);
        for (id, failure) in self.hand.turn() {
            self.ring_server.finish(id, failure, &mut self.hand.session, &mut self.hand.lists);
        }
        self.ring_server.publish();
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
}

/// Red if a request of parts of sectors, or of parts of the device's blocks, loses bytes, takes others with it, or is
/// done although there is never memory for it.
#[test]
fn what_is_no_whole_sectors_or_blocks_is_copied() {
    let mut machine = Machine::new(&engine("ram,size=1M,bs=4096"), 8192);
    machine.guest.fill(FAR, 8192, |at| (at % 251) as u8);
    let all = machine.ask(1, 0, &[(FAR, 8192)]);
    assert_eq!(machine.finish(all), VIRTIO_BLK_S_OK as u8);
    // A sector at the end of a block and one at the beginning of the next, from three odd places.
    machine.guest.fill(FAR, 1024, |_| 0xee);
    let part = machine.ask(1, 7, &[(FAR, 3), (FAR + 100, 720), (FAR + 3, 301)]);
    assert_eq!(machine.finish(part), VIRTIO_BLK_S_OK as u8);
    let read = machine.ask(0, 1, &[(FAR + 0x2001, 4000), (FAR + 0x4000, 3679)]);
    assert_eq!(machine.finish(read), VIRTIO_BLK_S_IOERR as u8, "no whole sectors");
    let read = machine.ask(0, 1, &[(FAR + 0x2001, 4000), (FAR + 0x4000, 3680)]);
    assert_eq!(machine.finish(read), VIRTIO_BLK_S_OK as u8);
    let found = [machine.guest.bytes(FAR + 0x2001, 4000), machine.guest.bytes(FAR + 0x4000, 3680)].concat();
    let expected = (512..8192).map(|at| if (3584..4608).contains(&at) { 0xee } else { (at % 251) as u8 });
    assert!(found.into_iter().eq(expected));
    let long = machine.ask(0, 0, &[(FAR, 1), (FAR, 8192 + 511)]);
    assert_eq!(machine.finish(long), VIRTIO_BLK_S_IOERR as u8, "there is never memory for it");
    assert!(machine.hand.session.is_idle() && machine.ring_server.is_idle());
}

/// Red before a request that takes more slots than a submitter has was done one part after the other: it was refused.
#[test]
fn a_request_may_be_longer_than_the_slots_allow() {
    let mut machine = Machine::new(&engine("hdd,size=2M,max_sectors=8,memory_backed=1"), 0);
    let nr_slots = machine.hand.submitter.nr_slots();
    let piece = (FAR, 0x40000_u32);
    assert!(nr_slots * 4096 < 5 * piece.1 as usize, "{nr_slots} requests of 4 KiB are less");
    machine.guest.fill(FAR, piece.1 as usize, |at| (at / 512) as u8);
    for kind in [1, 0] {
        let nr = machine.ask(kind, 0, &[piece; 5]);
        assert_eq!(machine.finish(nr), VIRTIO_BLK_S_OK as u8);
        if kind == 1 {
            machine.guest.fill(FAR, piece.1 as usize, |_| 0xee);
        }
    }
    assert!(machine.guest.bytes(FAR, piece.1 as usize).into_iter().eq((0..piece.1).map(|at| (at / 512) as u8)));
    assert!(machine.ring_server.is_idle());
}

/// Red if a request for which there is no memory now is lost, or lets others pass that the ring has behind it.
#[test]
fn a_copy_waits_for_memory() {
    let engine = engine("ram,size=1M,bs=4096");
    let mut machine = Machine::new(&engine, 1 << 20);
    // Requests of the same thread that keep the memory: answers that nobody has read.
    let held: Vec<_> = std::iter::from_fn(|| tell(&mut machine.hand, 64 << 10)).collect();
    assert!(!held.is_empty() && held.len() < 100);
    assert_eq!(machine.hand.turn().len(), held.len());
    machine.guest.fill(FAR, 512, |_| 5);
    let late = machine.ask(1, 1, &[(FAR, 512)]);
    assert!(!machine.ring_server.has_room(), "what is behind it waits");
    machine.turn();
    assert_eq!((machine.status(late), machine.ring_server.is_idle()), (0xff, false));
    held.into_iter().for_each(|id| machine.hand.session.forget(id));
    assert_eq!(machine.finish(late), VIRTIO_BLK_S_OK as u8);
    let read = machine.ask(0, 1, &[(FAR + 512, 512)]);
    assert_eq!((machine.finish(read), machine.guest.bytes(FAR + 512, 512)), (VIRTIO_BLK_S_OK as u8, vec![5; 512]));
    assert!(machine.ring_server.is_idle());
}

fn tell(hand: &mut Hand<Own>, bytes: u32) -> Option<TaskId> {
    let own = Own::default();
    let ask = engine::Ask::Tell { bytes };
    hand.session.take(&engine::Request { ask, offset: 0, length: 0, priority: None, hints: Hints::default(), own })
}

/// Red before a ring with a record was given back although a request waits for memory: its front-end, and its machine,
/// stood still for as long as other clients kept the memory.
#[test]
fn a_ring_is_given_back_without_what_waits_for_memory() {
    let mut machine = Machine::new(&engine("ram,size=1M,bs=4096"), 1 << 20);
    let (info, file) = Inflight::make(1, 8).unwrap();
    let renew = |machine: &mut Machine| {
        let record = Inflight::take(info, file.try_clone().unwrap(), true).unwrap();
        let (memory, base) = (&machine.guest.memory, machine.ring_server.virtqueue.base());
        let virtqueue = Virtqueue::new(0, memory, &machine.guest.layout, base, Some(&record)).unwrap();
        machine.ring_server = RingServer::new(0, 8, virtqueue, memory, Arc::clone(&machine.ring_server.terms));
    };
    renew(&mut machine);
    let held: Vec<_> = std::iter::from_fn(|| tell(&mut machine.hand, 64 << 10)).collect();
    machine.hand.turn();
    machine.guest.fill(FAR, 512, |_| 5);
    let late = machine.ask(1, 1, &[(FAR, 512)]);
    machine.ring_server.begin_no_part(&mut machine.hand.session);
    machine.turn();
    assert_eq!((machine.ring_server.is_idle(), machine.status(late)), (true, 0xff));
    // The ring goes on, and the request is begun once more.
    renew(&mut machine);
    held.into_iter().for_each(|id| machine.hand.session.forget(id));
    let mut chain = Chain::default();
    let taken = machine.ring_server.take(&mut chain).unwrap().expect("it is in the record");
    machine.ring_server.begin(taken, &mut chain, &mut machine.hand.session, &mut machine.hand.lists);
    assert_eq!(machine.finish(late), VIRTIO_BLK_S_OK as u8);
    let read = machine.ask(0, 1, &[(FAR + 512, 512)]);
    assert_eq!((machine.finish(read), machine.guest.bytes(FAR + 512, 512)), (VIRTIO_BLK_S_OK as u8, vec![5; 512]));
}

/// Red if a request that is broken off stands in the line for memory still: no other client would get any of what comes
/// free for as long as the machine stands still.
#[test]
fn what_is_broken_off_waits_for_no_memory() {
    let engine = engine("ram,size=1M,bs=4096");
    let mut machine = Machine::new(&engine, 1 << 20);
    let [mut first, mut second] = [(); 2].map(|()| Hand::<Own>::new(&engine, FrontEnd::Nbd));
    // All that is common, and what the machine and the second client have for themselves.
    let held = [512 << 10, 0].map(|bytes| (bytes > 0).then(|| tell(&mut first, bytes).unwrap()));
    let own: Vec<_> = std::iter::from_fn(|| tell(&mut machine.hand, 64 << 10)).collect();
    assert!(tell(&mut second, 256 << 10).is_some());
    first.turn();
    machine.hand.turn();
    machine.guest.write_ranges(FAR, &[[1, 2]]);
    let late = machine.ask(13, 0, &[(FAR, 16)]);
    assert!(!machine.ring_server.has_room(), "it is late");
    machine.ring_server.begin_no_part(&mut machine.hand.session);
    assert_eq!(
        (machine.status(late), engine.clients.errors(FrontEnd::VhostUser, "").of(Cause::Shutdown)),
        (VIRTIO_BLK_S_IOERR as u8, 1)
    );
    own.into_iter().for_each(|id| machine.hand.session.forget(id));
    machine.turn();
    held.into_iter().flatten().for_each(|id| first.session.forget(id));
    first.session.shrink();
    assert!(tell(&mut second, 64 << 10).is_some(), "the memory is free");
}

/// Red if a part of a request of ranges is tried before the write that is in the midst of its data: either waited for
/// the other one.
#[test]
fn a_write_that_has_begun_goes_before_what_has_not() {
    let mut engine = engine("ram,size=64M,bs=4096");
    Arc::get_mut(&mut engine).unwrap().bounds.bytes = 600 << 10;
    let mut machine = Machine::new(&engine, 1 << 20);
    // Two ranges, of which the second one has parts of blocks.
    machine.guest.write_ranges(FAR, &[[0, 8], [1 << 10 | 1, 2]]);
    let zeroes = machine.ask(13, 0, &[(FAR, 32)]);
    let write = machine.ask(1, 8, &[(FAR, 0x5fe01), (FAR, 0x501ff)]);
    assert!(!machine.ring_server.has_room(), "it is late");
    for _ in 0..1000 {
        machine.turn();
    }
    assert_eq!((machine.status(zeroes), machine.status(write)), (VIRTIO_BLK_S_OK as u8, VIRTIO_BLK_S_OK as u8));
}

/// Red before the data of one write came behind that of the other: writes of many rings, each in the midst of its data,
/// had all of the thread's memory, and none could go on.
#[test]
fn writes_that_have_begun_leave_memory_for_their_data() {
    let engine = engine("ram,size=1M,bs=4096");
    let mut hand = Hand::<Own>::new(&engine, FrontEnd::VhostUser);
    let held: Vec<_> = std::iter::from_fn(|| tell(&mut hand, 64 << 10)).collect();
    hand.turn();
    // All that is common, and what the thread has for itself.
    assert_eq!(held.len(), 8);
    let mut machines: Vec<_> = (0..64).map(|_| Machine::new(&engine, 1 << 20)).collect();
    let nr_machines = machines.len();
    let mut held = held.into_iter();
    for round in 1..1000 {
        // The rings ask in groups, the last ones first. The thread looks after the first ones first.
        let first = nr_machines.saturating_sub(8 * round);
        for (number, machine) in machines.iter_mut().enumerate().skip(first).take(8) {
            if machine.nr_asked == 0 {
                machine.ring_server.number = number as u16;
                let (_, mut chain, taken) = machine.make(1, 1, &[(FAR, 0x4ffff), (FAR, 1)]);
                machine.ring_server.begin(taken, &mut chain, &mut hand.session, &mut hand.lists);
                assert!(!machine.ring_server.has_room(), "it is late");
            }
        }
        held.next().into_iter().for_each(|id| hand.session.forget(id));
        for machine in &mut machines {
            // Its own thread has nothing to do, and lets others have their turns at blocks.
            assert!(machine.hand.turn().is_empty());
            machine.ring_server.catch_up(&mut hand.session);
        }
        for (id, failure) in hand.turn() {
            let ring_server = &mut machines[usize::from(hand.session.own(id).ring)].ring_server;
            ring_server.finish(id, failure, &mut hand.session, &mut hand.lists);
        }
    }
    let is_done = |machine: &&Machine| machine.status(0) == VIRTIO_BLK_S_OK as u8 && machine.ring_server.is_idle();
    assert_eq!(machines.iter().filter(is_done).count(), nr_machines);
}
