//! One ring at work: chains become requests of the engine, and tasks that are over become answers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::SECTOR_SIZE;
use blkmq::{Buffers, Class, IoPriority, Limits};
use blkmq_engine::{self as engine, Cause, Failure, Hints, Session, TaskId};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};

use crate::external::{ExternalBuffers, Lists};
use crate::memory::{Memory, Piece};
use crate::protocol::message::Signal;
use crate::request::{self, NAME, Range, Request};
use crate::ring::{Chain, Fault};
use crate::virtqueue::{Taken, Virtqueue};

/// What holds for all rings of a connection.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    pub(crate) is_read_only: bool,
    /// Writes are durable when they are over: the guest does not flush.
    pub(crate) is_write_through: AtomicBool,
    pub(crate) name: [u8; NAME],
    /// Requests have the priority that the guest says, and none above this one.
    pub(crate) guest_priority: Option<IoPriority>,
    /// The longest request, in bytes, whose data may be copied: the engine certainly gets memory for it.
    pub(crate) most_copied: usize,
}

/// Eventfds by which the guest and the device wake each other.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) kick: Option<OwnedFd>,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) error: Option<OwnedFd>,
}

impl Signals {
    pub(crate) fn get_mut(&mut self, signal: Signal) -> &mut Option<OwnedFd> {
        match signal {
            Signal::Kick => &mut self.kick,
            Signal::Call => &mut self.call,
            Signal::Error => &mut self.error,
        }
    }
}

/// A chain at work, as the engine keeps it with its task.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Own {
    /// The ring's number.
    pub(crate) ring: u16,
    chain: Taken,
    /// The pieces of its data, unless that is one piece.
    nr_pieces: u16,
    /// Bytes of data that the guest gets.
    len: u32,
    status_at: Piece,
}

/// What few requests have beside that.
#[derive(Debug)]
enum Extra {
    /// Where the guest gets data that is copied, because it is no whole sectors there, or no whole blocks here.
    Read(Vec<Piece>),
    /// From where data is still to be copied.
    Write(Vec<Piece>),
    /// Ranges that are still to be done, one after the other. Each is a task.
    Ranges(Rest),
}

/// What is left of a request with ranges.
#[derive(Debug)]
struct Rest {
    kind: u32,
    priority: Option<IoPriority>,
    ranges: std::vec::IntoIter<Range>,
}

/// A request for which the engine has no memory now, or not for the rest of its data.
#[derive(Debug)]
struct Late {
    /// Its task, if the engine has taken it.
    task: Option<TaskId>,
    request: engine::Request<Own>,
    extra: Option<Extra>,
}

/// One ring at work.
#[derive(Debug)]
pub(crate) struct RingServer {
    pub(crate) number: u16,
    pub(crate) is_enabled: bool,
    pub(crate) signals: Signals,
    /// The ring is to be given back: of a request of many parts no further part is begun.
    begins_no_part: bool,
    /// A fault ended it: no requests are taken any more.
    pub(crate) is_broken: bool,
    pub(crate) virtqueue: Virtqueue,
    /// The most requests that may be in progress.
    pub(crate) size: u16,
    /// Chains that were taken and not given back.
    nr_taken: u16,
    /// The pieces of those of these that have several.
    pub(crate) nr_pieces: usize,
    external: ExternalBuffers<Memory>,
    terms: Arc<Terms>,
    /// What the tasks have that is rare.
    extras: Vec<(TaskId, Extra)>,
    late: VecDeque<Late>,
    /// Something was given back that the guest has not been shown.
    is_dirty: bool,
}

impl RingServer {
    pub(crate) fn new(number: u16, size: u16, virtqueue: Virtqueue, memory: &Memory, terms: Arc<Terms>) -> Self {
        Self {
            number,
            is_enabled: false,
            signals: Signals::default(),
            begins_no_part: false,
            is_broken: false,
            virtqueue,
            size,
            nr_taken: 0,
            nr_pieces: 0,
            // A count of its own: others would share its line with other threads.
            external: ExternalBuffers::new(Arc::new(memory.clone())),
            terms,
            extras: Vec::new(),
            late: VecDeque::new(),
            is_dirty: false,
        }
    }

