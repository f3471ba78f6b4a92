//! Front-ends as other people have written them, with a guest of our own behind them.

mod bounds;
mod changes;
mod conformance;
mod descriptors;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;

use blkmq::driver::spec;
use blkmq::{IoPriority, RequestQueue};
use blkmq_engine::{Bounds, Cause, Engine, Export, FrontEnd, Journal, Kind, Level, LogThread, least_memory};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_RO, VIRTIO_BLK_T_DISCARD as DISCARD, VIRTIO_BLK_T_FLUSH as FLUSH, VIRTIO_BLK_T_GET_ID as NAME,
    VIRTIO_BLK_T_IN as READ, VIRTIO_BLK_T_OUT as OUT, VIRTIO_BLK_T_WRITE_ZEROES as ZEROES,
};
use vmm_sys_util::eventfd::EventFd as Eventfd;

use super::*;
use crate::Server;
use crate::protocol::config::SIZE;
use crate::ring::tests::{DATA, END, Entry, Guest};
use crate::ring::{INDIRECT, NEXT, WRITE};

/// Where a guest's memory is for its front-end.
const USER: u64 = 1 << 40;
/// Bytes between the rings of a guest.
const APART: u64 = 0x20000;

/// A server of one device, with what it has logged.
pub(super) struct Served {
    pub(super) engine: Arc<Engine>,
    server: Option<Server>,
    log_thread: LogThread,
    pub(super) folder: tempfile::TempDir,
    pub(super) lines: Arc<Mutex<Vec<(Level, String)>>>,
}

impl Served {
    pub(super) fn new(device: &str, change: impl FnOnce(&mut Device)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let q = RequestQueue::builder(spec::open(device).unwrap()).build().unwrap();
        Self::with(folder, Export::new("", q), change)
    }

    fn with(folder: tempfile::TempDir, export: Export, change: impl FnOnce(&mut Device)) -> Self {
        let mut device = Device::new(folder.path().join("disk.sock"));
        change(&mut device);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log = move |level: Level, line: &str| kept.lock().unwrap().push((level, line.to_owned()));
        let (journal, log_thread) = Journal::start(Arc::new(log), "log").unwrap();
        let bell = Arc::new(EventFd::new().unwrap());
        let engine = Arc::new(Engine::new(vec![export], Bounds::default(), least_memory(2), 2, bell, journal));
        let server = Server::start(vec![device], &engine).unwrap();
        Self { engine, server: Some(server), log_thread, folder, lines }
    }

    pub(super) fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("disk.sock")
    }

    /// Requests of a kind that were answered.
    fn answered(&self, kind: Kind) -> u64 {
        self.engine.clients.latencies(FrontEnd::VhostUser, "").of(kind).count()
    }

    /// Requests that were answered with an error.
    fn errors(&self) -> u64 {
        self.engine.clients.errors(FrontEnd::VhostUser, "").count()
    }

    fn end(&mut self) {
        self.engine.stop.drain();
        self.server.take().unwrap().wait();
        self.engine.end_log(&self.log_thread);
    }

    /// Connects a machine that has no rings yet.
    fn front(&self) -> (Guest, Frontend) {
        let guest = Guest::new(8, false, true);
        let front = connect(&self.socket(), &guest, 0);
        (guest, front)
    }

    /// Connects a machine with one ring, which has agreed on all features but these.
    pub(super) fn machine(&self, without: u64) -> (Frontend, Disk) {
        self.machine_of(Guest::new(8, false, without & 1 << VIRTIO_RING_F_EVENT_IDX == 0), without)
    }

    fn machine_of(&self, guest: Guest, without: u64) -> (Frontend, Disk) {
        let mut front = connect(&self.socket(), &guest, without);
        let disk = Disk::new(&mut front, guest, 0);
        (front, disk)
    }

    /// Fails unless one more front-end is served.
    fn serves_another(&self) {
        let (_front, mut disk) = self.machine(0);
        assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
    }

    /// Waits for a warning that the server logs, and fails unless it has this part.
    fn warns(&self, part: &str) {
        let warning = loop {
            let mut lines = self.lines.lock().unwrap();
            if let Some(at) = lines.iter().position(|(level, _)| *level == Level::Warning) {
                break lines.remove(at).1;
            }
            drop(lines);
            std::thread::yield_now();
        };
        assert!(warning.contains(part), "{warning}");
    }
}

/// A ring of a guest, as its driver sees it.
pub(super) struct Disk {
    pub(super) guest: Guest,
    number: usize,
    kick: Eventfd,
    call: Eventfd,
    /// What the driver has seen of what was used.
    seen: u16,
    head: u16,
}

