//! Servers that end at any of their stores, and what the next one finds.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq_engine::{Failure, TaskId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::memory::tests::let_store;
use crate::ring::tests::{DATA, DESCRIPTORS, DEVICE, Entry, Guest};
use crate::ring::{Chain, NEXT, WRITE};
use crate::ring_server::tests::Hand;
use crate::ring_server::{Own, RingServer, Terms};
use crate::virtqueue::Virtqueue;

/// Descriptors of the ring.
const SIZE: u16 = 8;

/// A guest whose driver has asked for flushes and looks for answers, and what the front-end keeps for it.
struct Driver {
    guest: Guest,
    info: InflightInfo,
    file: OwnedFd,
    /// The descriptors of each chain without an answer, by its id.
    asked: BTreeMap<u16, u16>,
    nr_free: u16,
    /// Where it looks next: a count of answers, or a place in a packed ring and its lap.
    seen: u16,
    lap: bool,
}

impl Driver {
    fn new(is_packed: bool) -> Self {
        let guest = Guest::new(SIZE, is_packed, true);
        let (info, file) = Inflight::make(1, SIZE).unwrap();
        guest.all.write(DATA as usize, 4_u32.to_le_bytes());
        Self { guest, info, file, asked: BTreeMap::new(), nr_free: SIZE, seen: 0, lap: true }
    }

    /// A chain of two or three descriptors, if there is room for it.
    fn ask(&mut self, random: &mut SmallRng) {
        let is_packed = self.guest.layout.is_packed;
        let cuts: &[Entry] = match is_packed && random.random_range(0..2) == 0 {
            false => &[(DATA, 16, 0, 0)],
            true => &[(DATA, 4, 0, 0), (DATA + 4, 12, 0, 0)],
        };
        let mut entries = [cuts, &[(DATA + 64, 1, WRITE, 0)]].concat();
        let nr = entries.len() as u16;
        // In a split ring each chain has two descriptors of its own in a row.
        let mut ids = (0..SIZE).step_by(if is_packed { 1 } else { 2 });
        let Some(id) = ids.find(|id| nr <= self.nr_free && !self.asked.contains_key(id)) else { return };
        if is_packed {
            self.guest.offer_packed(id, &entries);
        } else {
            (entries[0].2, entries[0].3) = (NEXT, id + 1);
            self.guest.table(DESCRIPTORS + 16 * u64::from(id), &entries);
            self.guest.offer(id);
        }
        self.asked.insert(id, nr);
        self.nr_free -= nr;
    }

    /// Takes the next answer, if there is one. An answer to nothing is what must not be.
    fn poll(&mut self) -> bool {
        let id = if self.guest.layout.is_packed {
            let at = DESCRIPTORS + 16 * u64::from(self.seen);
            let used = if self.lap { 1 << 7 | 1 << 15 } else { 0 };
            if self.guest.number(at + 14) & (1 << 7 | 1 << 15) != used {
                return false;
            }
            self.guest.number(at + 12)
        } else {
            if self.guest.number(DEVICE + 2) == self.seen {
                return false;
            }
            self.guest.used(self.seen).0 as u16
        };
        let nr = self.asked.remove(&id).unwrap_or_else(|| panic!("an answer to {id}, which was not asked for"));
        self.nr_free += nr;
        if self.guest.layout.is_packed {
            self.seen += nr;
            if self.seen >= SIZE {
                (self.seen, self.lap) = (self.seen - SIZE, !self.lap);
            }
        } else {
            self.seen = self.seen.wrapping_add(1);
        }
        true
    }

    /// The next server. The front-end knows no better than that the ring begins anew.
    fn serve(&self) -> RingServer {
        let virtqueue = self.guest.recorded_ring(Some(&self.inflight()));
        RingServer::new(0, SIZE, virtqueue, &self.guest.memory, Arc::new(Terms::plain()))
    }

    /// The memory that the front-end gives to the next server.
    fn inflight(&self) -> Inflight {
        Inflight::take(self.info, self.file.try_clone().unwrap(), self.guest.layout.is_packed).unwrap()
    }
}

/// Some work of a server, in any order, until `nr` stores are made.
fn work(driver: &mut Driver, hand: &mut Hand<Own>, random: &mut SmallRng, nr: usize) {
    let mut left = nr;
    let_store(left);
    let mut ring_server = driver.serve();
    left = let_store(usize::MAX);
    let mut over = Vec::new();
    // A server that does nothing any more makes no stores.
    for _ in 0..2000 {
        match random.random_range(0..4) {
            0 => driver.ask(random),
            1 => while random.random_range(0..3) > 0 && driver.poll() {},
            step => {
                let_store(left);
                if step == 2 {
                    take(&mut ring_server, hand);
                    over.extend(hand.turn());
                } else {
                    finish_some(&mut ring_server, hand, &mut over, random);
                }
                left = let_store(usize::MAX);
            }
        }
        if left == 0 {
            break;
        }
    }
    // The next server has a session without tasks.
    over.into_iter().for_each(|(id, _)| hand.session.forget(id));
}

/// Takes a request, if there is one.
fn take(ring_server: &mut RingServer, hand: &mut Hand<Own>) -> bool {
    let mut chain = Chain::default();
    let taken = ring_server.take(&mut chain).unwrap();
    let is_there = taken.is_some();
    if let Some(taken) = taken {
        ring_server.begin(taken, &mut chain, &mut hand.session, &mut hand.lists);
    }
    is_there
}

