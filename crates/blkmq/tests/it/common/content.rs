//! What the device holds, as far as one thread knows. Of its own sectors the thread knows the content. Of shared
//! sectors it knows only that each holds its own number and the number of the thread that wrote it.

use std::ops::Range;

use blkmq::{Buffer, Buffers};

use super::random::Random;

pub(crate) const SECTOR: usize = 512;
/// Sectors that each thread owns in one piece, at the front of the device.
const OWN: u64 = 512;
/// The next sectors: units that belong to the threads in turn. Neighbours belong to different threads, and merge.
const INTERLEAVED: u64 = 2048;
const UNIT: u64 = 8;
/// The next sectors: all threads write them.
const SHARED: u64 = 256;

/// Sectors of the device that tests with this many threads use.
pub(crate) const fn nr_sectors(nr_threads: u64) -> u64 {
    nr_threads * OWN + INTERLEAVED + SHARED
}

/// What an operation covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) sectors: Range<u64>,
    pub(crate) is_shared: bool,
}

/// What a sector may hold: a stamp, or one of two if a write to the sector failed and may have happened.
#[derive(Debug, Clone, Default)]
struct Sector {
    stamps: Vec<u64>,
    is_busy: bool,
}

/// One thread's view of the device.
#[derive(Debug)]
pub(crate) struct Content {
    thread: u64,
    nr_threads: u64,
    sectors: Vec<Sector>,
    nr_claims: u64,
    /// Where the last operation ended: the next one may go on there, and merge.
    last_end: u64,
}

impl Content {
    pub(crate) fn new(thread: u64, nr_threads: u64) -> Self {
        let zeroed = Sector { stamps: vec![0], is_busy: false };
        let sectors = vec![zeroed; nr_sectors(nr_threads) as usize];
        Self { thread, nr_threads, sectors, nr_claims: 0, last_end: 0 }
    }

    /// Draws an area that no other operation of this thread touches, and marks it as busy. `None` if the area that was
    /// drawn is not free.
    pub(crate) fn claim(&mut self, random: &mut Random, most: u64) -> Option<Area> {
        let interleaved = self.nr_threads * OWN;
        let (start, end, is_shared) = match random.below(8) {
            0 => (interleaved + INTERLEAVED, nr_sectors(self.nr_threads), true),
            1..=3 => {
                // All threads walk over the units at about the same pace, so that neighbouring units are submitted at
                // about the same time.
                let nr_own = INTERLEAVED / UNIT / self.nr_threads;
                let own = (self.nr_claims / 8 + random.below(4)) % nr_own;
                let unit = own * self.nr_threads + self.thread;
                let start = interleaved + unit * UNIT;
                (start, start + UNIT, false)
            }
            _ => (self.thread * OWN, (self.thread + 1) * OWN, false),
        };
        // One in three is a whole unit, because only whole units touch their neighbours.
        let length = if random.one_in(3) { UNIT } else { 1 + random.below(most) }.min(end - start);
        let slack = end - start - length;
        let goes_on = random.one_in(2) && (start..=start + slack).contains(&self.last_end);
        let first = if goes_on { self.last_end } else { start + random.below(slack + 1) };
        let sectors = first..first + length;
        self.nr_claims += 1;
        self.last_end = sectors.end;
        if !is_shared {
            let own = &mut self.sectors[sectors.start as usize..sectors.end as usize];
            if own.iter().any(|sector| sector.is_busy) {
                return None;
            }
            own.iter_mut().for_each(|sector| sector.is_busy = true);
        }
        Some(Area { sectors, is_shared })
    }

    /// Called when the operation on `area` is over, or was never taken.
    pub(crate) fn release(&mut self, area: &Area) {
        if !area.is_shared {
            for sector in &mut self.sectors[area.sectors.start as usize..area.sectors.end as usize] {
                assert!(sector.is_busy, "an operation is over that had not begun");
                sector.is_busy = false;
            }
        }
    }

    /// Called when a write of `stamp` (0: of zeroes) is over. Unless that `is_certain`, both contents are possible
    /// until a read decides.
    pub(crate) fn wrote(&mut self, area: &Area, stamp: u64, is_certain: bool) {
        if area.is_shared {
            return;
        }
        for sector in &mut self.sectors[area.sectors.start as usize..area.sectors.end as usize] {
            if is_certain {
                sector.stamps.clear();
            }
            if !sector.stamps.contains(&stamp) {
                sector.stamps.push(stamp);
            }
        }
    }

    /// Checks what a read returned.
    pub(crate) fn check_read(&mut self, area: &Area, buffers: &Buffers) {
        let data: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        for (sector, bytes) in area.sectors.clone().zip(data.chunks_exact(SECTOR)) {
            let stamp = read_stamp(sector, bytes);
            if area.is_shared {
                assert!(stamp == 0 || thread_of(stamp) < self.nr_threads, "sector {sector} holds {stamp:#x}");
                continue;
            }
            let known = &mut self.sectors[sector as usize].stamps;
            assert!(known.contains(&stamp), "sector {sector} holds {stamp:#x}, not one of {known:x?}");
            known.clear();
            known.push(stamp);
        }
    }
}

/// A stamp that no other write has: the thread and the number of its operation.
pub(crate) const fn stamp(thread: u64, number: u64) -> u64 {
    (thread + 1) << 48 | number
}

const fn thread_of(stamp: u64) -> u64 {
    (stamp >> 48) - 1
}

/// The word that a sector written with `stamp` holds in each second place.
const fn word(sector: u64, stamp: u64) -> u64 {
    sector.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stamp
}

/// Fills the buffers of a write.
pub(crate) fn fill(buffers: &mut Buffers, first: u64, stamp: u64) {
    let mut at = 0;
    for buffer in buffers.iter_mut() {
        for pair in buffer.chunks_exact_mut(16) {
            pair[..8].copy_from_slice(&stamp.to_le_bytes());
            pair[8..].copy_from_slice(&word(first + at / SECTOR as u64, stamp).to_le_bytes());
            at += 16;
        }
    }
}

/// Fills the buffers of a read with a value that no sector holds, so that a sector that was not read shows.
pub(crate) fn poison(buffers: &mut Buffers) {
    buffers.iter_mut().for_each(|buffer| buffer.fill(0xA5));
}

/// Checks that the whole sector was written at once, for this place. Returns its stamp; 0 for zeroes.
fn read_stamp(sector: u64, bytes: &[u8]) -> u64 {
    let word_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let stamp = word_at(0);
    let expected = if stamp == 0 { 0 } else { word(sector, stamp) };
    for at in (0..SECTOR).step_by(16) {
        assert!(
            word_at(at) == stamp && word_at(at + 8) == expected,
            "sector {sector} byte {at}: {:#x} {:#x}, expected {stamp:#x} {expected:#x}",
            word_at(at),
            word_at(at + 8)
        );
    }
    stamp
}

/// Buffers for so many sectors, in one to three pieces.
pub(crate) fn buffers(random: &mut Random, nr_sectors: u64) -> Buffers {
    let pieces = 1 + random.below(3).min(nr_sectors - 1);
    if pieces == 1 {
        return Buffer::zeroed(nr_sectors as usize * SECTOR).into();
    }
    let each = nr_sectors / pieces;
    let length = |piece| if piece == 0 { nr_sectors - each * (pieces - 1) } else { each };
    (0..pieces).map(|piece| Buffer::zeroed(length(piece) as usize * SECTOR)).collect::<Vec<_>>().into()
}
