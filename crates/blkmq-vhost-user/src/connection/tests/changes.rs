//! Servers that come after others, and front-ends that change things while their guest works.

use std::sync::atomic::AtomicU64;

use blkmq::driver::{Batch, Driver, Topology};
use blkmq::{Limits, Op, Time};

use super::*;
use crate::protocol::message::InflightInfo;
use crate::ring::Chain;
use crate::ring_server::RingServer;
use crate::ring_server::tests::Hand;

/// A device that grows, or falls apart, when it is told to, and tells of what it has done.
#[derive(Debug)]
struct TestDriver {
    capacity: AtomicU64,
    panics: AtomicBool,
    nr_discards: AtomicU64,
    /// Whether the last write was to be durable, and its priority.
    written: Mutex<Option<(bool, IoPriority)>>,
}

impl TestDriver {
    fn served() -> (Arc<Self>, Served) {
        Self::with(64, |_, _| ())
    }

    fn with(capacity: u64, change: impl FnOnce(&mut Export, &mut Device)) -> (Arc<Self>, Served) {
        let driver = Arc::new(Self {
            capacity: AtomicU64::new(capacity),
            panics: AtomicBool::new(false),
            nr_discards: AtomicU64::new(0),
            written: Mutex::new(None),
        });
        let q = RequestQueue::builder(Arc::clone(&driver) as Arc<dyn Driver>).build().unwrap();
        let (mut export, mut asked) = (Export::new("", q), Device::new(""));
        change(&mut export, &mut asked);
        let change = |device: &mut Device| *device = Device { socket: device.socket.clone(), ..asked };
        let served = Served::with(tempfile::tempdir().unwrap(), export, change);
        (driver, served)
    }

    /// How the device got a write of the guest's, with what the guest says of its priority.
    fn write(&self, disk: &mut Disk, priority: u32) -> (bool, IoPriority) {
        disk.ask(OUT, 0, priority, &[(disk.data() + 0x1000, 512)], false);
        assert_eq!(disk.wait(), (0, 1));
        self.written.lock().unwrap().take().unwrap()
    }
}

impl Driver for TestDriver {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn limits(&self) -> Limits {
        Limits {
            capacity_sectors: self.capacity.load(Ordering::Relaxed),
            max_discard_sectors: 8,
            write_cache: true,
            fua: true,
            ..Limits::default()
        }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 1)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        assert!(!self.panics.load(Ordering::Relaxed), "a driver that panics, as the test wants it");
        while let Some(rq) = batch.next_request() {
            match rq.op() {
                Op::Write => *self.written.lock().unwrap() = Some((rq.flags().fua, rq.priority())),
                Op::Discard => _ = self.nr_discards.fetch_add(1, Ordering::Relaxed),
                _ => (),
            }
            batch.finish(rq, blkmq::Status::Ok);
        }
    }
}

/// How often the descriptor was written since it was last read.
fn rings(call: &Eventfd) -> u64 {
    call.read().unwrap_or(0)
}

/// The last server was killed when it had shown an answer and had not told of it. Red before the next server told the
/// guest at the start of a ring: the guest's event lies behind what it was shown, so it never heard again.
#[test]
fn a_ring_that_begins_tells_its_guest_once() {
    let served = Served::new("ram,size=1M", |_| ());
    let (front, mut disk) = served.machine(0);
    front.get_vring_base(0).unwrap();
    // One answer is there, and the guest waits for it: its event is at index 0.
    for at in [disk.guest.layout.driver, disk.guest.layout.device] {
        disk.guest.all.write(at as usize + 2, 1_u16.to_le_bytes());
    }
    front.set_vring_base(0, 1).unwrap();
    // As QEMU does it: the call before the kick.
    disk.call = Eventfd::new(libc::EFD_NONBLOCK).unwrap();
    front.set_vring_call(0, &disk.call).unwrap();
    front.set_vring_kick(0, &disk.kick).unwrap();
    // The answer comes when the worker has had the ring.
    front.get_vring_base(0).unwrap();
    assert!(rings(&disk.call) > 0, "a guest that sleeps is told");
}

