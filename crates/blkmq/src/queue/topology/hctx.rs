//! Hardware queues: the tags, the list of what is to be issued, and the dispatch list.

use std::fmt::{self, Write};
use std::sync::OnceLock;

use blkmq_sched::RqId;

use super::flush::FlushQueue;
use super::layout::Layout;
use crate::driver::{StartedTable, Topology};
use crate::request::limits::{MAX_HW_QUEUES, MAX_THREADS};
use crate::request::{Location, Request, RqList, Slots};
use blkmq_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use blkmq_sync::handover::{Handover, Inbox};
use blkmq_sync::tags::Tags;
use blkmq_sync::{Line, Mutex, place_anew};

/// A hardware queue.
#[derive(Debug)]
pub(crate) struct HwCtx {
    pub(crate) tags: Tags,
    /// Which request has which tag, for the requests that the driver works on.
    pub(crate) started: StartedTable,
    /// The issue list. The list's holder keeps in order what the driver refused.
    pub(crate) issue: Handover<RqList>,
    /// Only if the hardware queue has an owner: other threads have put something on the issue list.
    pub(crate) inbox: Inbox,
    /// The issue list needs another try, because the driver refused something, or the thread that drained the list left
    /// the rest to other threads when its rounds had run out.
    pub(crate) stalled: Line<AtomicBool>,
    /// The driver gave back what it was offered last. While this is set, a thread that goes to sleep plans for another
    /// try.
    pub(crate) gave_back: Line<AtomicBool>,
    /// How often the driver refused something lately. With each batch offered it becomes 7/8 of itself, and 16/8 more
    /// if the driver refused a part of the batch. Only a thread that issues writes it.
    dispatch_busy: Line<AtomicU32>,
    /// In a split queue: completed requests other than reads that the scheduler had dispatched. The count wraps.
    nr_limited_completed: Line<AtomicU64>,
    dispatch: DispatchList,
    /// Which threads' software queues hold requests for this hardware queue.
    ctx_map: Box<[Line<AtomicU64>]>,
    /// How many such threads there are.
    nr_marked: AtomicU32,
    /// The next search of `ctx_map` begins at this thread.
    dispatch_from: AtomicU32,
    pub(super) flush: Mutex<FlushQueue>,
}

/// What waits between scheduler and driver: flush steps, requests that the driver gave back, and requests that lack a
/// tag.
#[derive(Debug)]
struct DispatchList {
    list: Mutex<RqList>,
    len: AtomicU32,
}

impl HwCtx {
    fn new(depth: u16) -> Self {
        let depth = u32::from(depth);
        Self {
            tags: Tags::new(depth, depth),
            started: StartedTable::new(depth as usize),
            issue: Handover::new(RqList::default()),
            inbox: Inbox::default(),
            stalled: Line::new("hctx.stalled", AtomicBool::new(false)),
            gave_back: Line::new("hctx.gave_back", AtomicBool::new(false)),
            dispatch_busy: Line::new("hctx.dispatch_busy", AtomicU32::new(0)),
            nr_limited_completed: Line::new("hctx.nr_limited_completed", AtomicU64::new(0)),
            dispatch: DispatchList { list: Mutex::new(RqList::default()), len: AtomicU32::new(0) },
            ctx_map: (0..MAX_THREADS / 64).map(|_| Line::new("hctx.ctx_map", AtomicU64::new(0))).collect(),
            nr_marked: AtomicU32::new(0),
            dispatch_from: AtomicU32::new(0),
            flush: Mutex::new(FlushQueue::default()),
        }
    }

    /// Notes that the driver gave back a request that waits here now. Returns whether that is new.
    pub(crate) fn note_gave_back(&self) -> bool {
        // Release publishes the request on the dispatch list to the thread that clears the mark.
        !self.gave_back.swap(true, Ordering::Release)
    }

