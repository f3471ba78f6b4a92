//! mq-deadline as its description says, with plain vectors and linear scans: slow, and simple enough to be checked by
//! reading.

use std::mem;

use blkmq_sched::{Class, Info, InsertAt, Join, Merge, MergeHow, MergeLevel, MergeLimits, Op, RqId, Tally, Time};

const MS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: RqId,
    info: Info,
    fifo_time: Time,
    /// When the request took its place among requests of the same first sector.
    sorted_at: u64,
    /// When the request took its place among requests of the same end.
    hashed_at: u64,
}

/// The model's knobs, with the kernel's names and units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knobs {
    pub(crate) read_expire: u64,
    pub(crate) write_expire: u64,
    pub(crate) writes_starved: i64,
    pub(crate) front_merges: bool,
    pub(crate) fifo_batch: i64,
    pub(crate) prio_aging_expire: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) knobs: Knobs,
    pub(crate) limits: MergeLimits,
    /// In order of arrival, of all classes and directions.
    fifo: Vec<Entry>,
    /// The request that goes next comes first.
    at_head: Vec<Entry>,
    last_merge: Option<RqId>,
    last_dir_is_read: bool,
    batching: i64,
    starved: i64,
    /// By class and by direction, reads first.
    latest_pos: [[u64; 2]; 3],
    inserted: [u64; 3],
    merged: [u64; 3],
    completed: [u64; 3],
    stamp: u64,
}

