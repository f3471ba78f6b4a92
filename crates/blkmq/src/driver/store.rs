//! Data in memory: pages that exist once they are written, behind a volatile cache if the device has one.
//!
//! A page has its durable content and, while it is dirty, a whole second content that supersedes it. Pages are spread
//! over shards, each behind its own lock, so requests of different hardware queues seldom meet. A page, and so a
//! logical block, changes under one lock hold: neither a reader nor a power loss finds half of a block.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use blkmq_sched::Op;

use super::{Extent, Request};
use crate::request::Status;
use crate::request::buffer::Segment;
use crate::request::limits::SECTOR_SIZE;
use blkmq_sync::{Line, Mutex, MutexGuard};

/// Bytes of a page; no logical block is larger.
const PAGE_SIZE: usize = 4096;
/// Shards: some times as many as threads that are usually in the store at once.
const NR_SHARDS: usize = 64;
/// How many pages are looked at, one by one, for the end of a stretch: 4 MiB. This bounds the time of one call.
const MOST_LOOKED_AT: u64 = 1024;

/// The largest device in bytes. With this limit sums of byte addresses stay far from overflow.
pub(super) const MAX_SIZE: u64 = 1 << 62;

/// The largest operation without data, in sectors: just under 4 GiB, as null_blk has it.
pub(super) const MAX_DATALESS_SECTORS: u32 = u32::MAX >> 9;

type PageData = Box<[u8; PAGE_SIZE]>;

const ZEROES: &[u8; PAGE_SIZE] = &[0; PAGE_SIZE];

/// A page with this content, or of zeroes.
///
/// # Errors
/// [`Status::NoSpace`] if the system has no memory, as a thin disk says whose pool is full.
fn new_page(content: Option<&PageData>) -> Result<PageData, Status> {
    let mut page = Vec::new();
    page.try_reserve_exact(PAGE_SIZE).map_err(|_| Status::NoSpace)?;
    page.extend_from_slice(content.map_or(&ZEROES[..], |content| &content[..]));
    Ok(page.into_boxed_slice().try_into().expect("it was made with the size of a page"))
}

/// What a page holds. A page without content reads as zeroes.
#[derive(Default)]
struct Page {
    durable: Option<PageData>,
    /// The content while it differs from the durable one.
    cached: Option<PageData>,
}

/// Some of the pages.
struct Shard {
    pages: BTreeMap<u64, Page>,
    /// The pages that have cached content. The page that has had it longest comes first.
    dirty: VecDeque<u64>,
    is_powered: bool,
}

/// A shard under its lock, or [`Status::IoError`] if the device has no power.
fn powered(shard: &Mutex<Shard>) -> Result<MutexGuard<'_, Shard>, Status> {
    let shard = shard.lock();
    if shard.is_powered { Ok(shard) } else { Err(Status::IoError) }
}

impl Shard {
    fn clean(&mut self, page: u64) {
        let content = self.pages.get_mut(&page).expect("a dirty page exists");
        content.durable = content.cached.take();
    }

