//! The plug: where a submitter gathers operations before it passes them on together. Before a request meets requests of
//! other threads, it may join the request before it.

use blkmq_sched::{MergeLevel, MergeLimits, Op};

use crate::queue::{Count, RequestQueue, first_step};
use crate::request::bio::{Bio, Flags};
use crate::request::{FlushStep, Location, OpAttributes, RejectReason, Request, RqId, RqList, Slots, Status};
use crate::submit::Submitter;
use crate::submit::reap::Outstanding;
use crate::submit::split::{self, Piece, Pieces, UnsplitLimits};

/// Requests: a plug with so many is flushed.
const PLUG_MAX: usize = 32;

/// Sectors (128 KiB): a plug whose newest request has so many is flushed.
const PLUG_FLUSH_SECTORS: u32 = 256;

impl Submitter {
    /// Whether the plug is to be passed on: it is full, and the queue is not known to be frozen.
    #[inline]
    pub(super) fn is_plug_due(&mut self) -> bool {
        let newest = self.plug.with_last(&self.q.0.slots, |rq| rq.nr_sectors());
        let is_full = newest.is_some_and(|nr_sectors| nr_sectors >= PLUG_FLUSH_SECTORS) || self.plug.len() >= PLUG_MAX;
        is_full && self.may_pass_on()
    }

    /// Whether the queue is not known to be frozen.
    #[inline(never)]
    fn may_pass_on(&self) -> bool {
        !self.is_held_back || self.has_plugged()
    }

    /// Whether an operation can be taken as it is, as one request. Most operations can. Nothing has happened yet.
    #[inline(always)]
    pub(super) fn accept_whole(&self, bio: &Bio) -> Option<(OpAttributes, Piece)> {
        let piece = self.whole.piece(bio)?;
        let fits = bio.priority.unwrap_or(self.priority).level <= 7 && !self.free.is_empty();
        fits.then(|| (self.asked(bio, bio.flags, bio.flags.nomerge), piece))
    }

    /// Puts an operation in the plug that was accepted whole just now. `bio` hands the operation over, so that it moves
    /// only once.
    ///
    /// COST: its slot is written once. Apart from the slot, only lines of this thread are written, and no line is read
    /// that others write.
    #[inline(always)]
    pub(super) fn plug_whole(&mut self, asked: &OpAttributes, piece: Piece, bio: impl FnOnce() -> Bio) -> RqId {
        let Self { q: RequestQueue(q), dispatcher, merge_limits, plug, free, .. } = self;
        let mut rq = free.pop_front(&q.slots).expect("a slot was free just now");
        let index = rq.index();
        rq.body_mut().begin(asked, self.plug_time, index, piece.nr_segments, piece.of(index));
        rq.put_bio(bio);
        let id = rq.id();
        if plug_or_merge(&q.slots, merge_limits, plug, rq) {
            dispatcher.thread(q).counters.count(Count::MergesPlug, 1);
        }
        id
    }

    /// Called before an operation is looked at. If the plug is empty, what comes into it comes now, from a client that
    /// is in the group that it is in now.
    #[inline(always)]
    pub(super) fn begin_plug_if_empty(&mut self) {
        if self.plug.is_empty() {
            (self.plug_time, self.group) = (self.q.0.clock().now(), self.dispatcher.thread(&self.q.0).group());
        }
    }

    /// How many requests an operation of any kind needs, if it can be taken. Nothing has happened yet.
    #[inline(never)]
    pub(super) fn accept_any(&mut self, bio: &Bio) -> Result<usize, RejectReason> {
        self.check(bio).map_err(RejectReason::Bad)?;
        let nr_parts = split::count(&self.limits, bio, self.outstanding.len());
        if nr_parts > self.outstanding.len() {
            return Err(RejectReason::Bad(Status::TooLarge));
        }
        if nr_parts > self.free.len() { Err(RejectReason::Full) } else { Ok(nr_parts) }
    }

    /// COST: if an operation lies behind the end of the device as this thread knows it, a load of a line that is
    /// written when the device has grown.
    fn check(&mut self, bio: &Bio) -> Result<(), Status> {
        let mut checked = self.limits.check(bio.op, bio.sector, bio.nr_sectors);
        if checked == Err(Status::BeyondEnd) {
            // The device may have grown. The device never shrinks, so what fits the end as this thread knows it fits
            // the device.
            self.limits = self.q.0.limits();
            self.whole = UnsplitLimits::new(&self.limits);
            checked = self.limits.check(bio.op, bio.sector, bio.nr_sectors);
        }
        checked?;
        self.limits.check_durability(bio.op, &bio.flags)?;
        if bio.priority.unwrap_or(self.priority).level > 7 {
            return Err(Status::BadPriority);
        }
        if bio.buffers.pages().is_some() && self.limits.pages_align == 0 {
            return Err(Status::Unsupported);
        }
        if bio.buffers_fit() { Ok(()) } else { Err(Status::BadBuffer) }
    }

