//! A guest that lays out rings in memory, and what the device makes of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::inflight::Inflight;
use crate::memory::tests::{file, info};
use crate::memory::{Area, Memory, NoMemory};
use crate::virtqueue::{Taken, Virtqueue};

/// Where the parts of a ring lie, and where data and tables may.
pub(crate) const DESCRIPTORS: u64 = 0x1000;
pub(crate) const DRIVER: u64 = 0x8000;
pub(crate) const DEVICE: u64 = 0xc000;
pub(crate) const DATA: u64 = 0x10000;
pub(crate) const END: u64 = 0x80000;

/// A guest, which sees all of its memory as one area.
pub(crate) struct Guest {
    pub(crate) memory: Arc<Memory>,
    pub(crate) all: Area,
    pub(crate) layout: Layout,
    /// The memory as another process can map it.
    pub(crate) file: OwnedFd,
    /// The index of what is available, or the next place of a packed ring with its lap.
    next: u16,
    lap: bool,
}

/// A descriptor: address, length, flags, next.
pub(crate) type Entry = (u64, u32, u16, u16);

impl Guest {
    pub(crate) fn new(size: u16, is_packed: bool, has_event_idx: bool) -> Self {
        let mut memory = Memory::default();
        let file = file(END);
        memory.add(info(0, END), file.try_clone().unwrap()).unwrap();
        let layout = Layout {
            size,
            descriptors: DESCRIPTORS,
            driver: DRIVER,
            device: DEVICE,
            is_packed,
            has_event_idx,
            has_indirect: true,
        };
        let all = memory.area(0, END as usize, 8).unwrap();
        Self { memory: Arc::new(memory), all, layout, file, next: 0, lap: true }
    }

    /// The same guest's ring at other places, so many bytes further on.
    pub(crate) fn beside(&self, bytes: u64) -> Self {
        let layout = Layout {
            descriptors: self.layout.descriptors + bytes,
            driver: self.layout.driver + bytes,
            device: self.layout.device + bytes,
            ..self.layout
        };
        let (memory, all, file) = (Arc::clone(&self.memory), self.all.clone(), self.file.try_clone().unwrap());
        Self { memory, all, layout, file, next: 0, lap: true }
    }

    /// The guest's virtqueue, without a record.
    pub(crate) fn ring(&self) -> Virtqueue {
        self.recorded_ring(None)
    }

    /// Its virtqueue as the next server finds it.
    pub(crate) fn recorded_ring(&self, inflight: Option<&Inflight>) -> Virtqueue {
        let base = if self.layout.is_packed { 0x8000_8000 } else { 0 };
        Virtqueue::new(0, &self.memory, &self.layout, base, inflight).unwrap()
    }

    /// Writes descriptors as split rings and their tables have them.
    pub(crate) fn table(&self, address: u64, entries: &[Entry]) {
        for (index, &(start, len, flags, next)) in entries.iter().enumerate() {
            let at = address as usize + 16 * index;
            self.all.write(at, start.to_le_bytes());
            self.all.write(at + 8, len.to_le_bytes());
            let [last, third] = if self.layout.is_packed { [flags, next] } else { [next, flags] };
            self.all.write(at + 12, third.to_le_bytes());
            self.all.write(at + 14, last.to_le_bytes());
        }
    }

    /// Makes a head of a split ring available.
    pub(crate) fn offer(&mut self, head: u16) {
        let at = self.layout.driver as usize + 4 + 2 * usize::from(self.next % self.layout.size);
        self.all.write(at, head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.set_index(self.next);
    }

    fn set_index(&self, index: u16) {
        self.all.write(self.layout.driver as usize + 2, index.to_le_bytes());
    }

    /// Makes descriptors of a packed ring available, one behind the other, as a chain with this id.
    pub(crate) fn offer_packed(&mut self, id: u16, entries: &[Entry]) {
        for (at, &(start, len, flags, _)) in entries.iter().enumerate() {
            let flags = flags | if at + 1 < entries.len() { NEXT } else { 0 } | if self.lap { 1 << 7 } else { 1 << 15 };
            self.table(self.layout.descriptors + 16 * u64::from(self.next), &[(start, len, flags, id)]);
            self.next += 1;
            if self.next == self.layout.size {
                (self.next, self.lap) = (0, !self.lap);
            }
        }
    }

    pub(crate) fn fill(&self, at: u64, len: usize, byte: impl Fn(usize) -> u8) {
        (0..len).for_each(|offset| self.all.write(at as usize + offset, byte(offset)));
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        (0..len).map(|offset| self.all.read(at as usize + offset)).collect()
    }

    /// Writes ranges of a discard, or of zeroes: the first sector, and in one number how many and the flags.
    pub(crate) fn write_ranges(&self, at: u64, ranges: &[[u64; 2]]) {
        let numbers = ranges.as_flattened().iter().zip((at as usize..).step_by(8));
        numbers.for_each(|(number, at)| self.all.write(at, number.to_le_bytes()));
    }

    pub(crate) fn number(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.all.read(at as usize))
    }

