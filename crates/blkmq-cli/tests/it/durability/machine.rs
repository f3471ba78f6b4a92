//! A client behind vhost-user: a machine's driver with a ring of its own, and its front-end.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::durability::ledger::SECTOR;
use crate::durability::load::{Kind, Operation, Port};

/// Requests at a time. Each has three descriptors, a place for its header and status, and one for its data.
const REQUESTS: u16 = 16;
/// Descriptors of the ring.
const SIZE: u16 = 64;
/// Where the parts of the ring are in the machine's memory.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x3000;
const DATA: u64 = 0x10000;
/// Bytes of a request's data at most.
const MOST: u64 = 0x10000;
const END: u64 = DATA + MOST * REQUESTS as u64;
/// Where the front-end has the machine's memory.
const USER: u64 = 1 << 40;

/// Features that are not taken: notifications by index, and a cache that has to be flushed.
const EVENT_IDX: u64 = 1 << 29;
const FLUSH: u64 = 1 << 9;

/// Flags of descriptors: there is a next one, and the device writes.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A machine with one disk, whose memory is a file of this process.
pub(crate) struct Machine {
    front: Frontend,
    memory: File,
    kick: EventFd,
    /// Requests that were made available, and answers that were seen.
    nr_asked: u16,
    nr_seen: u16,
    /// The cookie of the request that has the place.
    cookies: Vec<Option<u64>>,
    is_write_through: bool,
    is_gone: Arc<AtomicBool>,
}

impl Machine {
    /// Connects, and starts the ring. `is_write_through`: the machine does not flush. `is_gone`: the server has ended.
    pub(crate) fn new(socket: &Path, is_write_through: bool, is_gone: &Arc<AtomicBool>) -> Self {
        let memory = memfd_create("machine", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("there is memory");
        let memory = File::from(memory);
        memory.set_len(END).expect("there is memory");
        fcntl_add_seals(&memory, SealFlags::SHRINK).expect("it may be sealed");
        let front = Frontend::connect(socket, 1).expect("the server listens");
        let kick = EventFd::new(0).expect("there are descriptors");
        let cookies = vec![None; REQUESTS.into()];
        let is_gone = Arc::clone(is_gone);
        let mut machine = Self { front, memory, kick, nr_asked: 0, nr_seen: 0, cookies, is_write_through, is_gone };
        machine.start().expect("the server agrees");
        machine
    }

    fn start(&mut self) -> vhost::Result<()> {
        let Self { front, memory, kick, is_write_through, .. } = self;
        front.set_owner()?;
        let features = front.get_features()? & !(EVENT_IDX | if *is_write_through { FLUSH } else { 0 });
        let protocol = front.get_protocol_features()?;
        front.set_protocol_features(protocol & !VhostUserProtocolFeatures::BACKEND_REQ)?;
        front.set_features(features)?;
        front.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: END,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        }])?;
        front.set_vring_num(0, SIZE)?;
        front.set_vring_base(0, 0)?;
        front.set_vring_addr(
            0,
            &VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: USER + DESCRIPTORS,
                used_ring_addr: USER + USED,
                avail_ring_addr: USER + AVAILABLE,
                log_addr: None,
            },
        )?;
        front.set_vring_kick(0, kick)?;
        front.set_vring_enable(0, true)
    }

    /// Sectors of the disk.
    pub(crate) fn capacity(&mut self) -> u64 {
        let flags = VhostUserConfigFlags::empty();
        let (_, bytes) = self.front.get_config(0, 8, flags, &[0; 8]).expect("the server answers");
        u64::from_le_bytes(bytes.try_into().expect("as many as were asked for"))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("it is memory");
    }

    fn get<const LEN: usize>(&self, at: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.memory.read_exact_at(&mut bytes, at).expect("it is memory");
        bytes
    }

    /// Writes a descriptor. The last of a chain has no next one.
    fn describe(&self, number: u16, (at, len): (u64, u32), flags: u16) {
        let next = if flags & NEXT != 0 { number + 1 } else { 0 };
        let (start, rest) = (at.to_le_bytes(), [flags.to_le_bytes(), next.to_le_bytes()]);
        self.put(DESCRIPTORS + 16 * u64::from(number), &[&start[..], &len.to_le_bytes(), rest.as_flattened()].concat());
    }
}

impl Port for Machine {
    const HAS_PREFLUSH: bool = false;

    /// The protocol has no request that is durable by itself. Without flushes all are.
    fn is_durable(&self, _kind: Kind, _wished: bool) -> bool {
        self.is_write_through
    }

    /// A driver sends zeroes as data where the device makes none.
    fn ask(&mut self, operation: &Operation, cookie: u64, data: &[u8]) -> bool {
        let place = self.cookies.iter().position(Option::is_none).expect("there are as many places as requests") as u16;
        self.cookies[usize::from(place)] = Some(cookie);
        let (head, header, body) = (3 * place, HEADERS + 32 * u64::from(place), DATA + MOST * u64::from(place));
        let sector = (operation.bytes.start / SECTOR) as u64;
        let range = [sector.to_le_bytes(), ((operation.bytes.len() / SECTOR) as u64).to_le_bytes()];
        let zeroes = vec![0; operation.bytes.len()];
        let (kind, data) = match operation.kind {
            Kind::Write => (1, data),
            Kind::Zero => (1, &zeroes[..]),
            Kind::Flush => (4, &[][..]),
            Kind::Discard => (11, range.as_flattened()),
        };
        let sector = if kind == 1 { sector } else { 0 };
        self.put(header, &[u64::to_le_bytes(kind), sector.to_le_bytes(), [0xff; 8]].concat());
        self.describe(head, (header, 16), NEXT);
        let mut last = head + 1;
        if !data.is_empty() {
            self.put(body, data);
            self.describe(last, (body, data.len() as u32), NEXT);
            last += 1;
        }
        self.describe(last, (header + 16, 1), WRITE);
        self.put(AVAILABLE + 4 + 2 * u64::from(self.nr_asked % SIZE), &head.to_le_bytes());
        self.nr_asked = self.nr_asked.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.nr_asked.to_le_bytes());
        self.kick.write(1).expect("the count is far from its end");
        !self.is_gone.load(Ordering::Relaxed)
    }

    fn answer(&mut self) -> Option<(u64, bool)> {
        while u16::from_le_bytes(self.get(USED + 2)) == self.nr_seen {
            if self.is_gone.load(Ordering::Relaxed) {
                return None;
            }
            thread::sleep(Duration::from_micros(20));
        }
        let head = u32::from_le_bytes(self.get(USED + 4 + 8 * u64::from(self.nr_seen % SIZE)));
        self.nr_seen = self.nr_seen.wrapping_add(1);
        let place = head / 3;
        let [status] = self.get(HEADERS + 32 * u64::from(place) + 16);
        self.cookies[place as usize].take().map(|cookie| (cookie, status == 0))
    }
}