fn finish_some(
    ring_server: &mut RingServer,
    hand: &mut Hand<Own>,
    over: &mut Vec<(TaskId, Option<Failure>)>,
    random: &mut SmallRng,
) {
    for _ in 0..random.random_range(0..3) {
        if !over.is_empty() {
            let (id, failure) = over.swap_remove(random.random_range(0..over.len()));
            ring_server.finish(id, failure, &mut hand.session, &mut hand.lists);
        }
    }
    if random.random_range(0..3) > 0 {
        ring_server.publish();
    }
}

/// Servers that end one after the other, each at any of its stores, in the middle of anything. Red if a request is
/// lost, if one is answered twice, or if the guest finds what was never shown to it: for packed rings red without
/// [`Packed::hide`](crate::ring::Packed::hide), and if the record's numbers are stored in another order.
#[test]
fn an_end_at_any_store_loses_nothing() {
    let seed = std::env::var("BLKMQ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x1f11_u64);
    println!("BLKMQ_SEED={seed}");
    let (mut random, mut hand) = (SmallRng::seed_from_u64(seed), Hand::plain());
    for is_packed in [false, true] {
        let mut nr_left = 0;
        for _ in 0..60 {
            let mut driver = Driver::new(is_packed);
            for _ in 0..40 {
                let nr = random.random_range(0..300);
                work(&mut driver, &mut hand, &mut random, nr);
                nr_left += driver.asked.len();
            }
            let mut ring_server = driver.serve();
            while take(&mut ring_server, &mut hand) {}
            for (id, failure) in hand.turn() {
                ring_server.finish(id, failure, &mut hand.session, &mut hand.lists);
            }
            ring_server.publish();
            while driver.poll() {}
            assert_eq!(driver.asked, BTreeMap::new(), "each has its answer");
        }
        assert!(nr_left > 1000, "{nr_left} requests were left to other servers");
    }
}

/// Red if a record is believed whatever stands in it: the front-end has kept it, and may have changed it.
#[test]
fn a_record_may_have_any_content() {
    let (mut random, mut hand) = (SmallRng::seed_from_u64(7), Hand::plain());
    for is_packed in [false, true] {
        // In the header and in the entries, of the lengths before them.
        let (header, entry) = lengths(is_packed);
        let fields: &[usize] =
            if is_packed { &[12, 14, 16, 18, 20, 21, 32, 34, 36, 38, 48] } else { &[12, 14, 16, 22, 24] };
        let (mut nr_right, mut nr_wrong) = (0, 0);
        for _ in 0..2000 {
            let driver = Driver::new(is_packed);
            driver.guest.recorded_ring(Some(&driver.inflight()));
            let area = driver.inflight().part(0, SIZE, is_packed).unwrap().unwrap().area;
            for _ in 0..random.random_range(0..12) {
                let field = fields[random.random_range(0..fields.len())];
                let at = if field < header { 0 } else { entry * random.random_range(0..usize::from(SIZE)) };
                area.write(field + at, random.random_range(0..SIZE as usize + 2) as u8);
            }
            let (guest, inflight) = (&driver.guest, driver.inflight());
            let base = if is_packed { 0x8000_8000 } else { 0 };
            match Virtqueue::new(0, &guest.memory, &guest.layout, base, Some(&inflight)) {
                Ok(virtqueue) => {
                    nr_right += 1;
                    let mut ring_server = RingServer::new(0, SIZE, virtqueue, &guest.memory, Arc::new(Terms::plain()));
                    // What is found are no requests that a driver makes.
                    let mut chain = Chain::default();
                    while let Ok(Some(taken)) = ring_server.take(&mut chain) {
                        ring_server.begin(taken, &mut chain, &mut hand.session, &mut hand.lists);
                    }
                    hand.turn().into_iter().for_each(|(id, _)| hand.session.forget(id));
                }
                Err(fault) => {
                    assert_eq!(fault, Fault::Record);
                    nr_wrong += 1;
                }
            }
        }
        assert!(nr_right > 100 && (nr_wrong > 100) == is_packed, "{nr_right} right and {nr_wrong} wrong records");
    }
}

/// Red before a ring larger than its record was refused: what it did was kept nowhere. Red if the numbers that come
/// with the memory are believed.
#[test]
fn a_ring_has_room_in_its_record() {
    for is_packed in [false, true] {
        let (info, file) = Inflight::make(2, 8).unwrap();
        let take = |info| Inflight::take(info, file.try_clone().unwrap(), is_packed);
        let wrong = |change: fn(&mut InflightInfo)| {
            let mut info = info;
            change(&mut info);
            take(info).is_err()
        };
        assert!(wrong(|info| info.offset = 4) && wrong(|info| info.size = 64) && wrong(|info| info.nr_queues = 99));
        assert!(wrong(|info| info.offset = u64::MAX - 7), "an end beyond all addresses");
        let inflight = take(info).unwrap();
        let fault = inflight.part(1, 16, is_packed).unwrap_err();
        assert_eq!(fault, Fault::RecordSize { ring: 16, record: 8 });
        assert_eq!(fault.to_string(), "a ring of 16 descriptors, and a record of what is in progress for 8");
        assert!(inflight.part(1, 4, is_packed).unwrap().is_some());
        assert!(inflight.part(2, 8, is_packed).unwrap().is_none(), "the record is of two rings");
        assert_eq!(inflight.part(1, 8, !is_packed).unwrap_err(), Fault::Record);
    }
}