    /// What was given back at a place: id and length.
    pub(crate) fn used(&self, at: u16) -> (u32, u32) {
        let at = self.layout.device as usize + 4 + 8 * usize::from(at % self.layout.size);
        (u32::from_le_bytes(self.all.read(at)), u32::from_le_bytes(self.all.read(at + 4)))
    }
}

fn lens(pieces: &[crate::memory::Piece]) -> Vec<u32> {
    pieces.iter().map(|piece| piece.len).collect()
}

fn take(ring: &mut Virtqueue, guest: &Guest) -> Result<Option<Chain>, Fault> {
    let mut chain = Chain::default();
    ring.take(&guest.memory, &mut chain).map(|taken| taken.map(|_| chain))
}

/// The fault of what the guest has made available.
fn fault_of(guest: &Guest) -> Fault {
    take(&mut guest.ring(), guest).map(|_| ()).unwrap_err()
}

fn put(ring: &mut Virtqueue, id: u16, nr_descriptors: u16, len: u32) {
    ring.put(Taken { id, nr_descriptors, entry: 0 }, len);
}

/// Red if the order, the direction or the length of descriptors is lost, or if a chain that was given back is not shown
/// where the guest looks for it.
#[test]
fn a_split_ring_goes_round_and_round() {
    let mut guest = Guest::new(4, false, false);
    let mut ring = guest.ring();
    guest.table(DESCRIPTORS, &[(DATA, 16, NEXT, 2), (0, 0, 0, 0), (DATA + 64, 512, NEXT, 3), (DATA, 1, WRITE, 0)]);
    for turn in 0..70_000_u32 {
        assert!(take(&mut ring, &guest).unwrap().is_none());
        guest.offer(0);
        let chain = take(&mut ring, &guest).unwrap().unwrap();
        assert_eq!((chain.id, lens(&chain.readable), lens(&chain.writable)), (0, vec![16, 512], vec![1]));
        put(&mut ring, 0, 3, turn);
        assert_eq!(guest.number(DEVICE + 2), turn as u16, "the guest sees nothing yet");
        assert!(ring.publish());
        assert_eq!((guest.number(DEVICE + 2), guest.used(turn as u16)), ((turn + 1) as u16, (0, turn)));
        assert!(!ring.publish(), "nothing new");
    }
    assert_eq!(ring.base(), 70_000 % 65536);
}

/// Red if a guest that waits for an event is told too early or never, and one that wants nothing is told.
#[test]
fn a_guest_is_told_when_it_wants_to_be() {
    let told = |has_event_idx, wish: &[(u64, u16)]| {
        let mut guest = Guest::new(8, false, has_event_idx);
        guest.table(DESCRIPTORS, &[(DATA, 16, 0, 0), (DATA, 16, 0, 0), (DATA, 16, 0, 0)]);
        let mut ring = guest.ring();
        let mut found = Vec::new();
        for (head, (at, value)) in wish.iter().enumerate() {
            guest.all.write(*at as usize, value.to_le_bytes());
            guest.offer(head as u16);
            take(&mut ring, &guest).unwrap().unwrap();
            put(&mut ring, head as u16, 1, 0);
            found.push(ring.publish());
        }
        found
    };
    assert_eq!(told(false, &[(DRIVER, 0), (DRIVER, 1), (DRIVER, 0)]), [true, false, true]);
    let event = DRIVER + 4 + 16;
    assert_eq!(told(true, &[(event, 1), (event, 1), (event, 1)]), [false, true, false]);
    assert_eq!(told(true, &[(event, 0), (event, 0), (event, 2)]), [true, false, true]);
}