/// Connects, agrees on everything that is offered, and lends the memory.
pub(super) fn connect(socket: &Path, guest: &Guest, without: u64) -> Frontend {
    let mut front = Frontend::connect(socket, 8).unwrap();
    front.set_owner().unwrap();
    let features = front.get_features().unwrap() & !without;
    let protocol = front.get_protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    front.set_features(features).unwrap();
    front.set_mem_table(&[region(guest)]).unwrap();
    front
}

/// Has the server make a record for one ring of 8 descriptors.
fn make_record(front: &mut Frontend) -> (VhostUserInflight, std::fs::File) {
    let info = VhostUserInflight { num_queues: 1, queue_size: 8, ..VhostUserInflight::default() };
    front.get_inflight_fd(&info).unwrap()
}

fn region(guest: &Guest) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: END,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: guest.file.as_raw_fd(),
    }
}

impl Disk {
    /// Sets up one ring of 8 descriptors.
    pub(super) fn new(front: &mut Frontend, guest: Guest, number: usize) -> Self {
        let [kick, call] = [0, 0].map(|flags| Eventfd::new(flags).unwrap());
        let mut disk = Self { guest, number, kick, call, seen: 0, head: 0 };
        let base = if disk.guest.layout.is_packed { 0x8000_8000 } else { 0 };
        disk.start(front, base);
        disk
    }

    fn start(&mut self, front: &mut Frontend, base: u32) {
        let (number, layout) = (self.number, &self.guest.layout);
        front.set_vring_num(number, layout.size).unwrap();
        front.set_vring_base(number, base as u16).unwrap();
        let place = VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: 0,
            desc_table_addr: USER + layout.descriptors,
            used_ring_addr: USER + layout.device,
            avail_ring_addr: USER + layout.driver,
            log_addr: None,
        };
        front.set_vring_addr(number, &place).unwrap();
        front.set_vring_kick(number, &self.kick).unwrap();
        front.set_vring_call(number, &self.call).unwrap();
        front.set_vring_enable(number, true).unwrap();
    }

    fn data(&self) -> u64 {
        DATA + APART * self.number as u64
    }

    fn status_at(&self) -> u64 {
        self.data() + 16
    }

    /// Makes a request available, with data from these places. Its header lies in front, and its status behind.
    pub(super) fn ask(&mut self, kind: u32, sector: u64, priority: u32, data: &[(u64, u32)], is_write: bool) {
        let at = self.data();
        self.guest.all.write(at as usize, (u64::from(kind) | u64::from(priority) << 32).to_le_bytes());
        self.guest.all.write(at as usize + 8, sector.to_le_bytes());
        self.guest.all.write(at as usize + 16, 0xff_u8);
        let direction = if is_write { WRITE } else { 0 };
        let mut entries: Vec<Entry> = vec![(at, 16, NEXT, 1)];
        for &(start, len) in data {
            entries.push((start, len, direction | NEXT, entries.len() as u16 + 1));
        }
        entries.push((self.status_at(), 1, WRITE, 0));
        let table = at + 0x100;
        self.guest.table(table, &entries);
        let entry = (table, 16 * entries.len() as u32, INDIRECT, 0);
        if self.guest.layout.is_packed {
            self.guest.offer_packed(self.head, &[entry]);
        } else {
            self.guest.table(self.guest.layout.descriptors + 16 * u64::from(self.head), &[entry]);
            self.guest.offer(self.head);
        }
        self.head = (self.head + 1) % self.guest.layout.size;
        self.kick.write(1).unwrap();
    }

    /// Waits until the device has told of it. Returns the status, and the length.
    pub(super) fn wait(&mut self) -> (u8, u32) {
        if self.guest.layout.is_packed {
            return self.wait_packed();
        }
        while self.guest.number(self.guest.layout.device + 2) == self.seen {
            self.call.read().unwrap();
        }
        let (_, len) = self.guest.used(self.seen);
        self.seen = self.seen.wrapping_add(1);
        // As a driver that wants to be told of the next one.
        let event = self.guest.layout.driver as usize + 4 + 2 * usize::from(self.guest.layout.size);
        self.guest.all.write(event, self.seen.to_le_bytes());
        (self.guest.all.read(self.status_at() as usize), len)
    }

    /// As [`wait`](Self::wait). Each request has one descriptor, so the lap follows from the count.
    fn wait_packed(&mut self) -> (u8, u32) {
        let (size, at) = (self.guest.layout.size, self.guest.layout.descriptors);
        let place = at + 16 * u64::from(self.seen % size);
        let used = if (self.seen / size).is_multiple_of(2) { 1 << 7 | 1 << 15 } else { 0 };
        while self.guest.number(place + 14) & (1 << 7 | 1 << 15) != used {
            self.call.read().unwrap();
        }
        self.seen += 1;
        let len = u32::from_le_bytes(self.guest.all.read(place as usize + 8));
        (self.guest.all.read(self.status_at() as usize), len)
    }

    fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32)], is_write: bool) -> (u8, u32) {
        self.ask(kind, sector, 0, data, is_write);
        self.wait()
    }

    fn fill(&self, at: u64, len: usize, byte: u8) {
        self.guest.fill(at, len, |_| byte);
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.guest.bytes(at, len)
    }
}

