//! Hardware queues: tags, the list of what is to be issued, and what waits in front of the scheduler.

use std::sync::OnceLock;

use crate::driver::{StartedTable, Topology};
use crate::flush::FlushQueue;
use crate::handover::{Handover, Inbox};
use crate::layout::Layout;
use crate::member::MAX_MEMBERS;
use crate::request::{Place, Request, RqList, Slots};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Line, Mutex};
use crate::tags::Tags;

/// Hardware queues that a device can have.
pub const MAX_HW_QUEUES: usize = 1024;

/// Tags that a hardware queue can have.
pub const MAX_DEPTH: u16 = 10240;

/// A hardware queue.
#[derive(Debug)]
pub(crate) struct HwCtx {
    pub(crate) tags: Tags,
    /// Which request has which tag, of those that the driver works on.
    pub(crate) started: StartedTable,
    /// The issue list. Its holder keeps what the driver refused, in order.
    pub(crate) issue: Handover<RqList>,
    /// Of an owned hardware queue: others have put something on the issue list.
    pub(crate) inbox: Inbox,
    /// The issue list needs another try: the driver refused, or whoever drained it had done its share.
    pub(crate) stalled: Line<AtomicBool>,
    /// The driver gave back what it was offered last: while this is set, whoever sleeps plans for another try.
    pub(crate) gave_back: Line<AtomicBool>,
    /// How often the driver refused something of late: 16 for each time, of which an eighth goes with each batch
    /// offered. Only who issues writes it.
    dispatch_busy: Line<AtomicU32>,
    /// How often somebody found no tag here, wrapping.
    nr_lacked: Line<AtomicU32>,
    dispatch: DispatchList,
    /// Which members' software queues hold requests for this hardware queue.
    ctx_map: Box<[Line<AtomicU64>]>,
    /// How many they are.
    nr_marked: AtomicU32,
    /// The member whose turn is next.
    dispatch_from: AtomicU32,
    /// Requests that polls of this hardware queue brought, wrapping, where threads wait for the device's descriptors.
    nr_brought: AtomicU32,
    pub(crate) flush: Mutex<FlushQueue>,
}