/// Red if a guest is not asked to kick before the device sleeps, or kicks a device that is awake.
#[test]
fn a_guest_is_asked_to_kick_by_a_device_that_sleeps() {
    let mut guest = Guest::new(8, false, false);
    guest.table(DESCRIPTORS, &[(DATA, 16, 0, 0)]);
    let mut ring = guest.ring();
    assert_eq!(ring.ask_for_kicks(), Ok(false));
    ring.refuse_kicks();
    assert_eq!(guest.number(DEVICE), 1);
    assert_eq!((ring.ask_for_kicks(), guest.number(DEVICE)), (Ok(false), 0));
    guest.offer(0);
    assert_eq!(ring.ask_for_kicks(), Ok(true), "it came before the guest could see the wish");
    let mut guest = Guest::new(8, false, true);
    guest.table(DESCRIPTORS, &[(DATA, 16, 0, 0)]);
    let mut ring = guest.ring();
    guest.offer(0);
    take(&mut ring, &guest).unwrap().unwrap();
    assert_eq!((ring.ask_for_kicks(), guest.number(DEVICE + 4 + 64)), (Ok(false), 1));
}

/// The last device was killed while it was awake, and left its refusal in the guest's memory. Red before a ring that
/// begins wrote its wish: the guest never kicked again.
#[test]
fn a_refusal_of_the_last_device_does_not_stay() {
    for (is_packed, has_event_idx, at) in
        [(false, false, DEVICE), (true, false, DEVICE + 2), (true, true, DEVICE + 2), (false, true, DEVICE)]
    {
        let guest = Guest::new(8, is_packed, has_event_idx);
        let mut ring = guest.ring();
        ring.ask_for_kicks().unwrap();
        ring.refuse_kicks();
        let is_refused = is_packed || !has_event_idx;
        assert_eq!(guest.number(at), u16::from(is_refused), "{is_packed} {has_event_idx}");
        let mut next = guest.ring();
        assert_eq!(next.ask_for_kicks(), Ok(false));
        let wish = if is_packed && has_event_idx { 2 } else { 0 };
        assert_eq!(guest.number(at), wish, "{is_packed} {has_event_idx}");
    }
}

/// A guest that offers again what it has not been shown. Red before what is hidden counted: the record of what is in
/// progress had no room for it, and the worker panicked.
#[test]
fn a_packed_ring_takes_nothing_in_place_of_what_it_hides() {
    let mut guest = Guest::new(8, true, true);
    let mut ring = guest.ring();
    guest.offer_packed(0, &[(DATA, 16, 0, 0); 8]);
    let chain = take(&mut ring, &guest).unwrap().unwrap();
    put(&mut ring, chain.id, chain.nr_descriptors, 0);
    guest.offer_packed(0, &[(DATA, 16, 0, 0); 8]);
    assert_eq!(take(&mut ring, &guest).map(|_| ()).unwrap_err(), Fault::TooManyAvailable(8));
}

/// What a guest can write into a ring that no driver would. Each is told apart, and nothing else happens.
#[test]
fn hostile_chains_are_faults() {
    let fault = |entries: &[Entry], head: u16| {
        let mut guest = Guest::new(4, false, false);
        guest.table(DESCRIPTORS, entries);
        guest.offer(head);
        fault_of(&guest)
    };
    let none = |address, len| Fault::Memory(NoMemory { address, len });
    assert_eq!(fault(&[(DATA, 16, NEXT, 1), (DATA, 16, NEXT, 0)], 0), Fault::TooLong, "a loop");
    assert_eq!(fault(&[(DATA, 16, NEXT, 0)], 0), Fault::TooLong, "a loop of one");
    assert_eq!(fault(&[(DATA, 16, NEXT, 4)], 0), Fault::Index(4));
    assert_eq!(fault(&[], 4), Fault::Index(4));
    assert_eq!(fault(&[(DATA, 16, WRITE | NEXT, 1), (DATA, 16, 0, 0)], 0), Fault::Order);
    assert_eq!(fault(&[(DATA, 0, 0, 0)], 0), Fault::Empty);
    assert_eq!(fault(&[(END, 1, 0, 0)], 0), none(END, 1));
    assert_eq!(fault(&[(END - 1, 2, 0, 0)], 0), none(END - 1, 2));
    assert_eq!(fault(&[(u64::MAX, 2, 0, 0)], 0), none(u64::MAX, 2));
    assert_eq!(fault(&[(DATA, u32::MAX, 0, 0)], 0), Fault::TooLong);
    assert_eq!(fault(&[(DATA, 16, INDIRECT | NEXT, 1)], 0), Fault::Table);
    for len in [0, 15, 17, 16 * 1025] {
        assert_eq!(fault(&[(DATA, len, INDIRECT, 0)], 0), Fault::TableLength(len));
    }
    assert_eq!(fault(&[(END, 16, INDIRECT, 0)], 0), none(END, 16));
    assert_eq!(fault(&[(u64::MAX - 3, 16, INDIRECT, 0)], 0), none(u64::MAX - 3, 16));
}

