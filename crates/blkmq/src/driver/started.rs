//! What a driver has started: which request has which tag, and which threads must be told.

use blkmq_sched::RqId;

use crate::request::FLUSH_POOL;
use crate::request::limits::MAX_THREADS;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::place_anew;
use blkmq_sync::tags::Tag;

/// Which request has a tag of a hardware queue, and whether it is a read. The timeout scan and counts read this.
#[derive(Debug)]
pub(crate) struct StartedTable(Box<[AtomicU64]>);

impl StartedTable {
    /// The entry of a tag that no request has. No id has this value.
    const NOBODY: u64 = u64::MAX;
    /// The bit of an id that says that its request is a read: the uppermost bit of the pool, which is below
    /// [`MAX_THREADS`].
    const READ: u64 = 1 << 31;

    pub(crate) fn new(depth: usize) -> Self {
        let entries: Box<[_]> = (0..depth).map(|_| AtomicU64::new(Self::NOBODY)).collect();
        place_anew("hctx.started", &*entries);
        Self(entries)
    }

    #[inline]
    fn entry(&self, tag: Tag) -> &AtomicU64 {
        &self.0[usize::from(tag.0)]
    }

    pub(super) fn set(&self, tag: Tag, id: RqId, is_read: bool) {
        let marked = if is_read { id.0 | Self::READ } else { id.0 };
        self.entry(tag).store(marked, Ordering::Relaxed);
    }

    /// The request that has `tag`, and whether it is a read.
    pub(crate) fn get(&self, tag: Tag) -> Option<(RqId, bool)> {
        let marked = self.entry(tag).load(Ordering::Relaxed);
        (marked != Self::NOBODY).then_some((RqId(marked & !Self::READ), marked & Self::READ != 0))
    }
}

const _: () = assert!(MAX_THREADS <= 1 << 15);

/// The threads whose requests the driver has begun to work on. These threads may sleep, and must plan
/// for the completion.
#[derive(Debug, Default)]
pub(crate) struct Started {
    pub(crate) any: bool,
    /// Other threads whose requests were started.
    threads: [u16; 8],
    len: usize,
    overflow: bool,
}

impl Started {
    /// Notes that `thread` started a request of `owner`.
    pub(super) fn note(&mut self, owner: u16, thread: u16) {
        self.any = true;
        if owner == thread || self.overflow || self.threads[..self.len].contains(&owner) {
            return;
        }
        // A flush of the queue itself has no owner. The submitters that wait for it are among the sleepers.
        if self.len == self.threads.len() || owner == FLUSH_POOL {
            self.overflow = true;
            return;
        }
        self.threads[self.len] = owner;
        self.len += 1;
    }

    /// The threads to wake. `None`: there were too many to remember, or one is not known, so all that sleep are to be
    /// woken.
    pub(crate) fn threads(&self) -> Option<&[u16]> {
        (!self.overflow).then(|| &self.threads[..self.len])
    }
}
