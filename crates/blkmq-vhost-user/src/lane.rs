//! One ring at work: chains become operations of the queue, and operations that are over become answers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::limits::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Buffers, Class, Flags, IoPriority, Limits, Op, Status};

use rustix::io::Errno;

use crate::count::Counters;
use crate::inflight::{Left, Tracker};
use crate::lent::Loans;
use crate::memory::{Memory, Piece};
use crate::request::{self, Ask, NAME, Range, Request, STATUS_ERROR, STATUS_OK, STATUS_UNSUPPORTED};
use crate::ring::{Chain, Fault, Ring};

/// The most bytes of a request that has to be copied, because it is not cut into whole sectors. Firmware asks for such
/// requests, and asks for little.
const MAX_COPIED: usize = 4 << 20;
/// The most bytes that are copied for one ring at a time.
const ALL_COPIED: usize = 8 << 20;

/// What holds for all rings of a session.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    pub(crate) is_read_only: bool,
    /// Writes are durable when they are over: the guest does not flush.
    pub(crate) is_write_through: AtomicBool,
    pub(crate) name: [u8; NAME],
    /// Requests have the priority that the guest says, and none above this one.
    pub(crate) guest_priority: Option<IoPriority>,
    /// One for each ring, so that no two threads add to one.
    pub(crate) counters: Arc<[Counters]>,
}

#[cfg(test)]
impl Terms {
    /// One ring, and nothing particular.
    pub(crate) fn plain() -> Self {
        Self {
            limits: Limits::default(),
            is_read_only: false,
            is_write_through: AtomicBool::new(false),
            name: [0; NAME],
            guest_priority: None,
            counters: [Counters::default()].into(),
        }
    }
}

/// Descriptors by which the guest and the device wake each other.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) kick: Option<OwnedFd>,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) error: Option<OwnedFd>,
}

impl Signals {
    /// The descriptor may be any file of the front-end, so an error says nothing of this process.
    pub(crate) fn ring(file: Option<&OwnedFd>) {
        if let Some(file) = file {
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
    }
}

/// What is left of a request with ranges, which are done one operation after the other.
#[derive(Debug)]
struct Rest {
    ranges: Vec<Range>,
    index: usize,
    done: u64,
}

/// A request in progress.
#[derive(Debug)]
struct Task {
    id: u16,
    /// Where it stands in the record of what is in progress, if there is one.
    entry: u16,
    nr_descriptors: u16,
    ask: Ask,
    status_at: Piece,
    answer: u8,
    /// Bytes of data that the guest gets.
    len: u32,
    /// The guest's memory, if the data is copied.
    copied: Vec<Piece>,
    rest: Option<Rest>,
    priority: Option<IoPriority>,
}

/// One ring at work.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) number: u16,
    pub(crate) is_enabled: bool,
    /// The ring is to be given back: of a request of many parts no further part is begun.
    pub(crate) begins_no_part: bool,
    pub(crate) signals: Signals,
    ring: Ring,
    loans: Loans<Memory>,
    tracker: Option<Tracker>,
    /// Chains that were in progress when the last server ended.
    resumed: VecDeque<Left>,
    terms: Arc<Terms>,
    tasks: Vec<Option<Task>>,
    free: Vec<u16>,
    bytes_copied: usize,
    /// Something was given back that the guest has not been shown.
    is_dirty: bool,
}

impl Lane {
    pub(crate) fn new(
        number: u16,
        size: u16,
        mut ring: Ring,
        memory: &Memory,
        mut tracker: Option<Tracker>,
        terms: Arc<Terms>,
    ) -> Result<Self, Fault> {
        let resumed = tracker.as_mut().map(|tracker| tracker.recover(&mut ring)).transpose()?.unwrap_or_default();
        Ok(Self {
            number,
            is_enabled: false,
            begins_no_part: false,
            signals: Signals::default(),
            ring,
            // A count of its own: others would share its line with other threads.
            loans: Loans::new(Arc::new(memory.clone())),
            tracker,
            resumed,
            terms,
            tasks: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
            bytes_copied: 0,
            is_dirty: false,
        })
    }