    /// Changes a part of a page to the bytes that `fill` writes. `max_dirty`: how many pages the cache holds, if it
    /// takes this data.
    ///
    /// # Errors
    /// The system has no memory. Nothing has changed then.
    fn write(
        &mut self,
        page: u64,
        part: std::ops::Range<usize>,
        max_dirty: Option<usize>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Status> {
        let (content, fresh) = match self.pages.entry(page) {
            Entry::Occupied(place) => (place.into_mut(), None),
            Entry::Vacant(place) => {
                let fresh = new_page(None)?;
                (place.insert(Page::default()), Some(fresh))
            }
        };
        let Some(max_dirty) = max_dirty else {
            let durable = match &mut content.durable {
                Some(durable) => durable,
                none => none.insert(fresh.map_or_else(|| new_page(None), Ok)?),
            };
            fill(&mut durable[part.clone()]);
            if let Some(cached) = &mut content.cached {
                cached[part.clone()].copy_from_slice(&durable[part]);
            }
            return Ok(());
        };
        let cached = match &mut content.cached {
            Some(cached) => cached,
            none => {
                let copy = fresh.map_or_else(|| new_page(content.durable.as_ref()), Ok)?;
                self.dirty.push_back(page);
                none.insert(copy)
            }
        };
        fill(&mut cached[part]);
        if self.dirty.len() > max_dirty {
            let oldest = self.dirty.pop_front().expect("there are more than max_dirty");
            self.clean(oldest);
        }
        Ok(())
    }

    /// Zeroes the bytes from `start` to `end` of the device, as far as they lie in this shard.
    fn zero(&mut self, start: u64, end: u64) {
        let (first, last) = (start / PAGE_SIZE as u64, end.div_ceil(PAGE_SIZE as u64));
        let whole = |page: &u64, content: &mut Page| {
            let from = page * PAGE_SIZE as u64;
            let part = (start.max(from) - from) as usize..(end - from).min(PAGE_SIZE as u64) as usize;
            for data in [&mut content.durable, &mut content.cached].into_iter().flatten() {
                data[part.clone()].fill(0);
            }
            part.len() == PAGE_SIZE
        };
        self.pages.extract_if(first..last, whole).for_each(drop);
        self.dirty.retain(|page| self.pages.contains_key(page));
    }
}

/// The data of a device.
pub struct Store {
    shards: Box<[Line<Mutex<Shard>>]>,
    /// Dirty pages that each shard keeps; `None` if everything is durable at once.
    max_dirty: Option<usize>,
}

impl Store {
    /// A store of zeroes. `cache_size`: bytes of the volatile cache, which the shards share out evenly; at least a page
    /// each.
    pub(super) fn new(cache_size: Option<u64>) -> Self {
        let shard = || Shard { pages: BTreeMap::new(), dirty: VecDeque::new(), is_powered: true };
        let max_dirty = cache_size.map(|bytes| bytes as usize / PAGE_SIZE / NR_SHARDS);
        Self {
            shards: (0..NR_SHARDS).map(|_| Line::new("store.shard", Mutex::new(shard()))).collect(),
            max_dirty: max_dirty.map(|pages| pages.max(1)),
        }
    }

    fn shard(&self, page: u64) -> &Mutex<Shard> {
        &self.shards[(page % NR_SHARDS as u64) as usize]
    }

    /// Writes `len` bytes at byte `start` of the device. `fill` is asked for the bytes in order. `fua`: past the cache.
    ///
    /// COST: a lock and a look-up per page; allocates a page the first time, or when it becomes dirty.
    fn write(&self, start: u64, len: usize, fua: bool, mut fill: impl FnMut(&mut [u8])) -> Result<(), Status> {
        let max_dirty = self.max_dirty.filter(|_| !fua);
        for (page, part) in parts(start, len) {
            let mut shard = powered(self.shard(page))?;
            shard.write(page, part, max_dirty, &mut fill)?;
        }
        Ok(())
    }

    /// Reads `len` bytes at byte `start` of the device. `take` gets the bytes in order.
    ///
    /// COST: a lock and a look-up per page.
    fn read(&self, start: u64, len: usize, mut take: impl FnMut(&[u8])) -> Result<(), Status> {
        for (page, part) in parts(start, len) {
            let shard = powered(self.shard(page))?;
            let data = shard.pages.get(&page).and_then(|page| page.cached.as_ref().or(page.durable.as_ref()));
            take(&data.map_or(ZEROES, |data| data)[part]);
        }
        Ok(())
    }

    /// How the `bytes` bytes from byte `start` on begin: with pages, or with a hole.
    ///
    /// COST: for a hole, a lock and a look-up in each shard; for pages, one of each for every page, up to
    /// [`MOST_LOOKED_AT`].
    pub(super) fn extent(&self, start: u64, bytes: u64) -> Extent {
        let end = start + bytes;
        let (first, last) = (start / PAGE_SIZE as u64, end.div_ceil(PAGE_SIZE as u64));
        let is_there = |page: &u64| self.shard(*page).lock().pages.contains_key(page);
        let bytes_to = |page: u64| (page * PAGE_SIZE as u64).min(end) - start;
        if is_there(&first) {
            let most = last.min(first + MOST_LOOKED_AT);
            Extent::data(bytes_to((first + 1..most).find(|page| !is_there(page)).unwrap_or(most)))
        } else {
            // Behind the first page: the first page may be there by now.
            let next =
                |shard: &Line<Mutex<Shard>>| shard.lock().pages.range(first + 1..last).next().map(|(page, _)| *page);
            Extent::hole(bytes_to(self.shards.iter().filter_map(next).min().unwrap_or(last)))
        }
    }