    /// Whether nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.nr_taken == 0
    }

    /// Takes the next chain, if there is one and it may be in progress. It has to [begin](Self::begin) then.
    pub(crate) fn take(&mut self, chain: &mut Chain) -> Result<Option<(Request, Taken)>, Fault> {
        if !self.has_room() {
            return Ok(None);
        }
        let memory = &**self.external.memory();
        let Some(taken) = self.virtqueue.take(memory, chain)? else { return Ok(None) };
        Request::parse(memory, chain).map(|request| Some((request, taken)))
    }

    /// Makes a chain that was taken a task of the session, which has room.
    pub(crate) fn begin(
        &mut self,
        (request, taken): (Request, Taken),
        chain: &mut Chain,
        session: &mut Session<Own>,
        lists: &mut Lists,
    ) {
        self.nr_taken += 1;
        let mut own = Own { ring: self.number, chain: taken, nr_pieces: 0, len: 0, status_at: request.status };
        match request.kind {
            VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES if self.terms.is_read_only => {
                refuse(session, own, Cause::NotPermitted, "nothing can be written");
            }
            VIRTIO_BLK_T_IN => self.move_data((engine::Ask::Read, &request), &chain.writable, own, session, lists),
            VIRTIO_BLK_T_OUT => {
                let ask = engine::Ask::Write { fua: self.is_write_through() };
                self.move_data((ask, &request), &chain.readable, own, session, lists);
            }
            VIRTIO_BLK_T_FLUSH => {
                let asking = self.asking(engine::Ask::Flush, (0, 0), self.priority(&request), own);
                self.enter_new(asking, None, session);
            }
            VIRTIO_BLK_T_GET_ID => {
                let mut name = &self.terms.name[..];
                for piece in &chain.writable {
                    self.external.memory().write(*piece, name);
                    name = &name[name.len().min(piece.len as usize)..];
                }
                own.len = (NAME - name.len()) as u32;
                self.enter_new(self.asking(engine::Ask::Tell { bytes: 0 }, (0, 0), None, own), None, session);
            }
            kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) => {
                match Range::all(self.external.memory(), &mut chain.readable) {
                    Some(ranges) if ranges.iter().all(|range| range.has_known_flags(kind)) => {
                        let priority = self.priority(&request);
                        self.go_on(own, Rest { kind, priority, ranges: ranges.into_iter() }, session);
                    }
                    Some(_) => refuse(session, own, Cause::Unsupported, "a range has a flag that does not exist"),
                    None => refuse(session, own, Cause::Invalid, "there are no ranges, or too many"),
                }
            }
            _ => refuse(session, own, Cause::Unsupported, "there is no such request"),
        }
    }

    fn is_write_through(&self) -> bool {
        // Relaxed: the guest knows when it has changed this, and waits before it writes.
        self.terms.is_write_through.load(Ordering::Relaxed)
    }

    fn priority(&self, request: &Request) -> Option<IoPriority> {
        self.terms.guest_priority.map(|best| priority_of(request.priority, best))
    }

    /// A request of bytes from the first one on, and of so many.
    fn asking(
        &self,
        ask: engine::Ask,
        (offset, length): (u64, u64),
        priority: Option<IoPriority>,
        own: Own,
    ) -> engine::Request<Own> {
        engine::Request { ask, offset, length, priority, hints: Hints::default(), own }
    }

    /// Reads into this memory, or writes from it: without a copy, unless it would be of parts of sectors or blocks.
    fn move_data(
        &mut self,
        (ask, request): (engine::Ask, &Request),
        pieces: &[Piece],
        mut own: Own,
        session: &mut Session<Own>,
        lists: &mut Lists,
    ) {
        // A chain has far fewer pieces than the number may be.
        own.nr_pieces = if pieces.len() > 1 { pieces.len() as u16 } else { 0 };
        self.nr_pieces += usize::from(own.nr_pieces);
        let len = request::len(pieces);
        if len == 0 || !len.is_multiple_of(SECTOR_SIZE) {
            return refuse(session, own, Cause::Invalid, "the data is no whole sectors");
        }
        let is_read = ask == engine::Ask::Read;
        own.len = if is_read { len as u32 } else { 0 };
        let range = (request.sector.saturating_mul(SECTOR_SIZE as u64), len as u64);
        let asking = self.asking(ask, range, self.priority(request), own);
        let is_part = (range.0 | range.1) & u64::from(self.terms.limits.logical_block_size - 1) != 0;
        if !is_part && request::is_whole(pieces) {
            let taken = session.take_external(&asking, &mut self.external.take(pieces, lists));
            debug_assert!(taken.is_some(), "the session has room");
        } else if len > self.terms.most_copied {
            refuse(session, own, Cause::NoMemory, "there is never memory for a copy of so much");
        } else {
            let pieces = pieces.to_vec();
            self.enter_new(asking, Some(if is_read { Extra::Read(pieces) } else { Extra::Write(pieces) }), session);
        }
    }

    fn enter_new(&mut self, request: engine::Request<Own>, extra: Option<Extra>, session: &mut Session<Own>) {
        if let Some(late) = self.enter(Late { task: None, request, extra }, session) {
            // Behind a write that has come halfway: this one may wait for that one's memory.
            self.late.push_back(late);
        }
    }

    /// Has the session take a request, and its data. Returns the request if there is no memory now.
    fn enter(&mut self, late: Late, session: &mut Session<Own>) -> Option<Late> {
        let Late { task, request, extra } = late;
        let Some(id) = task.or_else(|| session.take(&request)) else { return Some(Late { task, request, extra }) };
        match extra {
            Some(Extra::Write(mut pieces)) => {
                while !pieces.is_empty() {
                    match session.next_piece(id) {
                        engine::Piece::Here(mut buffer, skip) => {
                            request::cut_front(self.external.memory(), &mut pieces, &mut buffer[skip..]);
                            session.take_piece(id, buffer);
                        }
                        engine::Piece::Useless => pieces.clear(),
                        engine::Piece::Later => {
                            let extra = Some(Extra::Write(pieces));
                            return Some(Late { task: Some(id), request, extra });
                        }
                    }
                }
                session.end_payload(id);
            }
            Some(extra) => self.extras.push((id, extra)),
            None => (),
        }
        None
    }

    /// Tries what is late once more. Returns whether any is not late any more.
    pub(crate) fn catch_up(&mut self, session: &mut Session<Own>) -> bool {
        let mut has_any = false;
        while let Some(late) = self.late.pop_front() {
            if let Some(late) = self.enter(late, session) {
                self.late.push_front(late);
                break;
            }
            has_any = true;
        }
        has_any
    }

    /// Begins the next range of a request that has no task, or ends the request.
    fn go_on(&mut self, own: Own, mut rest: Rest, session: &mut Session<Own>) {
        let Some(range) = rest.ranges.next() else { return self.put(own, VIRTIO_BLK_S_OK, 0) };
        if self.begins_no_part {
            return self.break_off(own, session);
        }
        let fua = self.is_write_through();
        let ask = match rest.kind {
            // The guest has a way of its own if the device cannot make them.
            VIRTIO_BLK_T_WRITE_ZEROES => engine::Ask::WriteZeroes { fua, no_hole: !range.may_unmap(), fast: true },
            _ => engine::Ask::Discard { fua },
        };
        let sector = SECTOR_SIZE as u64;
        let bytes = (range.sector.saturating_mul(sector), u64::from(range.nr_sectors) * sector);
        self.enter_new(self.asking(ask, bytes, rest.priority, own), Some(Extra::Ranges(rest)), session);
    }

    /// Begins no further part of a request of many parts: such a request may take hours, and nobody waits that long.
    /// Nor is a request begun that waits for memory, which other clients may keep for long, if the record has it.
    pub(crate) fn begin_no_part(&mut self, session: &mut Session<Own>) {
        self.begins_no_part = true;
        let is_of_parts = |extra: &Extra| matches!(extra, Extra::Ranges(_));
        self.extras.iter().filter(|(_, extra)| is_of_parts(extra)).for_each(|(id, _)| session.cut_short(*id));
        for late in std::mem::take(&mut self.late) {
            let may_stay = self.virtqueue.has_record() && late.task.is_none();
            match may_stay || late.extra.as_ref().is_some_and(is_of_parts) {
                true => self.break_off(late.request.own, session),
                false => self.late.push_back(late),
            }
        }
        // What still waits asks for its memory once more.
        session.wait_no_more();
    }

    /// Ends a request of which all or parts are left. In the record it stays in progress: it is begun once more when
    /// the ring goes on. Without a record the guest needs an answer.
    fn break_off(&mut self, own: Own, session: &mut Session<Own>) {
        if self.virtqueue.has_record() {
            return self.forget(&own);
        }
        session.count_error(Cause::Shutdown);
        self.put(own, VIRTIO_BLK_S_IOERR, 0);
    }

    /// Called when a task of this ring is over.
    pub(crate) fn finish(
        &mut self,
        id: TaskId,
        failure: Option<Failure>,
        session: &mut Session<Own>,
        lists: &mut Lists,
    ) {
        let own = *session.own(id);
        match session.reclaim(id) {
            Buffers::None if !self.extras.is_empty() => {
                let at = self.extras.iter().position(|(of, _)| *of == id);
                match (at.map(|at| self.extras.swap_remove(at).1), &failure) {
                    (Some(Extra::Read(pieces)), None) => copy_out(self.external.memory(), &pieces, session.pieces(id)),
                    (Some(Extra::Ranges(rest)), None) => {
                        session.forget(id);
                        return self.go_on(own, rest, session);
                    }
                    (Some(Extra::Ranges(_)), Some(failure))
                        if failure.cause == Cause::Shutdown && self.begins_no_part =>
                    {
                        session.forget(id);
                        return self.break_off(own, session);
                    }
                    _ => (),
                }
            }
            Buffers::None => (),
            buffers => self.external.take_back(buffers, lists),
        }
        let (status, len) = match failure {
            None => (VIRTIO_BLK_S_OK, own.len),
            Some(failure) => {
                session.count_error(failure.cause);
                (if failure.cause == Cause::Unsupported { VIRTIO_BLK_S_UNSUPP } else { VIRTIO_BLK_S_IOERR }, 0)
            }
        };
        session.forget(id);
        self.put(own, status, len);
    }

    /// Writes the status, and gives the chain back. `len`: bytes of data that the guest gets.
    fn put(&mut self, own: Own, status: u32, len: u32) {
        self.external.memory().set(own.status_at, status as u8);
        self.virtqueue.put(own.chain, len + 1);
        self.forget(&own);
        self.is_dirty = true;
    }

    /// Called when a chain is in progress no more.
    fn forget(&mut self, own: &Own) {
        self.nr_taken -= 1;
        self.nr_pieces -= usize::from(own.nr_pieces);
    }

    /// Shows the guest what was given back. Returns whether it wants to be told.
    pub(crate) fn publish(&mut self) -> bool {
        std::mem::take(&mut self.is_dirty) && self.virtqueue.publish()
    }

    /// Whether one more request may be in progress.
    pub(crate) fn has_room(&self) -> bool {
        self.nr_taken < self.size && self.late.is_empty()
    }
}

/// A request that is not done. It has its answer in its turn.
#[cold]
fn refuse(session: &mut Session<Own>, own: Own, cause: Cause, why: &'static str) {
    let taken = session.refuse(own, Failure::new(cause, why), false);
    debug_assert!(taken.is_some(), "the session has room");
}

/// Copies data that was read to where the guest wants it.
fn copy_out<'a>(memory: &Memory, pieces: &[Piece], data: impl Iterator<Item = &'a [u8]>) {
    let mut pieces = pieces.iter().copied();
    let mut piece = Piece::default();
    for mut bytes in data {
        while !bytes.is_empty() {
            if piece.len == 0 {
                let Some(next) = pieces.next() else { return };
                piece = next;
            }
            let (first, behind) = piece.split(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            memory.write(first, bytes);
            (piece, bytes) = (behind, &bytes[first.len as usize..]);
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

#[cfg(test)]
pub(crate) mod tests;