    /// Whether nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.tasks.len()
    }

    /// The descriptors, of a ring that works no more.
    pub(crate) fn into_signals(self) -> Signals {
        self.signals
    }

    /// Where the ring goes on, as the front-end has it.
    pub(crate) fn base(&self) -> u32 {
        self.ring.base()
    }

    /// Takes the next request, if there is one and memory for it, and adds its operations.
    pub(crate) fn take(&mut self, chain: &mut Chain, bios: &mut VecDeque<Bio>) -> Result<bool, Fault> {
        if !self.has_room() {
            return Ok(false);
        }
        let memory = Arc::clone(self.loans.memory());
        let entry = if let Some(left) = self.resumed.pop_front() {
            self.ring.resume(&memory, chain, &left)?;
            left.entry
        } else {
            if !self.ring.take(&memory, chain)? {
                return Ok(false);
            }
            self.tracker.as_mut().map_or(0, |tracker| tracker.taken(chain))
        };
        let request = Request::parse(&memory, chain)?;
        self.begin(&memory, &request, chain, entry, bios);
        Ok(true)
    }

    fn begin(&mut self, memory: &Memory, request: &Request, chain: &mut Chain, entry: u16, bios: &mut VecDeque<Bio>) {
        let slot = self.free.pop().expect("there was a free one");
        let priority = self.terms.guest_priority.map(|best| priority_of(request.priority, best));
        let mut task = Task {
            id: chain.id,
            entry,
            nr_descriptors: chain.nr_descriptors,
            ask: request.ask,
            status_at: request.status,
            answer: STATUS_OK,
            len: 0,
            copied: Vec::new(),
            rest: None,
            priority,
        };
        let bio = match request.ask {
            Ask::Unknown => Err(STATUS_UNSUPPORTED),
            Ask::Write | Ask::Discard | Ask::WriteZeroes if self.terms.is_read_only => Err(STATUS_ERROR),
            Ask::Read => self.data(memory, Op::Read, request.sector, &chain.writable, &mut task),
            Ask::Write => self.data(memory, Op::Write, request.sector, &chain.readable, &mut task),
            Ask::Flush => Ok(Bio::flush()),
            Ask::Name => {
                let mut name = &self.terms.name[..];
                for piece in &chain.writable {
                    memory.write(*piece, name);
                    name = &name[name.len().min(piece.len as usize)..];
                }
                task.len = (NAME - name.len()) as u32;
                Err(STATUS_OK)
            }
            Ask::Discard | Ask::WriteZeroes => Range::all(memory, &mut chain.readable).and_then(|ranges| {
                task.rest = Some(Rest { ranges, index: 0, done: 0 });
                self.next_range(&mut task)
            }),
        };
        match bio {
            Ok(bio) => {
                self.send(bio, slot, &task, bios);
                self.tasks[usize::from(slot)] = Some(task);
            }
            Err(answer) => {
                task.answer = answer;
                self.finish(slot, &task);
            }
        }
    }

    fn send(&self, mut bio: Bio, slot: u16, task: &Task, bios: &mut VecDeque<Bio>) {
        bio.user_data = u64::from(self.number) << 16 | u64::from(slot);
        bio.priority = task.priority;
        if !matches!(bio.op, Op::Read | Op::Flush) {
            // The guest has a cache of its own. What comes here, it waits for.
            bio.flags.sync = true;
            // Relaxed: the guest knows when it has changed this, and waits before it writes.
            bio.flags.fua = self.terms.is_write_through.load(Ordering::Relaxed);
        }
        bios.push_back(bio);
    }

    /// A read or write of this memory.
    fn data(&mut self, memory: &Memory, op: Op, sector: u64, pieces: &[Piece], task: &mut Task) -> Result<Bio, u8> {
        let len = request::len(pieces);
        if len == 0 || !len.is_multiple_of(SECTOR_SIZE) {
            return Err(STATUS_ERROR);
        }
        if op == Op::Read {
            task.len = len as u32;
        }
        let buffers = if request::is_whole(pieces) {
            self.loans.lend(pieces)
        } else {
            if len > MAX_COPIED {
                return Err(STATUS_ERROR);
            }
            let mut buffer = Buffer::try_zeroed(len).ok_or(STATUS_ERROR)?;
            if op == Op::Write {
                let mut filled = 0;
                for piece in pieces {
                    memory.read(*piece, &mut buffer[filled..]);
                    filled += piece.len as usize;
                }
            }
            self.bytes_copied += len;
            task.copied = pieces.to_vec();
            Buffers::One(buffer)
        };
        Ok(Bio::new(op, sector, (len / SECTOR_SIZE) as u64, buffers))
    }

    /// The next operation of a request with ranges. An answer if there is none.
    fn next_range(&self, task: &mut Task) -> Result<Bio, u8> {
        let (ask, rest) = (task.ask, task.rest.as_mut().ok_or(STATUS_ERROR)?);
        let op = if ask == Ask::Discard { Op::Discard } else { Op::WriteZeroes };
        let most = u64::from(self.terms.limits.max_op_sectors(op));
        if most == 0 || rest.ranges.iter().any(|range| !range.has_known_flags(ask)) {
            return Err(STATUS_UNSUPPORTED);
        }
        loop {
            let Some(range) = rest.ranges.get(rest.index) else { return Err(STATUS_OK) };
            let left = u64::from(range.nr_sectors) - rest.done;
            if left == 0 {
                (rest.index, rest.done) = (rest.index + 1, 0);
                continue;
            }
            let (sector, nr) = (range.sector.checked_add(rest.done).ok_or(STATUS_ERROR)?, left.min(most));
            rest.done += nr;
            let flags = Flags { nounmap: op == Op::WriteZeroes && !range.may_unmap(), ..Flags::NONE };
            return Ok(Bio::new(op, sector, nr, Buffers::None).with_flags(flags));
        }
    }

    /// Called when an operation of this ring is over.
    pub(crate) fn settle(&mut self, bio: Bio, status: Status, bios: &mut VecDeque<Bio>) {
        let slot = bio.user_data as u16;
        let mut task = self.tasks[usize::from(slot)].take().expect("an operation belongs to a request in progress");
        task.answer = match status {
            Status::Ok => STATUS_OK,
            Status::Unsupported => STATUS_UNSUPPORTED,
            _ => STATUS_ERROR,
        };
        if !task.copied.is_empty() {
            if let Buffers::One(buffer) = &bio.buffers {
                self.bytes_copied -= buffer.len();
                if task.ask == Ask::Read && status.is_ok() {
                    let mut data = &buffer[..];
                    for piece in &task.copied {
                        self.loans.memory().write(*piece, data);
                        data = &data[piece.len as usize..];
                    }
                }
            }
        } else if !matches!(bio.buffers, Buffers::None) {
            self.loans.take_back(bio.buffers);
        }
        if task.rest.is_some() && status.is_ok() {
            match self.next_range(&mut task) {
                // A request of many ranges may take hours, and nobody waits that long. In the record it stays in
                // progress: it is begun once more when the ring goes on. Without a record the guest needs an answer.
                Ok(_) if self.begins_no_part && self.tracker.is_some() => {
                    self.free.push(slot);
                    return;
                }
                Ok(_) if self.begins_no_part => task.answer = STATUS_ERROR,
                Ok(bio) => {
                    self.send(bio, slot, &task, bios);
                    self.tasks[usize::from(slot)] = Some(task);
                    return;
                }
                Err(answer) => task.answer = answer,
            }
        }
        self.finish(slot, &task);
    }

    /// Writes the status, and gives the chain back.
    fn finish(&mut self, slot: u16, task: &Task) {
        let is_ok = task.answer == STATUS_OK;
        self.terms.counters[usize::from(self.number)].count(task.ask, is_ok);
        self.loans.memory().write(task.status_at, &[task.answer]);
        self.free.push(slot);
        if let Some(tracker) = &mut self.tracker {
            tracker.put(task.entry, task.nr_descriptors);
        }
        let len = if is_ok { task.len } else { 0 };
        self.ring.put(task.id, task.nr_descriptors, len + 1);
        self.is_dirty = true;
    }

    /// Shows the guest what was given back, and tells it if it wants that.
    pub(crate) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        if let Some(tracker) = &mut self.tracker {
            tracker.publish();
        }
        let wants = self.ring.publish();
        if let Some(tracker) = &mut self.tracker {
            tracker.published(&self.ring);
        }
        if wants {
            Signals::ring(self.signals.call.as_ref());
        }
    }

    /// The most requests that may be in progress.
    pub(crate) fn size(&self) -> usize {
        self.tasks.len()
    }

    /// Whether one more request may be in progress.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes_copied < ALL_COPIED && !self.free.is_empty()
    }

    /// Whether requests are taken from this ring.
    pub(crate) fn is_open(&self) -> bool {
        self.is_enabled
    }

    pub(crate) fn ask_for_kicks(&mut self) -> Result<bool, Fault> {
        Ok(self.ring.ask_for_kicks()? || !self.resumed.is_empty())
    }

    pub(crate) fn refuse_kicks(&mut self) {
        self.ring.refuse_kicks();
    }

    /// Called when the guest has kicked, or its descriptor says that it never will again.
    pub(crate) fn drain_kicks(&mut self) {
        let read = self.signals.kick.as_ref().map(|kick| rustix::io::read(kick, &mut [0; 8]));
        if !matches!(read, Some(Ok(1..) | Err(Errno::AGAIN | Errno::INTR))) {
            self.signals.kick = None;
        }
    }
}

/// The priority of a request, as Linux tells it in the header, and none above `best`. A request that tells none has the
/// one that it has in Linux, best effort: with `best` it would go before all that say what they are.
pub(crate) fn priority_of(word: u32, best: IoPriority) -> IoPriority {
    let level = (word & 7) as u8;
    let said = match word >> 13 & 7 {
        1 => IoPriority { class: Class::RealTime, level },
        2 => IoPriority { class: Class::BestEffort, level },
        3 => IoPriority { class: Class::Idle, level },
        _ => IoPriority::default(),
    };
    let rank = |priority: IoPriority| (priority.class.index(), priority.level);
    if rank(said) < rank(best) { best } else { said }
}