/// What waits in front of the scheduler: flush steps, requests that the driver gave back, and those whose tag is
/// missing.
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
            issue: Handover::new(RqList::new()),
            inbox: Inbox::new(),
            stalled: Line::new("hctx.stalled", AtomicBool::new(false)),
            gave_back: Line::new("hctx.gave_back", AtomicBool::new(false)),
            dispatch_busy: Line::new("hctx.dispatch_busy", AtomicU32::new(0)),
            nr_lacked: Line::new("hctx.nr_lacked", AtomicU32::new(0)),
            dispatch: DispatchList { list: Mutex::new(RqList::new()), len: AtomicU32::new(0) },
            ctx_map: (0..MAX_MEMBERS / 64).map(|_| Line::new("hctx.ctx_map", AtomicU64::new(0))).collect(),
            nr_marked: AtomicU32::new(0),
            dispatch_from: AtomicU32::new(0),
            nr_brought: AtomicU32::new(0),
            flush: Mutex::new(FlushQueue::default()),
        }
    }

    /// A poll brought so many requests.
    pub(crate) fn note_brought(&self, nr: u32) {
        self.nr_brought.fetch_add(nr, Ordering::Relaxed);
    }

    /// How many requests polls brought, wrapping.
    pub(crate) fn nr_brought(&self) -> u32 {
        self.nr_brought.load(Ordering::Relaxed)
    }

    /// Whether the driver refused something of late.
    pub(crate) fn is_busy(&self) -> bool {
        self.dispatch_busy.load(Ordering::Relaxed) > 0
    }

    /// The driver was offered a batch, and refused a part of it or not: Linux's estimate of how busy the device is.
    pub(crate) fn note_offer(&self, refused: bool) {
        let before = self.dispatch_busy.load(Ordering::Relaxed);
        if before > 0 || refused {
            let busy = (before * 7 + if refused { 16 } else { 0 }) / 8;
            self.dispatch_busy.store(busy, Ordering::Relaxed);
        }
    }

    /// Somebody found no tag. Called before the fence and the second look that this owes.
    pub(crate) fn note_lack(&self) {
        self.nr_lacked.fetch_add(1, Ordering::Relaxed);
    }

    /// How often somebody found no tag, wrapping. Who reads it before he takes tags, and behind the fence that follows
    /// the return of those he held in vain, knows whether anybody lacked them meanwhile. The fences make that certain,
    /// his and that of who lacked one: either that one's second look finds the tag, or it is in the count.
    pub(crate) fn nr_lacked(&self) -> u32 {
        self.nr_lacked.load(Ordering::Relaxed)
    }

    /// Puts a request on the dispatch list, behind what is there.
    pub(crate) fn park(&self, rq: Request<'_>) {
        let mut list = self.dispatch.list.lock();
        list.push_back(rq, Place::DispatchList);
        self.dispatch.len.store(list.len() as u32, Ordering::Relaxed);
    }

    /// Takes the first request of the dispatch list.
    pub(crate) fn unpark<'q>(&self, slots: &'q Slots) -> Option<Request<'q>> {
        let mut list = self.dispatch.list.lock();
        let rq = list.pop_front(slots);
        self.dispatch.len.store(list.len() as u32, Ordering::Relaxed);
        rq
    }

    /// Requests on the dispatch list, as of a moment ago.
    pub(crate) fn nr_parked(&self) -> u32 {
        self.dispatch.len.load(Ordering::Relaxed)
    }

    /// A member's software queue holds requests for this hardware queue. Called under the software queue's lock.
    pub(crate) fn mark_ctx(&self, member: u16) {
        let bit = 1 << (member % 64);
        if self.ctx_map[usize::from(member / 64)].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.nr_marked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It holds none any more. Called under the software queue's lock, so nobody else changes its bit. The count goes
    /// down first and up last: who reads a count above zero finds a bit, and does not spin until another thread gets
    /// on.
    pub(crate) fn unmark_ctx(&self, member: u16) {
        let (word, bit) = (&self.ctx_map[usize::from(member / 64)], 1 << (member % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            self.nr_marked.fetch_sub(1, Ordering::Relaxed);
            // Release: who reads the bit gone reads the count that went down before it.
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    pub(crate) fn has_marked_ctx(&self) -> bool {
        self.nr_marked.load(Ordering::Relaxed) > 0
    }

    /// The next member, round-robin, whose software queue has something for this hardware queue.
    pub(crate) fn next_ctx(&self) -> Option<u16> {
        let from = self.dispatch_from.load(Ordering::Relaxed) as usize % MAX_MEMBERS;
        let found = (0..=self.ctx_map.len()).find_map(|step| {
            let at = (from / 64 + step) % self.ctx_map.len();
            // Acquire pairs with the Release of `unmark_ctx`.
            let mut word = self.ctx_map[at].load(Ordering::Acquire);
            if step == 0 {
                word &= u64::MAX << (from % 64);
            } else if step == self.ctx_map.len() {
                word &= !(u64::MAX << (from % 64));
            }
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })?;
        self.dispatch_from.store(found as u32 + 1, Ordering::Relaxed);
        u16::try_from(found).ok()
    }
}

/// All hardware queues a device ever had. Made when first needed; none goes before the queue.
#[derive(Debug)]
pub(crate) struct HwCtxTable {
    entries: Box<[OnceLock<HwCtx>]>,
    layout: AtomicU64,
    depth: u16,
}

impl HwCtxTable {
    pub(crate) fn new(topology: &Topology) -> Self {
        let table = Self {
            entries: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            layout: AtomicU64::new(0),
            depth: topology.depth,
        };
        table.set_layout(Layout::of(topology));
        table
    }

    /// Changes the number of queues. Nothing is in flight then.
    pub(crate) fn set_layout(&self, layout: Layout) {
        for entry in &self.entries[..usize::from(layout.len())] {
            let _ = entry.get_or_init(|| HwCtx::new(self.depth));
        }
        // Release publishes the queues that were just made to the Acquire of `layout`.
        self.layout.store(layout.pack(), Ordering::Release);
    }

    pub(crate) fn layout(&self) -> Layout {
        // Acquire pairs with the Release of `set_layout`.
        Layout::unpack(self.layout.load(Ordering::Acquire))
    }

    pub(crate) fn get(&self, index: u16) -> &HwCtx {
        self.entries[usize::from(index)].get().expect("a hardware queue of the layout was made")
    }

    /// Every hardware queue in use, with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &HwCtx)> {
        (0..self.layout().len()).map(|index| (index, self.get(index)))
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }
}