#[test]
fn hostile_tables_are_faults() {
    let fault = |table: &[Entry], is_packed| {
        let mut guest = Guest::new(4, is_packed, false);
        guest.table(DATA, table);
        let entry = (DATA, 16 * table.len() as u32, INDIRECT, 0);
        if is_packed {
            guest.offer_packed(0, &[entry]);
        } else {
            guest.table(DESCRIPTORS, &[entry]);
            guest.offer(0);
        }
        fault_of(&guest)
    };
    assert_eq!(fault(&[(DATA, 16, NEXT, 1), (DATA, 16, NEXT, 0)], false), Fault::TooLong, "a loop");
    assert_eq!(fault(&[(DATA, 16, NEXT, 2), (DATA, 16, 0, 0)], false), Fault::Index(2));
    for is_packed in [false, true] {
        assert_eq!(fault(&[(DATA, 16, INDIRECT, 0)], is_packed), Fault::Table);
        let order = [(DATA, 16, WRITE | NEXT, 1), (DATA, 16, 0, 0)];
        assert_eq!(fault(&order, is_packed), Fault::Order);
        assert_eq!(fault(&[(DATA, 0, 0, 0)], is_packed), Fault::Empty);
    }
}

/// Red if the index of what is available is believed, or if a chain can be had twice.
#[test]
fn games_with_the_index_are_faults() {
    let guest = Guest::new(4, false, false);
    guest.table(DESCRIPTORS, &[(DATA, 16, 0, 0)]);
    let mut ring = guest.ring();
    guest.set_index(5);
    assert_eq!(take(&mut ring, &guest).unwrap_err(), Fault::TooManyAvailable(5));
    guest.set_index(u16::MAX);
    assert_eq!(fault_of(&guest), Fault::TooManyAvailable(u16::MAX));
    let mut guest = Guest::new(4, false, false);
    guest.table(DESCRIPTORS, &[(DATA, 16, 0, 0)]);
    let mut ring = guest.ring();
    guest.offer(0);
    guest.offer(0);
    assert!(take(&mut ring, &guest).unwrap().is_some());
    assert_eq!(take(&mut ring, &guest).unwrap_err(), Fault::Repeated(0));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let guest = Guest::new(4, false, true);
    let fault = |change: fn(&mut Layout)| {
        let mut layout = guest.layout;
        change(&mut layout);
        Virtqueue::new(0, &guest.memory, &layout, 0, None).unwrap_err()
    };
    let place = |address, len| Fault::Place(NoMemory { address, len });
    assert_eq!(fault(|layout| layout.size = 3), Fault::Size(3));
    assert_eq!(fault(|layout| layout.size = 0), Fault::Size(0));
    assert_eq!(fault(|layout| layout.descriptors = DESCRIPTORS + 8), place(DESCRIPTORS + 8, 64));
    assert_eq!(fault(|layout| layout.driver = DRIVER + 1), place(DRIVER + 1, 14));
    assert_eq!(fault(|layout| layout.device = END - 4), place(END - 4, 38));
    assert_eq!(fault(|layout| (layout.is_packed, layout.size) = (true, 0)), Fault::Size(0));
    let packed = Layout { is_packed: true, ..guest.layout };
    assert!(Virtqueue::new(0, &guest.memory, &packed, 4, None).is_err(), "a place behind the end");
}