impl Model {
    pub(crate) fn new(limits: MergeLimits) -> Self {
        Self {
            knobs: Knobs {
                read_expire: 500,
                write_expire: 5000,
                writes_starved: 2,
                front_merges: true,
                fifo_batch: 16,
                prio_aging_expire: 10_000,
            },
            limits,
            fifo: Vec::new(),
            at_head: Vec::new(),
            last_merge: None,
            last_dir_is_read: false,
            batching: 0,
            starved: 0,
            latest_pos: [[0; 2]; 3],
            inserted: [0; 3],
            merged: [0; 3],
            completed: [0; 3],
            stamp: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.fifo.len() + self.at_head.len()
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = (RqId, Info)> {
        self.at_head.iter().chain(&self.fifo).map(|entry| (entry.id, entry.info))
    }

    fn expire(&self, info: &Info) -> u64 {
        MS * if info.op == Op::Read { self.knobs.read_expire } else { self.knobs.write_expire }
    }

    fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn entry(&mut self, id: RqId, info: &Info, fifo_time: Time) -> Entry {
        Entry { id, info: *info, fifo_time, sorted_at: self.stamp(), hashed_at: self.stamp() }
    }

    pub(crate) fn insert(&mut self, id: RqId, info: &Info, at: InsertAt, now: Time) {
        self.inserted[info.priority.class as usize] += 1;
        match at {
            InsertAt::Head => {
                let entry = self.entry(id, info, now);
                self.at_head.insert(0, entry);
            }
            InsertAt::Sorted => {
                let entry = self.entry(id, info, Time(now.0 + self.expire(info)));
                self.fifo.push(entry);
                if info.merge != MergeLevel::Never {
                    self.last_merge = Some(id);
                }
            }
        }
    }

    pub(crate) fn fold(&mut self, tally: &Tally) {
        for class in 0..3 {
            self.completed[class] = self.completed[class].max(tally.completed[class]);
        }
    }

    fn queued(&self, class: usize) -> u64 {
        self.inserted[class] - self.merged[class] - self.completed[class]
    }

    pub(crate) fn wants_tally(&self) -> bool {
        (0..3).filter(|class| self.queued(*class) > 0).count() >= 2
    }

    pub(crate) fn dispatch(&mut self, now: Time) -> Option<RqId> {
        if !self.at_head.is_empty() {
            let entry = self.at_head.remove(0);
            self.leave(&entry);
            return Some(entry.id);
        }
        if self.wants_tally() {
            for class in [1, 2] {
                if let Some(entry) = self.try_level(class, now)
                    && self.starts(&entry) + i128::from(self.knobs.prio_aging_expire * MS) <= i128::from(now.0)
                {
                    return Some(self.take_of_batch(&entry));
                }
            }
        }
        for class in 0..3 {
            if let Some(entry) = self.try_level(class, now) {
                return Some(self.take_of_batch(&entry));
            }
            if self.queued(class) > 0 {
                return None;
            }
        }
        None
    }

    fn starts(&self, entry: &Entry) -> i128 {
        i128::from(entry.fifo_time.0) - i128::from(self.expire(&entry.info))
    }

    fn of(&self, class: usize, read: bool) -> impl Iterator<Item = &Entry> {
        self.fifo
            .iter()
            .filter(move |entry| entry.info.priority.class as usize == class && (entry.info.op == Op::Read) == read)
    }

    fn next_in_order(&self, class: usize, read: bool) -> Option<Entry> {
        let from = self.latest_pos[class][usize::from(!read)];
        self.of(class, read)
            .filter(|entry| entry.info.sector >= from)
            .min_by_key(|entry| (entry.info.sector, entry.sorted_at))
            .copied()
    }

    fn try_level(&mut self, class: usize, now: Time) -> Option<Entry> {
        if self.batching < self.knobs.fifo_batch
            && let Some(entry) = self.next_in_order(class, self.last_dir_is_read)
        {
            return Some(entry);
        }
        let reads = self.of(class, true).next().is_some();
        let writes = self.of(class, false).next().is_some();
        let read = if reads && writes {
            self.starved += 1;
            self.starved <= self.knobs.writes_starved
        } else if reads || writes {
            reads
        } else {
            return None;
        };
        if !read {
            self.starved = 0;
        }
        let head = *self.of(class, read).next()?;
        let entry = match self.next_in_order(class, read) {
            Some(next) if head.fifo_time > now => next,
            _ => head,
        };
        self.last_dir_is_read = read;
        self.batching = 0;
        Some(entry)
    }

    fn take_of_batch(&mut self, entry: &Entry) -> RqId {
        self.batching += 1;
        self.fifo.retain(|other| other.id != entry.id);
        self.leave(entry);
        entry.id
    }

    fn leave(&mut self, entry: &Entry) {
        let direction = usize::from(entry.info.op != Op::Read);
        self.latest_pos[entry.info.priority.class as usize][direction] = entry.info.sector;
        if self.last_merge == Some(entry.id) {
            self.last_merge = None;
        }
    }

    /// A choice of this very request. If it is not ours, an aged one of its class went in its turn, and any other once
    /// no lower class gave one. It was ahead in the running batch, or began one.
    pub(crate) fn force(&mut self, id: RqId, now: Time) -> bool {
        if let Some(place) = self.at_head.iter().position(|entry| entry.id == id) {
            let entry = self.at_head.remove(place);
            self.leave(&entry);
            return true;
        }
        let Some(entry) = self.fifo.iter().find(|entry| entry.id == id).copied() else { return false };
        let (class, read) = (entry.info.priority.class as usize, entry.info.op == Op::Read);
        let mut ours = Self { at_head: Vec::new(), ..self.clone() };
        if ours.dispatch(now) == Some(id) {
            *self = Self { at_head: mem::take(&mut self.at_head), ..ours };
            return true;
        }
        let waited = i128::from(now.0) - self.starts(&entry);
        let aged = waited >= i128::from(self.knobs.prio_aging_expire * MS);
        let aged = aged || (0..class).any(|higher| self.queued(higher) > 0);
        if self.wants_tally() {
            for lower in [1, 2] {
                if aged && lower == class {
                    break;
                }
                self.try_level(lower, now);
            }
        }
        let from = self.latest_pos[class][usize::from(!read)];
        let goes_on = self.last_dir_is_read == read && self.batching < self.knobs.fifo_batch;
        if !goes_on || entry.info.sector < from {
            let passes_writes = self.of(class, false).next().is_some();
            self.starved = if read { self.starved + i64::from(passes_writes) } else { 0 };
            self.last_dir_is_read = read;
            self.batching = 0;
        }
        self.take_of_batch(&entry);
        true
    }

    /// The earliest time from `now` on at which dispatch would give a request. Each time that may matter is tried.
    pub(crate) fn next_wakeup(&self, now: Time) -> Option<Time> {
        let mut times: Vec<u64> = self.fifo.iter().map(|entry| entry.fifo_time.0).collect();
        let aging = i128::from(self.knobs.prio_aging_expire * MS);
        times.extend(self.fifo.iter().map(|entry| u64::try_from(self.starts(entry) + aging).unwrap_or(0)));
        times.push(now.0);
        times.sort_unstable();
        times.into_iter().map(Time).find(|time| *time >= now && self.clone().dispatch(*time).is_some())
    }

    /// The requests that passed may have gone in either direction, so no batch is running.
    pub(crate) fn resume(&mut self) {
        self.batching = self.knobs.fifo_batch;
    }

    pub(crate) fn merge(&mut self, info: &Info) -> Option<Merge> {
        let (id, how) = self.find_host(info)?;
        let host = self.position(id);
        let full = info.merge == MergeLevel::Full;
        let grown = sum(&self.fifo[host].info, info, how);
        let stamp = self.stamp();
        self.fifo[host].info = grown;
        if how == MergeHow::Front {
            self.fifo[host].sorted_at = stamp;
        } else {
            self.fifo[host].hashed_at = stamp;
        }
        self.last_merge = Some(id);
        let joined = if full { self.join(id, how) } else { None };
        Some(Merge { into: id, how, joined })
    }

    fn position(&self, id: RqId) -> usize {
        self.fifo.iter().position(|entry| entry.id == id).expect("it waits")
    }

    fn find_host(&self, info: &Info) -> Option<(RqId, MergeHow)> {
        if info.merge == MergeLevel::Never {
            return None;
        }
        if let Some(id) = self.last_merge
            && let Some(how) = self.fit(&self.fifo[self.position(id)].info, info)
        {
            return Some((id, how));
        }
        if info.merge == MergeLevel::LastOnly {
            return None;
        }
        let mergeable = || self.fifo.iter().filter(|entry| entry.info.merge == MergeLevel::Full);
        let mut back: Vec<&Entry> = mergeable().filter(|entry| entry.info.end() == info.sector).collect();
        back.sort_by_key(|entry| std::cmp::Reverse(entry.hashed_at));
        let mut front: Vec<&Entry> = self.fifo.iter().filter(|entry| same_queue(&entry.info, info)).collect();
        front.retain(|entry| self.knobs.front_merges && entry.info.sector == info.end());
        front.sort_by_key(|entry| entry.sorted_at);
        let front = front.into_iter().take(8).filter(|entry| entry.info.merge == MergeLevel::Full);
        back.into_iter().take(8).chain(front).find_map(|entry| Some((entry.id, self.fit(&entry.info, info)?)))
    }

    fn join(&mut self, grown: RqId, how: MergeHow) -> Option<Join> {
        let entry = self.fifo[self.position(grown)];
        let mut order: Vec<Entry> =
            self.fifo.iter().filter(|other| same_queue(&other.info, &entry.info)).copied().collect();
        order.sort_by_key(|other| (other.info.sector, other.sorted_at));
        let at = order.iter().position(|other| other.id == grown).expect("it waits");
        let (survivor, absorbed) = match how {
            MergeHow::Back => (entry, *order.get(at + 1)?),
            MergeHow::Front => (order[at.checked_sub(1)?], entry),
            MergeHow::Discard => return None,
        };
        let willing = survivor.info.merge == MergeLevel::Full && absorbed.info.merge == MergeLevel::Full;
        if !willing || self.fit(&survivor.info, &absorbed.info) != Some(MergeHow::Back) {
            return None;
        }
        let mut whole = survivor;
        whole.info = sum(&survivor.info, &absorbed.info, MergeHow::Back);
        whole.fifo_time = survivor.fifo_time.min(absorbed.fifo_time);
        whole.hashed_at = self.stamp();
        // The survivor stands where the request with the older deadline stood.
        let from_absorbed = absorbed.fifo_time < survivor.fifo_time;
        let (place, gone) = if from_absorbed { (absorbed.id, survivor.id) } else { (survivor.id, absorbed.id) };
        let place = self.position(place);
        self.fifo[place] = whole;
        let gone = (0..self.fifo.len()).find(|at| *at != place && self.fifo[*at].id == gone).expect("it waits");
        self.fifo.remove(gone);
        self.merged[whole.info.priority.class as usize] += 1;
        self.last_merge = Some(survivor.id);
        Some(Join { survivor: survivor.id, absorbed: absorbed.id })
    }

    /// How `host` may take `guest` in.
    fn fit(&self, host: &Info, guest: &Info) -> Option<MergeHow> {
        let alike = host.op == guest.op
            && host.priority.class == guest.priority.class
            && host.merge_key == guest.merge_key
            && host.op != Op::Flush;
        if !alike {
            return None;
        }
        let host_end = u128::from(host.sector) + u128::from(host.nr_sectors);
        let guest_end = u128::from(guest.sector) + u128::from(guest.nr_sectors);
        let how = if host.op == Op::Discard && self.limits.max_discard_segments > 1 {
            MergeHow::Discard
        } else if host_end == u128::from(guest.sector) {
            MergeHow::Back
        } else if guest_end == u128::from(host.sector) {
            MergeHow::Front
        } else {
            return None;
        };
        let sectors = u64::from(host.nr_sectors) + u64::from(guest.nr_sectors);
        let segments = u32::from(host.nr_segments) + u32::from(guest.nr_segments);
        let within = match host.op {
            Op::Discard if how == MergeHow::Discard => {
                sectors <= self.limits.max_discard_sectors.into() && segments <= self.limits.max_discard_segments.into()
            }
            Op::Discard => sectors <= self.limits.max_discard_sectors.into() && segments <= 2,
            Op::WriteZeroes => sectors <= self.limits.max_write_zeroes_sectors.into(),
            _ => sectors <= self.limits.max_sectors.into() && segments <= self.limits.max_segments.into(),
        };
        let start = u128::from(host.sector.min(guest.sector));
        let crosses = |boundary: u128| (start + 1..start + u128::from(sectors)).any(|sector| sector % boundary == 0);
        let boundary = u128::from(self.limits.boundary_sectors);
        let crosses = how != MergeHow::Discard && boundary > 0 && within && crosses(boundary);
        (within && !crosses).then_some(how)
    }
}

fn same_queue(one: &Info, other: &Info) -> bool {
    one.priority.class == other.priority.class && (one.op == Op::Read) == (other.op == Op::Read)
}

fn sum(host: &Info, guest: &Info, how: MergeHow) -> Info {
    let mut whole = *host;
    whole.nr_sectors += guest.nr_sectors;
    whole.nr_segments = match host.op {
        Op::Discard if how != MergeHow::Discard => (host.nr_segments + guest.nr_segments).saturating_sub(1),
        _ => host.nr_segments + guest.nr_segments,
    };
    if how == MergeHow::Front {
        whole.sector = guest.sector;
    }
    whole
}

/// The class with this index.
pub(crate) fn class(index: u64) -> Class {
    Class::ALL[index as usize % 3]
}
