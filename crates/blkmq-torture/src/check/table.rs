//! What is known of requests, by their id.

use blkmq_sched::RqId;

/// What is known of the request that is in each slot, or that was there last.
#[derive(Debug)]
pub(super) struct Table<T> {
    pools: Vec<Vec<Option<(RqId, T)>>>,
}

/// The entry of this number. Entries that are missing up to it are made by `new`.
pub(super) fn grown<T>(entries: &mut Vec<T>, number: u16, new: impl FnMut() -> T) -> &mut T {
    let number = usize::from(number);
    if number >= entries.len() {
        entries.resize_with(number + 1, new);
    }
    &mut entries[number]
}

/// The pool of a request: the number of the thread that owns it; 0 for the flushes of the queue itself.
pub(super) const fn pool(rq: RqId) -> u16 {
    (rq.0 >> 16) as u16
}

/// The slot of a request in its pool. For a flush of the queue itself, the hardware queue.
pub(super) const fn slot(rq: RqId) -> u16 {
    rq.0 as u16
}

/// How often the slot was used before.
pub(super) const fn generation(rq: RqId) -> u32 {
    (rq.0 >> 32) as u32
}

/// Whether the request is a flush of the queue itself.
pub(super) const fn is_flush(rq: RqId) -> bool {
    pool(rq) == 0
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self { pools: Vec::new() }
    }

    /// The entry of a request's slot.
    pub(super) fn entry(&mut self, rq: RqId) -> &mut Option<(RqId, T)> {
        grown(grown(&mut self.pools, pool(rq), Vec::new), slot(rq), || None)
    }

    /// What is known of exactly this request.
    pub(super) fn get(&self, rq: RqId) -> Option<&T> {
        let entry = self.pools.get(usize::from(pool(rq)))?.get(usize::from(slot(rq)))?.as_ref();
        entry.filter(|(id, _)| *id == rq).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, rq: RqId) -> Option<&mut T> {
        let entry = self.pools.get_mut(usize::from(pool(rq)))?.get_mut(usize::from(slot(rq)))?.as_mut();
        entry.filter(|(id, _)| *id == rq).map(|(_, value)| value)
    }

    /// Whether a later request of the same slot is known. A submitter may learn that an operation is over when the slot
    /// already serves another operation.
    pub(super) fn is_past(&self, rq: RqId) -> bool {
        let slots = self.pools.get(usize::from(pool(rq)));
        let entry = slots.and_then(|slots| slots.get(usize::from(slot(rq)))?.as_ref());
        entry.is_some_and(|(id, _)| generation(*id) > generation(rq))
    }

    /// All requests that are known.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RqId, &T)> {
        self.pools.iter().flatten().flatten().map(|(id, value)| (*id, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (RqId, &mut T)> {
        self.pools.iter_mut().flatten().flatten().map(|(id, value)| (*id, value))
    }
}