/// Red if a packed ring loses its lap, gives chains back at the wrong place, or shows a part of what it gives back
/// together.
#[test]
fn a_packed_ring_goes_round_and_round() {
    let mut guest = Guest::new(5, true, false);
    let mut ring = guest.ring();
    let flags = |guest: &Guest, at: u16| guest.number(DESCRIPTORS + 16 * u64::from(at) + 14);
    let (mut at, mut lap) = (0, true);
    for turn in 0..1000_u16 {
        assert!(take(&mut ring, &guest).unwrap().is_none());
        guest.offer_packed(turn, &[(DATA, 16, 0, 0), (DATA, 8, WRITE, 0)]);
        guest.offer_packed(turn + 1, &[(DATA, 7, 0, 0)]);
        let first = take(&mut ring, &guest).unwrap().unwrap();
        let second = take(&mut ring, &guest).unwrap().unwrap();
        assert_eq!((first.id, lens(&first.readable), lens(&first.writable)), (turn, vec![16], vec![8]));
        assert_eq!((second.id, lens(&second.readable), second.nr_descriptors), (turn + 1, vec![7], 1));
        put(&mut ring, second.id, second.nr_descriptors, 9);
        put(&mut ring, first.id, first.nr_descriptors, 0);
        let used = |lap| if lap { 1 << 7 | 1 << 15 } else { 0 };
        assert_ne!(flags(&guest, at) & (1 << 7 | 1 << 15), used(lap), "the guest sees nothing yet");
        assert!(ring.publish());
        assert_eq!(flags(&guest, at), used(lap) | WRITE);
        assert_eq!(guest.number(DESCRIPTORS + 16 * u64::from(at) + 12), turn + 1);
        let next = (at + 1) % 5;
        assert_eq!(flags(&guest, next), used(lap ^ (next < at)));
        assert_eq!(guest.number(DESCRIPTORS + 16 * u64::from(next) + 12), turn);
        lap ^= at + 3 >= 5;
        at = (at + 3) % 5;
        assert_eq!(ring.base() as u16, at | if lap { 1 << 15 } else { 0 });
        assert_eq!(ring.base() >> 16, ring.base() & 0xffff);
    }
}

#[test]
fn hostile_packed_rings_are_faults() {
    let available = |next| (DATA, 16, next | 1 << 7, 0);
    let fault = |entries: &[Entry]| {
        let guest = Guest::new(3, true, false);
        guest.table(DESCRIPTORS, entries);
        fault_of(&guest)
    };
    assert_eq!(fault(&[available(NEXT); 3]), Fault::Unfinished, "the fourth is the first, of the next lap");
    assert_eq!(fault(&[available(NEXT)]), Fault::Unfinished);
    assert_eq!(fault(&[available(INDIRECT | NEXT)]), Fault::Table);
    // What the device has is made available once more, in the next lap.
    let mut guest = Guest::new(3, true, false);
    let mut ring = guest.ring();
    for id in 0..4 {
        guest.offer_packed(id, &[(DATA, 16, 0, 0)]);
        match take(&mut ring, &guest) {
            Ok(chain) => assert!(id < 3 && chain.is_some()),
            Err(fault) => assert_eq!((id, fault), (3, Fault::TooManyAvailable(3))),
        }
    }
}

/// Red if the guest's wish for one descriptor is not understood across a lap, or if the device does not ask for kicks.
#[test]
fn both_sides_of_a_packed_ring_are_told_when_they_want_to_be() {
    let mut guest = Guest::new(4, true, true);
    let mut ring = guest.ring();
    let mut told = |wish: u16, flags: u16| {
        guest.all.write(DRIVER as usize, wish.to_le_bytes());
        guest.all.write(DRIVER as usize + 2, flags.to_le_bytes());
        guest.offer_packed(0, &[(DATA, 16, 0, 0)]);
        take(&mut ring, &guest).unwrap().unwrap();
        put(&mut ring, 0, 1, 0);
        ring.publish()
    };
    let lap = 1 << 15;
    assert_eq!([told(lap | 1, 2), told(lap | 1, 2), told(0, 1), told(0, 0)], [false, true, false, true]);
    // The second lap.
    assert_eq!([told(0, 2), told(0, 2), told(2, 2), told(lap | 1, 2)], [true, false, true, false]);
    assert_eq!(ring.ask_for_kicks(), Ok(false));
    assert_eq!((guest.number(DEVICE), guest.number(DEVICE + 2)), (lap, 2));
    ring.refuse_kicks();
    assert_eq!(guest.number(DEVICE + 2), 1);
    guest.offer_packed(0, &[(DATA, 16, 0, 0)]);
    assert_eq!(ring.ask_for_kicks(), Ok(true));
}