/// Every kind of request, by somebody else's front-end. Red if data goes elsewhere than it was sent, if a request that
/// cannot be is done, or if one that is done is not counted.
#[test]
fn a_guest_reads_what_it_has_written() {
    let mut served = Served::new("ram,size=1M", |device| device.serial = "a disk".to_owned());
    let (_front, mut disk) = served.machine(0);
    let far = disk.data() + 0x1000;
    disk.fill(far, 1024, 7);
    disk.fill(far + 1024, 512, 8);
    assert_eq!(disk.request(OUT, 8, &[(far, 1024), (far + 1024, 512)], false), (0, 1));
    assert_eq!(disk.request(READ, 9, &[(far + 0x1000, 1024)], true), (0, 1025));
    let found = disk.bytes(far + 0x1000, 1024);
    assert_eq!(found, [[7; 512], [8; 512]].concat());
    // Pieces that are no whole sectors are copied.
    assert_eq!(disk.request(READ, 8, &[(far + 0x2001, 100), (far + 0x2100, 924)], true), (0, 1025));
    assert_eq!([disk.bytes(far + 0x2001, 100), disk.bytes(far + 0x2100, 924)].concat(), [7; 1024]);
    assert_eq!(disk.request(OUT, 0, &[(far, 1), (far, 511)], false), (0, 1));
    assert_eq!(disk.request(READ, 0, &[(far + 0x3000, 512)], true), (0, 513));
    assert_eq!(disk.bytes(far + 0x3000, 512), [7; 512]);
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
    assert_eq!(disk.request(NAME, 0, &[(far, 5), (far + 5, 15)], true), (0, 21));
    assert_eq!(disk.bytes(far, 20), b"a disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    // Two ranges of zeroes, of which the second may leave a hole.
    disk.guest.write_ranges(far, &[[8, 1], [10, 1 | 1 << 32]]);
    assert_eq!(disk.request(ZEROES, 0, &[(far, 32)], false), (0, 1));
    assert_eq!(disk.request(READ, 8, &[(far + 0x3000, 1536)], true), (0, 1537));
    assert_eq!(disk.bytes(far + 0x3000, 1536), [[0; 512], [7; 512], [0; 512]].concat());
    disk.guest.write_ranges(far, &[[0, 1]]);
    assert_eq!(disk.request(DISCARD, 0, &[(far, 16)], false).0, 0);
    // What cannot be.
    disk.guest.write_ranges(far, &[[0, 1 | 1 << 32]]);
    assert_eq!(disk.request(DISCARD, 0, &[(far, 16)], false), (2, 1), "a flag that a discard does not have");
    assert_eq!(disk.request(DISCARD, 0, &[(far, 15)], false), (1, 1));
    assert_eq!(disk.request(77, 0, &[], false), (2, 1));
    assert_eq!(disk.request(READ, 2048, &[(far, 512)], true), (1, 1), "behind the end");
    assert_eq!(disk.request(READ, u64::MAX, &[(far, 512)], true), (1, 1));
    assert_eq!(disk.request(READ, 0, &[(far, 511)], true), (1, 1));
    assert_eq!(disk.request(OUT, 0, &[], false), (1, 1));
    let errors = served.engine.clients.errors(FrontEnd::VhostUser, "");
    assert_eq!((errors.of(Cause::Invalid), errors.of(Cause::Unsupported)), (5, 2));
    let found = served.engine.clients.list();
    let socket = served.socket().display().to_string();
    assert_eq!((found.len(), &found[0].peer, found[0].client.clone()), (1, &socket, Some(format!("{socket}@default"))));
    served.end();
    assert!(served.engine.clients.is_empty());
    let lines = served.lines.lock().unwrap();
    assert!(lines.iter().all(|(level, _)| *level == Level::Info), "{lines:?}");
}

/// Red if two rings on two threads disturb one another, or if a ring that goes on later has lost its place.
#[test]
fn several_rings_are_served_by_several_threads() {
    let served = Served::new("ram,size=1M", |device| (device.nr_queues, device.nr_threads) = (3, 2));
    let (guest, mut front) = served.front();
    assert_eq!(front.get_queue_num().unwrap(), 3);
    let mut disks: Vec<_> =
        (0..3).map(|number| Disk::new(&mut front, guest.beside(APART * number as u64), number)).collect();
    for turn in 0..100 {
        for disk in &mut disks {
            let far = disk.data() + 0x1000;
            disk.fill(far, 512, turn + disk.number as u8);
            disk.ask(OUT, disk.number as u64, 0, &[(far, 512)], false);
        }
        disks.iter_mut().for_each(|disk| assert_eq!(disk.wait(), (0, 1)));
        for disk in &mut disks {
            let far = disk.data() + 0x2000;
            assert_eq!(disk.request(READ, disk.number as u64, &[(far, 512)], true), (0, 513));
            assert_eq!(disk.bytes(far, 512), [turn + disk.number as u8; 512]);
        }
        if turn % 10 == 0 {
            // As QEMU does when the machine is stopped and goes on, and when it gets more memory.
            let disk = &mut disks[2];
            let base = front.get_vring_base(2).unwrap();
            assert_eq!(base, u32::from(disk.seen));
            disk.start(&mut front, base);
            front.set_mem_table(&[region(&guest)]).unwrap();
        }
    }
    assert_eq!(served.errors(), 0);
}

/// Red if packed rings are not served, go on elsewhere after a stop, or are offered where they are not wanted.
#[test]
fn packed_rings_are_served_where_they_are_wanted() {
    let served = Served::new("ram,size=1M", |device| device.packed = true);
    let (mut front, mut disk) = served.machine_of(Guest::new(8, true, true), 0);
    let far = disk.data() + 0x1000;
    for turn in 0..50 {
        disk.fill(far, 512, turn);
        assert_eq!(disk.request(OUT, 1, &[(far, 512)], false), (0, 1));
        assert_eq!(disk.request(READ, 1, &[(far + 0x1000, 512)], true), (0, 513));
        assert_eq!(disk.bytes(far + 0x1000, 512), [turn; 512]);
        if turn % 7 == 0 {
            let base = front.get_vring_base(0).unwrap();
            assert_eq!((base >> 16, base & 0x7fff), (base & 0xffff, u32::from(disk.seen % 8)));
            disk.start(&mut front, base);
        }
    }
    assert_eq!(served.errors(), 0);
    let split = Served::new("ram,size=1M", |_| ());
    let front = Frontend::connect(split.socket(), 8).unwrap();
    assert!(!has(front.get_features().unwrap(), VIRTIO_F_RING_PACKED));
}

/// A chain that no driver makes ends the connection, with a line that says why, and the next front-end is served.
#[test]
fn a_hostile_guest_ends_its_session_and_no_more() {
    let mut served = Served::new("ram,size=1M", |_| ());
    let (front, mut disk) = served.machine(0);
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
    disk.ask(READ, 0, 0, &[(END - 1, 512)], true);
    served.warns("ring 0: a descriptor of 512 bytes at 0x7ffff");
    assert!(front.get_features().is_err(), "the connection is over");
    served.serves_another();
    served.end();
}

/// Red if the configuration is not the device's, if more than it cannot be asked for, or if a change of what cannot be
/// changed is believed.
#[test]
fn the_configuration_is_told_and_not_changed() {
    let served = Served::new("ram,size=1M", |device| device.nr_queues = 5);
    let (guest, mut front) = served.front();
    let config = |front: &mut Frontend, len: u32| {
        let flags = VhostUserConfigFlags::empty();
        front.get_config(0, len, flags, &vec![0; len as usize]).map(|(_, bytes)| bytes)
    };
    let all = config(&mut front, 256).unwrap();
    assert_eq!((all.len(), &all[..8], &all[34..36]), (256, &2048_u64.to_le_bytes()[..], &[5, 0][..]));
    assert_eq!(config(&mut front, SIZE as u32).unwrap(), all[..SIZE]);
    drop(front);
    // The front-end above waits forever for an answer of no length.
    let mut client = UnixStream::connect(served.socket()).unwrap();
    let words = [24_u32, 1, 12 + 257, 0, 257, 0].map(u32::to_le_bytes);
    client.write_all(&[words.as_flattened(), &[0; 257]].concat()).unwrap();
    let mut answer = [0; 24];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *[24_u32, 5, 12, 0, 0, 0].map(u32::to_le_bytes).as_flattened());
    drop(client);
    let mut front = connect(&served.socket(), &guest, 0);
    front.set_config(0, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    served.warns("1 bytes of the configuration at 0 to be changed");
}

#[test]
fn a_read_only_device_is_not_written() {
    let served = Served::new("ram,size=1M", |device| device.read_only = true);
    let (front, mut disk) = served.machine(0);
    let features = front.get_features().unwrap();
    assert!(has(features, VIRTIO_BLK_F_RO) && !has(features, VIRTIO_BLK_F_FLUSH));
    let data = disk.data() + 0x1000;
    for kind in [OUT, DISCARD, ZEROES] {
        assert_eq!(disk.request(kind, 0, &[(data, 512)], false), (1, 1));
    }
    assert_eq!(disk.request(READ, 0, &[(data, 512)], true), (0, 513));
}

/// Red if front-ends that break the protocol end more than themselves, or do it without a word.
#[test]
fn messages_that_cannot_be_end_their_session() {
    let served = Served::new("ram,size=1M", |_| ());
    let front = connect(&served.socket(), &Guest::new(8, false, true), 0);
    front.set_vring_num(7, 8).unwrap();
    served.warns("ring 7 of 1 rings");
    drop(front);
    let front = Frontend::connect(served.socket(), 8).unwrap();
    front.set_features(1 << 63).unwrap();
    served.warns("which were not offered");
    drop(front);
    let mut client = UnixStream::connect(served.socket()).unwrap();
    client.write_all(&[0xff; 64]).unwrap();
    served.warns("flags");
}

/// Red before lines were counted instead of written: a front-end that connects again and again, and goes wrong each
/// time, filled the log.
#[test]
fn a_front_end_that_always_goes_wrong_does_not_fill_the_log() {
    let served = Served::new("ram,size=1M", |_| ());
    for _ in 0..500 {
        let mut client = UnixStream::connect(served.socket()).unwrap();
        client.write_all(&[0xff; 64]).unwrap();
        // The answer is the end, which comes before the line.
        let _ = client.read(&mut [0]);
    }
    let nr_warnings = || served.lines.lock().unwrap().iter().filter(|(level, _)| *level == Level::Warning).count();
    assert!((1..250).contains(&nr_warnings()), "{} lines", nr_warnings());
}

/// Red if the guest's priority rises above the client's. Red before a request that tells none was best effort: it had
/// the client's, so what an export with rt/0 got from a guest that does not say `be` went before all that says it.
#[test]
fn the_guests_priority_counts_if_that_is_wanted() {
    use blkmq::Class::{BestEffort, Idle, RealTime};
    let best = IoPriority { class: BestEffort, level: 2 };
    let of = |class: u32, level: u32| crate::ring_server::priority_of(class << 13 | level, best);
    assert_eq!(of(0, 0), IoPriority { class: BestEffort, level: 4 });
    assert_eq!(of(1, 7), best);
    assert_eq!(of(2, 1), best);
    assert_eq!(of(2, 5), IoPriority { class: BestEffort, level: 5 });
    assert_eq!(of(3, 0), IoPriority { class: Idle, level: 0 });
    let best = IoPriority { class: Idle, level: 0 };
    assert_eq!(crate::ring_server::priority_of(0, best), best);
    let best = IoPriority { class: RealTime, level: 0 };
    assert_eq!(crate::ring_server::priority_of(1 << 13 | 3, best), IoPriority { class: RealTime, level: 3 });
    assert_eq!(crate::ring_server::priority_of(0, best), IoPriority { class: BestEffort, level: 4 });
}

/// `VIRTIO_BLK_F_REQ_FLAGS` makes the field in which Linux tells the priority one of flags. Red if a guest can agree on
/// that where the server reads a priority there: a write that is to be durable would be one of another priority.
#[test]
fn the_field_of_the_priority_is_never_one_of_flags() {
    const REQ_FLAGS: u64 = 1 << 18;
    let served = Served::new("ram,size=1M", |device| device.guest_priority = true);
    let front = Frontend::connect(served.socket(), 8).unwrap();
    let offered = front.get_features().unwrap();
    assert_eq!(offered & REQ_FLAGS, 0);
    front.set_features(offered | REQ_FLAGS).unwrap();
    served.warns("features 0x40000, which were not offered");
}