/// A server ends while requests are in its device, and the next one does them once more. Red if a request is lost, the
/// one of descriptor 0 included, or if the guest gets an answer twice; for packed rings, before they had a record.
#[test]
fn what_was_in_progress_is_done_by_the_next_server() {
    for is_packed in [false, true] {
        let served = Served::new("ram,size=1M", |device| device.packed = is_packed);
        let guest = Guest::new(8, is_packed, true);
        let mut front = connect(&served.socket(), &guest, 0);
        let (info, file) = make_record(&mut front);
        let kept = InflightInfo { len: info.mmap_size, offset: 0, nr_queues: 1, size: 8 };
        let kept = Inflight::take(kept, file.try_clone().unwrap().into(), is_packed).unwrap();
        front.set_inflight_fd(&info, file.as_raw_fd()).unwrap();
        let mut disk = Disk::new(&mut front, guest, 0);
        assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1), "this one has descriptor 0");
        front.get_vring_base(0).unwrap();
        drop(front);
        // The server has taken two requests, 1 and 0, and ended.
        disk.head = 1;
        let far = disk.data() + 0x1000;
        disk.fill(far, 512, 5);
        disk.ask(OUT, 3, 0, &[(far, 512)], false);
        disk.head = 0;
        disk.ask(OUT, 3, 0, &[(far, 512)], false);
        let mut virtqueue = disk.guest.recorded_ring(Some(&kept));
        while virtqueue.take(&disk.guest.memory, &mut Chain::default()).unwrap().is_some() {}
        let guest = disk.guest.beside(0);
        let mut front = connect(&served.socket(), &guest, 0);
        front.set_inflight_fd(&info, file.as_raw_fd()).unwrap();
        // QEMU does not know where a packed ring goes on.
        disk.start(&mut front, if is_packed { 0x8000 } else { 1 });
        assert_eq!((disk.wait().0, disk.wait().0), (0, 0));
        let id = |at: u16| {
            let place = disk.guest.layout.descriptors + 16 * u64::from(at) + 12;
            if is_packed { disk.guest.number(place).into() } else { disk.guest.used(at).0 }
        };
        assert_eq!([1, 2].map(id), [1, 0], "in their order");
        disk.head = 2;
        assert_eq!(disk.request(READ, 3, &[(far + 0x1000, 512)], true), (0, 513));
        assert_eq!(disk.bytes(far + 0x1000, 512), [5; 512]);
        let nr_answers = served.answered(Kind::Write) + served.answered(Kind::Read);
        assert_eq!(nr_answers, 3, "each is answered once");
    }
}

/// The id of a chain is the guest's, and may be any number. Red before it was told from a place in the record: the
/// worker panicked.
#[test]
fn an_id_of_a_packed_ring_is_no_place_in_the_record() {
    let mut guest = Guest::new(8, true, true);
    let (info, file) = Inflight::make(1, 8).unwrap();
    let virtqueue = guest.recorded_ring(Some(&Inflight::take(info, file, true).unwrap()));
    let mut ring_server = RingServer::new(0, 8, virtqueue, &guest.memory, Arc::new(Terms::plain()));
    guest.all.write(DATA as usize, FLUSH.to_le_bytes());
    guest.offer_packed(0xffff, &[(DATA, 16, 0, 0), (DATA + 16, 1, WRITE, 0)]);
    let (mut chain, mut hand) = (Chain::default(), Hand::plain());
    let taken = ring_server.take(&mut chain).unwrap().expect("there is one");
    ring_server.begin(taken, &mut chain, &mut hand.session, &mut hand.lists);
    for (id, failure) in hand.turn() {
        ring_server.finish(id, failure, &mut hand.session, &mut hand.lists);
    }
    ring_server.publish();
    assert!(ring_server.is_idle());
}

/// Red before a front-end had to agree on the memory of what is in progress before it could ask for it, or send it.
#[test]
fn memory_of_what_is_in_progress_has_to_be_agreed_on() {
    for (code, with_file) in [(31_u32, false), (32, true)] {
        let served = Served::new("ram,size=1M", |device| device.packed = true);
        let client = UnixStream::connect(served.socket()).unwrap();
        let (info, file) = Inflight::make(1, 8).unwrap();
        let mut body = InflightInfo { len: 0x1000, ..info }.bytes();
        body.resize(24, 0);
        let header = [code, 1, body.len() as u32].map(u32::to_le_bytes);
        let message = [header.as_flattened(), &body].concat();
        wire::send(client.as_fd(), &message, with_file.then_some(file.as_fd())).unwrap();
        drop(file);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((&client).read(&mut [0; 64]).unwrap(), 0, "there is no answer");
        served.warns("which was not agreed on");
    }
}