    /// Clears the mark, unless a request waits that the driver may have given back meanwhile.
    #[cold]
    pub(crate) fn clear_gave_back(&self) {
        // Acquire pairs with the Release of `note_gave_back`: if the mark that is taken away here is that of a request
        // which waits, this thread finds the request below. A mark that comes later stays.
        let was_set = self.gave_back.swap(false, Ordering::Acquire);
        if was_set && self.nr_dispatch() > 0 {
            self.gave_back.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the driver refused something lately.
    pub(crate) fn is_busy(&self) -> bool {
        self.dispatch_busy.load(Ordering::Relaxed) > 0
    }

    /// Notes that the driver was offered a batch, and whether it refused a part of the batch. Linux estimates with the
    /// same average how busy the device is.
    pub(crate) fn note_offer(&self, refused: bool) {
        let before = self.dispatch_busy.load(Ordering::Relaxed);
        if before > 0 || refused {
            let busy = (before * 7 + if refused { 16 } else { 0 }) / 8;
            self.dispatch_busy.store(busy, Ordering::Relaxed);
        }
    }

    /// In a split queue: counts completed requests other than reads that the scheduler had dispatched.
    #[cold]
    pub(crate) fn note_limited(&self, number: u32) {
        debug_assert!(number > 0, "a completion is counted");
        self.nr_limited_completed.fetch_add(number.into(), Ordering::Relaxed);
    }

    pub(in crate::queue) fn nr_limited_completed(&self) -> u64 {
        self.nr_limited_completed.load(Ordering::Relaxed)
    }

    /// Names what lies on no line of its own, for rigs. The hardware queue has its place.
    fn name_places(&self) {
        self.tags.name_places();
        place_anew("hctx.dispatch", &self.dispatch);
        place_anew("hctx.nr_marked", &self.nr_marked);
        place_anew("hctx.dispatch_from", &self.dispatch_from);
        place_anew("hctx.flush", &self.flush);
    }

    /// Puts a request at the end of the dispatch list.
    pub(crate) fn add_to_dispatch_list(&self, rq: Request<'_>) {
        debug_assert!(rq.body().tag.is_none(), "what is on the dispatch list has no tag: {rq:?}");
        let mut list = self.dispatch.list.lock();
        list.push_back(rq, Location::DispatchList);
        self.dispatch.len.store(list.len() as u32, Ordering::Relaxed);
    }

    /// Takes the first request of the dispatch list.
    pub(crate) fn take_from_dispatch_list<'q>(&self, slots: &'q Slots) -> Option<Request<'q>> {
        let mut list = self.dispatch.list.lock();
        let rq = list.pop_front(slots);
        self.dispatch.len.store(list.len() as u32, Ordering::Relaxed);
        rq
    }

    /// How many requests are on the dispatch list. The number may be out of date at once.
    pub(crate) fn nr_dispatch(&self) -> u32 {
        self.dispatch.len.load(Ordering::Relaxed)
    }