    /// Makes `len` bytes from byte `start` read as zeroes, durably, and gives their memory back.
    fn zero(&self, start: u64, len: u64) -> Result<(), Status> {
        let (first, end) = (start / PAGE_SIZE as u64, (start + len).div_ceil(PAGE_SIZE as u64));
        // Neighbouring pages lie in different shards, so the first ones lead to every shard once.
        for page in (first..end).take(NR_SHARDS) {
            let mut shard = powered(self.shard(page))?;
            shard.zero(start, start + len);
        }
        Ok(())
    }

    /// Makes everything durable that was written before the call.
    ///
    /// A flush that succeeds has found all shards with power. A power loss marks each shard in the hold that drops the
    /// shard's cached content, so the flush finds out here about a loss meanwhile.
    fn flush(&self) -> Result<(), Status> {
        for shard in &self.shards {
            let mut shard = powered(shard)?;
            while let Some(page) = shard.dirty.pop_front() {
                shard.clean(page);
            }
        }
        Ok(())
    }

    /// Drops what is not durable, and fails everything from now on.
    pub(super) fn lose_power(&self) {
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            shard.is_powered = false;
            for page in shard.dirty.drain(..) {
                shard.pages.get_mut(&page).expect("a dirty page exists").cached = None;
            }
        }
    }

    /// Ends what [`lose_power`](Self::lose_power) began.
    pub(super) fn restore_power(&self) {
        for shard in &self.shards {
            shard.lock().is_powered = true;
        }
    }

    /// Does what a request asks for. `honour_fua`: a FUA write is durable when this returns.
    pub(super) fn execute(&self, rq: &mut Request<'_>, honour_fua: bool) -> Status {
        let (start, len) = (rq.sector() * SECTOR_SIZE as u64, rq.nr_sectors() as usize * SECTOR_SIZE);
        let done = match rq.op() {
            Op::Read => {
                let mut data = Cursor::new(rq.segments());
                self.read(start, len, |from| {
                    data.pieces(from.len(), |segment, at, part| {
                        segment.copy_from(at, &from[part]);
                    });
                })
            }
            Op::Write => {
                let fua = honour_fua && rq.flags().fua;
                let mut data = Cursor::new(rq.segments());
                self.write(start, len, fua, |to| {
                    data.pieces(to.len(), |segment, at, part| {
                        segment.copy_to(at, &mut to[part]);
                    });
                })
            }
            Op::Flush => self.flush(),
            Op::WriteZeroes if rq.flags().nounmap => {
                self.write(start, len, honour_fua && rq.flags().fua, |to| to.fill(0))
            }
            Op::Discard | Op::WriteZeroes => rq.ranges().try_for_each(|(sector, nr)| {
                self.zero(sector * SECTOR_SIZE as u64, u64::from(nr) * SECTOR_SIZE as u64)
            }),
        };
        done.err().unwrap_or(Status::Ok)
    }

    /// Writes a line of totals.
    pub(super) fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (mut pages, mut dirty) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            pages += shard.pages.len();
            dirty += shard.dirty.len();
        }
        writeln!(out, "store: pages={pages} dirty={dirty}")
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("max_dirty", &self.max_dirty).finish_non_exhaustive()
    }
}

/// The pages in which `len` bytes from `start` lie, each with the part of the page that they cover.
fn parts(start: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = start + done as u64;
        let from = (at % PAGE_SIZE as u64) as usize;
        let size = (PAGE_SIZE - from).min(len - done);
        done += size;
        (size > 0).then(|| (at / PAGE_SIZE as u64, from..from + size))
    })
}

/// A place in a scatter list.
struct Cursor<I, S> {
    rest: I,
    current: Option<S>,
    /// The place within the current segment.
    at: usize,
}

impl<'a, I: Iterator<Item = Segment<'a>>> Cursor<I, Segment<'a>> {
    fn new(segments: I) -> Self {
        Self { rest: segments, current: None, at: 0 }
    }

    /// Goes over the next `len` bytes: `each` gets a segment, a place in it, and which of the `len` bytes belong there.
    fn pieces(&mut self, len: usize, mut each: impl FnMut(&mut Segment<'a>, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            if self.current.as_ref().is_none_or(|segment| self.at == segment.len()) {
                self.current = self.rest.next();
                self.at = 0;
            }
            let segment = self.current.as_mut().expect("a request has data for each of its sectors");
            let size = (segment.len() - self.at).min(len - done);
            each(segment, self.at, done..done + size);
            self.at += size;
            done += size;
        }
    }
}

#[cfg(test)]
mod tests;