/// Red before a connection looked after its workers: the front-end stayed connected, and the guest waited forever.
#[test]
fn a_worker_that_panics_ends_the_session() {
    let (driver, served) = TestDriver::served();
    let (front, mut disk) = served.machine(0);
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
    driver.panics.store(true, Ordering::Relaxed);
    let far = disk.data() + 0x1000;
    disk.ask(OUT, 0, 0, &[(far, 512)], false);
    served.warns("a thread of its rings has panicked");
    assert!(served.engine.clients.is_empty(), "it is a client no more");
    assert!(front.get_features().is_err(), "the connection is over");
}

/// QEMU takes a region that has changed out and adds it again, while rings work. Red before a ring waited for its
/// memory: its connection ended.
#[test]
fn a_ring_waits_while_its_memory_is_away() {
    let served = Served::new("ram,size=1M", |_| ());
    let (guest, mut front) = served.front();
    let rings = VhostUserMemoryRegionInfo { memory_size: DATA, ..region(&guest) };
    let data = VhostUserMemoryRegionInfo {
        guest_phys_addr: DATA,
        memory_size: END - DATA,
        userspace_addr: USER + DATA,
        mmap_offset: DATA,
        ..region(&guest)
    };
    front.set_mem_table(&[rings, data]).unwrap();
    let mut disk = Disk::new(&mut front, guest, 0);
    let far = disk.data() + 0x1000;
    disk.fill(far, 512, 3);
    assert_eq!(disk.request(OUT, 1, &[(far, 512)], false), (0, 1));
    for part in [rings, data] {
        front.remove_mem_region(&part).unwrap();
        front.add_mem_region(&part).unwrap();
        front.get_features().expect("the connection goes on");
        assert_eq!(disk.request(READ, 1, &[(far + 0x1000, 512)], true), (0, 513));
        assert_eq!(disk.bytes(far + 0x1000, 512), [3; 512]);
    }
    // What comes meanwhile is done when the memory is there again.
    front.remove_mem_region(&rings).unwrap();
    // The answer comes when the ring is halted.
    front.get_features().unwrap();
    disk.ask(OUT, 2, 0, &[(far, 512)], false);
    assert_eq!(disk.seen, disk.guest.number(disk.guest.layout.device + 2));
    front.add_mem_region(&rings).unwrap();
    assert_eq!(disk.wait(), (0, 1));
    // A ring that was never anywhere is a fault.
    front.get_vring_base(0).unwrap();
    front.remove_mem_region(&rings).unwrap();
    front.set_vring_kick(0, &disk.kick).unwrap();
    served.warns("a ring at");
}

/// Red before a channel that fails was only given up: the connection ended, as if the front-end had gone.
#[test]
fn a_channel_of_the_device_that_fails_is_given_up() {
    let (driver, served) = TestDriver::served();
    let (guest, mut front) = served.front();
    let (near, far) = UnixStream::pair().unwrap();
    front.set_backend_request_fd(&far).unwrap();
    drop((near, far));
    driver.capacity.store(128, Ordering::Relaxed);
    let mut disk = Disk::new(&mut front, guest, 0);
    loop {
        let (_, bytes) =
            front.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).expect("the connection goes on");
        if bytes == 128_u64.to_le_bytes() {
            break;
        }
    }
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
}

/// A device grows between two servers. Red before each connection told its front-end once to ask: the front-end went on
/// with what the last server had said.
#[test]
fn a_front_end_that_comes_again_is_told_of_growth() {
    let (_driver, served) = TestDriver::served();
    let (guest, mut front) = served.front();
    let (mut near, far) = UnixStream::pair().unwrap();
    front.set_backend_request_fd(&far).unwrap();
    let _disk = Disk::new(&mut front, guest, 0);
    let mut header = [0; 12];
    near.read_exact(&mut header).unwrap();
    assert_eq!(header[..], config_change()[..12]);
}