    /// Takes slots for the parts of an operation and puts them in the plug, merging where they fit.
    #[inline(never)]
    pub(super) fn plug_parts(&mut self, bio: Bio, nr_parts: usize) -> RqId {
        debug_assert!((1..=self.free.len()).contains(&nr_parts), "there is a slot for each of the {nr_parts} parts");
        let mut flags = bio.flags;
        flags.sync |= flags.fua || flags.preflush;
        let (step, post_flush) = first_step(&self.limits, bio.op, &mut flags);
        // A driver has the pages of one operation at a time: a slot of its table for each request.
        let is_alone = flags.nomerge || flags.fua || step != FlushStep::None || bio.buffers.pages().is_some();
        let asked = self.asked(&bio, flags, is_alone);
        let Self { q: RequestQueue(q), dispatcher, limits, merge_limits, plug, plug_time, free, outstanding, .. } =
            self;
        // A flush means nothing to a device without a volatile cache.
        let is_done = bio.op == Op::Flush && !limits.write_cache;
        let mut next_slot = || free.pop_front(&q.slots).expect("there is a slot for each part");
        let rq = next_slot();
        let parent = rq.index();
        let mut first = Some(rq);
        outstanding[usize::from(parent.slot())] = Outstanding::new(nr_parts as u16);
        let mut id = None;
        for piece in Pieces::new(limits, &bio) {
            let mut rq = first.take().unwrap_or_else(&mut next_slot);
            let index = rq.index();
            let body = rq.body_mut();
            body.begin(&asked, *plug_time, index, piece.nr_segments, piece.of(parent));
            (body.flush, body.post_flush, body.is_split) = (step, post_flush, nr_parts > 1);
            id.get_or_insert(rq.id());
            if is_done {
                rq.body_mut().completed = *plug_time;
                dispatcher.completed().push_back(rq, Location::Completed);
            } else if plug_or_merge(&q.slots, merge_limits, plug, rq) {
                dispatcher.thread(q).counters.count(Count::MergesPlug, 1);
            }
        }
        debug_assert!(first.is_none(), "the first part has the slot of the operation");
        q.slots.store_bio(parent, bio);
        id.expect("an operation has at least one part")
    }

    /// What an operation asks for. `flags` are those that mean something to the device. If `alone`, the operation must
    /// not merge.
    #[inline]
    fn asked(&self, bio: &Bio, flags: Flags, alone: bool) -> OpAttributes {
        OpAttributes {
            client: self.client,
            group: self.group,
            op: bio.op,
            flags,
            priority: bio.priority.unwrap_or(self.priority),
            merge: if alone { MergeLevel::Never } else { self.q.0.settings.merge_level() },
        }
    }
}

/// Puts a request behind the others of a plug, or joins it to the newest one there, by the same rules as in a
/// scheduler. Returns whether it joined.
///
/// COST: a look at where the newest request lies; the rules are applied only if the two requests touch.
#[inline]
fn plug_or_merge(slots: &Slots, limits: &MergeLimits, plug: &mut RqList, rq: Request<'_>) -> bool {
    let is_near = plug.with_last(slots, |newest| newest.body().is_near(rq.body())).unwrap_or(false);
    let rest = if is_near { merge(slots, limits, plug, rq) } else { Some(rq) };
    match rest {
        Some(rq) => {
            plug.push_back(rq, Location::Plugged);
            false
        }
        None => true,
    }
}

/// Joins a request to the newest request of a plug, or gives it back.
fn merge<'q>(slots: &'q Slots, limits: &MergeLimits, plug: &mut RqList, rq: Request<'q>) -> Option<Request<'q>> {
    let mut rq = Some(rq);
    plug.with_last(slots, |newest| {
        let newcomer = rq.as_ref()?.body().info();
        let (how, _) = limits.merged(&newest.body().info(), &newcomer)?;
        newest.absorb(rq.take()?, how);
        Some(())
    });
    rq
}