    /// Marks that a thread's software queue holds requests for this hardware queue. Called under the software queue's
    /// lock.
    pub(super) fn mark_ctx(&self, thread: u16) {
        let bit = 1 << (thread % 64);
        if self.ctx_map[usize::from(thread / 64)].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.nr_marked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Marks that a thread's software queue holds no requests any more. Called under the software queue's lock, so no
    /// other thread changes its bit. The count goes down before the bit is cleared, and up after a bit is set. So a
    /// thread that reads a count above zero finds a bit, and does not spin until another thread makes progress.
    pub(super) fn unmark_ctx(&self, thread: u16) {
        let (word, bit) = (&self.ctx_map[usize::from(thread / 64)], 1 << (thread % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            self.nr_marked.fetch_sub(1, Ordering::Relaxed);
            // Release: a thread that reads the bit as gone reads the count that went down before.
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    pub(crate) fn has_marked_ctx(&self) -> bool {
        self.nr_marked.load(Ordering::Relaxed) > 0
    }

    /// The next thread, round-robin, whose software queue holds something for this hardware queue.
    pub(super) fn next_ctx(&self) -> Option<u16> {
        let from = self.dispatch_from.load(Ordering::Relaxed) as usize;
        // Acquire pairs with the Release of `unmark_ctx`.
        let found = next_bit(self.ctx_map.len(), from, |at| self.ctx_map[at].load(Ordering::Acquire))?;
        self.dispatch_from.store(found as u32 + 1, Ordering::Relaxed);
        u16::try_from(found).ok()
    }
}

/// The first bit that is set at or behind `from`, going round. Each of the words has 64 bits.
#[inline]
pub(in crate::queue) fn next_bit(nr_words: usize, from: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    debug_assert!(nr_words > 0, "there are bits");
    let (from, behind) = (from / 64 % nr_words, u64::MAX << (from % 64));
    (0..=nr_words).find_map(|step| {
        let at = (from + step) % nr_words;
        let bits = match step {
            0 => word(at) & behind,
            _ if step == nr_words => word(at) & !behind,
            _ => word(at),
        };
        (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
    })
}

/// All hardware queues that a device ever had. Each is made when it is first needed, and none is freed before the
/// queue.
#[derive(Debug)]
pub(crate) struct HwCtxTable {
    entries: Box<[OnceLock<HwCtx>]>,
    layout: AtomicU64,
    depth: u16,
}

impl HwCtxTable {
    pub(in crate::queue) fn new(topology: &Topology) -> Self {
        let layout = Layout::of(topology);
        let table = Self {
            entries: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            layout: AtomicU64::new(layout.pack()),
            depth: topology.depth,
        };
        table.make_entries(layout);
        table
    }

    /// Names what lies on no line of its own, for rigs. The queue has its place.
    pub(in crate::queue) fn name_places(&self) {
        place_anew("hctx.layout", &self.layout);
    }

    /// Changes the number of queues. Called when nothing is in flight.
    pub(in crate::queue) fn set_layout(&self, layout: Layout) {
        debug_assert!(self.is_idle(), "the number of hardware queues changes while nothing is in flight");
        self.make_entries(layout);
        // Release publishes the queues that were just made to the Acquire of `layout`.
        self.layout.store(layout.pack(), Ordering::Release);
    }

    fn make_entries(&self, layout: Layout) {
        debug_assert!(layout.len() > 0, "a device has a hardware queue");
        for entry in &self.entries[..usize::from(layout.len())] {
            entry.get_or_init(|| HwCtx::new(self.depth)).name_places();
        }
    }

    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        // Acquire pairs with the Release of `set_layout`.
        Layout::unpack(self.layout.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn get(&self, index: u16) -> &HwCtx {
        self.entries[usize::from(index)].get().expect("a hardware queue of the layout was made")
    }

    /// Every hardware queue in use, with its number.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &HwCtx)> {
        (0..self.layout().len()).map(|index| (index, self.get(index)))
    }

    /// How many tags each hardware queue has.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Whether no tag is out. For assertions.
    pub(in crate::queue) fn is_idle(&self) -> bool {
        self.iter().all(|(_, hctx)| hctx.tags.weight() == 0)
    }

    /// Whether each hardware queue has a request on its dispatch list. A request that is chosen then would have to go
    /// there too, whatever its hardware queue is.
    pub(crate) fn all_have_dispatch(&self) -> bool {
        self.iter().all(|(_, hctx)| hctx.nr_dispatch() > 0)
    }

    /// Calls `each` for each request that the driver has just now, with its id and whether it is a read.
    pub(in crate::queue) fn for_each_with_driver(&self, slots: &Slots, mut each: impl FnMut(RqId, bool)) {
        for (_, hctx) in self.iter() {
            hctx.tags.for_each_busy(|tag| {
                if let Some((id, is_read)) = hctx.started.get(tag)
                    && slots.is_with_driver(id)
                {
                    each(id, is_read);
                }
            });
        }
    }

    /// For dumps.
    pub(crate) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        for (index, hctx) in self.iter() {
            let (waiting, running, is_running, data) = hctx.flush.lock().state();
            let [stalled, gave_back] = [&hctx.stalled, &hctx.gave_back].map(|flag| flag.load(Ordering::Relaxed));
            let (dispatch, incoming) = (hctx.nr_dispatch(), hctx.issue.is_pending());
            write!(out, "hctx {index}: dispatch list {dispatch} issue list incoming {incoming} stalled {stalled}")?;
            writeln!(out, " gave back {gave_back} inbox {}", hctx.inbox.is_full())?;
            writeln!(out, "  flush: waiting {waiting} served {running} running {is_running} data in flight {data}")?;
            write!(out, "  tags: ")?;
            hctx.tags.show(out)?;
            writeln!(out)?;
            let mut busy = Vec::new();
            hctx.tags.for_each_busy(|tag| busy.push(tag));
            for tag in busy {
                let id = hctx.started.get(tag);
                writeln!(out, "  tag {} last started {:x?}", tag.0, id.map(|(id, _)| id.0))?;
            }
        }
        Ok(())
    }
}