/// Red before a guest that does not flush was told that its cache does not write back.
#[test]
fn a_guest_without_flushes_has_a_cache_that_writes_through() {
    let (_driver, served) = TestDriver::served();
    let guest = Guest::new(8, false, true);
    let writeback = |front: &mut Frontend| {
        front.get_config(32, 1, VhostUserConfigFlags::empty(), &[0]).map(|(_, bytes)| bytes[0]).unwrap()
    };
    let mut front = connect(&served.socket(), &guest, 0);
    assert_eq!(writeback(&mut front), 1);
    drop(front);
    let mut front = connect(&served.socket(), &guest, 1 << VIRTIO_BLK_F_FLUSH);
    assert_eq!(writeback(&mut front), 0);
    drop(front);
    // Front-ends read the configuration before the guest has chosen, and keep it.
    let mut front = Frontend::connect(served.socket(), 8).unwrap();
    let _ = front.get_features().unwrap();
    let protocol = front.get_protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    assert_eq!(writeback(&mut front), 1);
}

/// Red if a write is not durable when it is over although the guest does not flush, or if it is although a flush will
/// come.
#[test]
fn writes_through_are_durable_one_by_one() {
    let (driver, served) = TestDriver::served();
    let guest = Guest::new(8, false, true);
    let mut front = connect(&served.socket(), &guest, 1 << VIRTIO_BLK_F_FLUSH);
    let mut disk = Disk::new(&mut front, guest, 0);
    assert!(driver.write(&mut disk, 0).0, "the guest does not flush");
    drop((front, disk));
    let (_front, mut disk) = served.machine(0);
    assert!(!driver.write(&mut disk, 0).0, "a flush will come");
}

/// Red if a request has another priority than the guest gives it where that is wanted, or where it is not.
#[test]
fn requests_have_the_priority_of_the_guest() {
    use blkmq::Class::{BestEffort, Idle};
    let best = IoPriority { class: BestEffort, level: 2 };
    let [realtime, lower, idle] = [1_u32 << 13, 2 << 13 | 5, 3 << 13];
    for is_wanted in [false, true] {
        let (driver, served) = TestDriver::with(64, |export, device| {
            export.priority = best;
            device.guest_priority = is_wanted;
        });
        let (_front, mut disk) = served.machine(0);
        let found = [0, realtime, lower, idle].map(|said| driver.write(&mut disk, said).1);
        let expected = if is_wanted {
            let of = |class, level| IoPriority { class, level };
            [of(BestEffort, 4), best, of(BestEffort, 5), of(Idle, 0)]
        } else {
            [best; 4]
        };
        assert_eq!(found, expected);
    }
}

/// The front-end lends its memory anew while a discard of many parts is in progress. Red before that was told apart
/// from an end: the guest got an error, although nothing had failed.
#[test]
fn a_pause_lets_what_was_taken_be_done() {
    let (driver, mut served) = TestDriver::with(1 << 20, |_, _| ());
    let (guest, mut front) = served.front();
    let again = region(&guest);
    let mut disk = Disk::new(&mut front, guest, 0);
    let far = disk.data() + 0x1000;
    disk.guest.write_ranges(far, &[[0, 8 * 40_000]]);
    disk.ask(DISCARD, 0, 0, &[(far, 16)], false);
    while driver.nr_discards.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    front.set_mem_table(&[again]).unwrap();
    assert_eq!(disk.wait(), (0, 1));
    assert_eq!(driver.nr_discards.load(Ordering::Relaxed), 40_000);
    served.end();
}

/// One discard of 32 ranges that are the whole disk, in parts of 8 sectors, takes hours. Red before a stop took effect
/// between two parts: the front-end waited for all of them.
#[test]
fn a_stop_takes_effect_between_operations() {
    for has_record in [false, true] {
        let (driver, mut served) = TestDriver::with(1 << 32, |_, _| ());
        let (guest, mut front) = served.front();
        if has_record {
            let (info, file) = make_record(&mut front);
            front.set_inflight_fd(&info, file.as_raw_fd()).unwrap();
        }
        let mut disk = Disk::new(&mut front, guest, 0);
        let far = disk.data() + 0x1000;
        disk.guest.write_ranges(far, &[[0, 0xffff_fff8]; 32]);
        disk.ask(DISCARD, 0, 0, &[(far, 512)], false);
        let goes_on = || {
            let before = driver.nr_discards.load(Ordering::Relaxed);
            while driver.nr_discards.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
        };
        goes_on();
        let base = front.get_vring_base(0).unwrap();
        if has_record {
            assert_eq!(disk.guest.number(disk.guest.layout.device + 2), 0, "it is in progress");
            // It is begun once more.
            disk.start(&mut front, base);
            goes_on();
        } else {
            assert_eq!(disk.wait(), (1, 1), "the guest gets an answer");
        }
        served.end();
    }
}