/// A walk as plain as can be: all descriptors of a chain in order, or nothing if anything is wrong.
fn walk(entries: &[Entry], tables: &[Vec<Entry>], head: u16, size: u16) -> Option<Vec<(u64, u32, bool)>> {
    let (mut index, mut found, mut nr) = (usize::from(head), Vec::new(), 0);
    loop {
        let &(address, len, flags, next) = entries.get(index).filter(|_| index < usize::from(size))?;
        nr += 1;
        if nr > size {
            return None;
        }
        if flags & INDIRECT == 0 {
            found.push((address, len, flags & WRITE != 0));
        } else {
            let table = tables.iter().enumerate().find(|(at, _)| address == table_at(*at)).map(|(_, table)| table)?;
            if flags & NEXT != 0 || len as usize != 16 * table.len() || table.is_empty() {
                return None;
            }
            let mut inner = 0;
            for step in 0.. {
                let &(address, len, flags, next) = table.get(inner)?;
                if flags & INDIRECT != 0 || step > MAX_CHAIN {
                    return None;
                }
                found.push((address, len, flags & WRITE != 0));
                if flags & NEXT == 0 {
                    break;
                }
                inner = next.into();
            }
        }
        if flags & NEXT == 0 {
            break;
        }
        index = next.into();
    }
    let is_memory = found.iter().all(|&(address, len, _)| len > 0 && address < END && u64::from(len) <= END - address);
    let is_ordered = found.is_sorted_by_key(|&(_, _, is_write)| is_write);
    let is_short = found.len() <= MAX_CHAIN && found.iter().map(|&(_, len, _)| u64::from(len)).sum::<u64>() <= 1 << 30;
    (is_memory && is_ordered && is_short).then_some(found)
}

fn table_at(index: usize) -> u64 {
    DATA + 0x1000 * index as u64
}

/// Random chains, most of them nearly right, against a plain walk.
#[test]
fn chains_are_what_a_plain_walk_finds() {
    let seed = std::env::var("BLKMQ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x7ee1_u64);
    println!("BLKMQ_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut draw = |most: u64| random.random_range(0..most);
    let (mut nr_good, mut nr_bad) = (0, 0);
    for _ in 0..5000 {
        let size = 1 << draw(4);
        let mut entries = |nr: u64, has_tables: bool| -> Vec<Entry> {
            let writes_from = draw(nr + 1);
            let entry = |at: u64| {
                let address = if draw(40) == 0 { END - draw(600) } else { DATA + draw(0x10000) };
                let len = if draw(40) == 0 { draw(2) as u32 } else { 1 + draw(512) as u32 };
                let mut flags = if at + 1 < nr && draw(12) > 0 { NEXT } else { 0 };
                flags |= if (at >= writes_from) != (draw(40) == 0) { WRITE } else { 0 };
                let next = if draw(20) == 0 { draw(nr + 2) } else { at + 1 } as u16;
                if has_tables && draw(6) == 0 {
                    let table = draw(4);
                    let flags = INDIRECT | if draw(8) == 0 { flags } else { flags & WRITE };
                    return (table_at(table as usize), 16 * (1 + table as u32), flags, next);
                }
                (address, len, flags, next)
            };
            (0..nr).map(entry).collect()
        };
        let ring = entries(size, true);
        let tables: Vec<_> = (1..=4).map(|nr| entries(nr, false)).collect();
        let mut guest = Guest::new(size as u16, false, false);
        guest.table(DESCRIPTORS, &ring);
        tables.iter().enumerate().for_each(|(at, table)| guest.table(table_at(at), table));
        let head = draw(size + 1) as u16;
        guest.offer(head);
        let found = take(&mut guest.ring(), &guest);
        match (walk(&ring, &tables, head, size as u16), found) {
            (Some(expected), Ok(Some(chain))) => {
                let place = |&(address, len, _): &(u64, u32, bool)| {
                    let mut pieces = Vec::new();
                    guest.memory.pieces(address, len, |piece| pieces.push(piece)).unwrap();
                    pieces
                };
                let (writable, readable): (Vec<_>, Vec<_>) = expected.iter().partition(|(_, _, is_write)| *is_write);
                let places = |of: Vec<(u64, u32, bool)>| of.iter().flat_map(place).collect::<Vec<_>>();
                assert_eq!((&chain.readable, &chain.writable), (&places(readable), &places(writable)));
                nr_good += 1;
            }
            (None, Err(_)) => nr_bad += 1,
            (expected, found) => panic!("{expected:?} but {found:?}: {ring:?} {tables:?} from {head}"),
        }
    }
    assert!(nr_good > 500 && nr_bad > 500, "{nr_good} right and {nr_bad} wrong chains");
}
