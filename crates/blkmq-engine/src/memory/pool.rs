//! Buffers that are used again, and the memory that they are charged to.

use blkmq::{Buffer, Buffers};

use super::account::Account;

/// The smallest buffer holds this many bytes, as an exponent of two.
const SMALLEST: u32 = 12;
/// Sizes of buffers: each is twice the one before, up to 64 MiB.
const NR_SIZES: usize = 15;
/// The most bytes of buffers that are kept although they are not in use.
const MAX_KEPT: usize = 8 << 20;

/// The buffers of one connection that are not in use, and the memory that it may have.
///
/// The account is charged for two things: the buffers that are kept, and the memory that was promised to requests. The
/// promises cover the buffers that the requests have.
#[derive(Debug)]
pub(crate) struct Pool {
    by_size: [Vec<Buffer>; NR_SIZES],
    kept: usize,
    pub(crate) account: Account,
    /// Whether every read of the device fills the whole buffer.
    keeps_data: bool,
}

/// Returns the index of the smallest size that holds this many bytes.
#[inline]
fn place(len: usize) -> usize {
    let exponent = len.max(1).next_power_of_two().trailing_zeros();
    exponent.saturating_sub(SMALLEST) as usize
}

/// Returns the number of bytes that a buffer takes up that is kept there.
#[inline]
const fn size_at(place: usize) -> usize {
    1 << (place as u32 + SMALLEST)
}

/// Returns the number of bytes that a buffer for `len` bytes takes up.
#[inline]
pub(crate) const fn footprint(len: usize) -> usize {
    let least = 1 << SMALLEST;
    if len < least { least } else { len.next_power_of_two() }
}

/// Returns the number of bytes that the buffers for `len` bytes take up, each but the last for `step` bytes.
#[inline]
pub(crate) const fn footprints(len: u64, step: u64) -> usize {
    let rest = match (len % step) as usize {
        0 => 0,
        rest => footprint(rest),
    };
    (len / step) as usize * footprint(step as usize) + rest
}

impl Pool {
    /// `keeps_data`: what the device's driver says of the device.
    pub(crate) fn new(keeps_data: bool, account: Account) -> Self {
        Self { by_size: Default::default(), kept: 0, account, keeps_data }
    }

    /// Promises this many bytes of buffers to a request, for as long as the request lasts. Returns false if there is no
    /// memory now. Then the connection is woken when another try may succeed, before all others if it is `in_line`.
    ///
    /// COST: two additions; a lock where the connection needs more than it has.
    #[inline]
    pub(crate) fn promise(&mut self, bytes: usize, in_line: bool) -> bool {
        // If buffers are kept for later, they are freed before the connection waits for memory.
        self.account.take(bytes, in_line) || (self.kept > 0 && self.clear().take(bytes, in_line))
    }

    /// Returns a buffer of this length, at most 64 MiB, that a promise covers. The contents are left from the buffer's
    /// last use. `None` if the system has no memory for it.
    ///
    /// COST: a push and a pop of a vector; where none of this size was given back, memory that the system maps.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<Buffer> {
        let kept = self.take_kept(len).or_else(|| self.account.spare().take(footprint(len)));
        // The heap may keep memory that it was given back, beside what the connections may have.
        let mut buffer = kept.or_else(|| Buffer::try_mapped(footprint(len)))?;
        let fits = buffer.set_len(len);
        debug_assert!(fits, "a buffer holds what its size says");
        Some(buffer)
    }

    /// Returns a buffer for a block of the device, at most 64 KiB, that a promise covers.
    pub(crate) fn take_block(&mut self, len: usize) -> Buffer {
        // A process that cannot get so little memory cannot go on.
        self.take(len).unwrap_or_else(|| {
            let mut buffer = Buffer::zeroed(footprint(len));
            let fits = buffer.set_len(len);
            debug_assert!(fits, "a buffer holds what its size says");
            buffer
        })
    }

    /// Returns a buffer for a read to fill. A device that keeps no data does not change the buffer, so the client would
    /// be sent what an earlier request left there. So a buffer for such a device is zeroed first.
    ///
    /// COST: that of [`take`](Self::take); for a device that keeps no data also a pass over the buffer.
    #[inline]
    pub(crate) fn take_for_read(&mut self, len: usize) -> Option<Buffer> {
        let mut buffer = self.take(len)?;
        if !self.keeps_data {
            buffer.fill(0);
        }
        Some(buffer)
    }

    /// Zeroes buffers of the front-end's own before a read, where [`take_for_read`](Self::take_for_read) zeroes those
    /// of the engine: what is in them may be what another process has written.
    ///
    /// COST: for a device that keeps no data a pass over the buffers.
    #[inline]
    pub(crate) fn zero_for_read(&self, buffers: &mut Buffers) {
        if !self.keeps_data {
            buffers.iter_mut().for_each(Buffer::zero);
        }
    }

    #[inline]
    fn take_kept(&mut self, len: usize) -> Option<Buffer> {
        let buffer = self.by_size[place(len)].pop()?;
        debug_assert!(self.kept >= footprint(len), "a buffer that was kept was counted");
        self.kept -= footprint(len);
        self.account.give(footprint(len));
        Some(buffer)
    }

    /// Takes back a buffer that [`take`](Self::take) gave out. The pool keeps the buffer if the connection has memory
    /// for it beside what its requests need, and frees it otherwise. All that is kept takes no more than the
    /// connection's own part.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let size = footprint(buffer.len());
        if self.kept + size <= MAX_KEPT.min(self.account.own()) && self.account.has_room(size) {
            self.account.take_back(size);
            self.kept += size;
            self.by_size[place(buffer.len())].push(buffer);
        } else {
            self.account.spare().give(size, buffer);
        }
    }

    /// Returns the length of the longest buffer that takes nothing of the common part.
    #[inline]
    pub(crate) fn own(&self) -> usize {
        1 << self.account.own().ilog2()
    }

    /// Returns what is not needed now for others, including the buffers that are kept.
    ///
    /// COST: a few comparisons; where there is much, a lock, and buffers are freed.
    #[inline]
    pub(crate) fn shrink(&mut self) {
        let surplus = self.account.surplus(self.kept);
        if surplus > 0 {
            self.hand_over(surplus);
        }
    }

    #[cold]
    fn hand_over(&mut self, surplus: usize) {
        // The longest buffers are freed first, because then fewer have to be freed.
        for (place, buffers) in self.by_size.iter_mut().enumerate().rev() {
            while !self.account.leaves(surplus) {
                let Some(buffer) = buffers.pop() else { break };
                let size = size_at(place);
                self.kept -= size;
                self.account.give(size);
                self.account.spare().give(size, buffer);
            }
        }
        self.account.hand_over(surplus);
    }

    fn clear(&mut self) -> &mut Account {
        for (place, buffers) in self.by_size.iter_mut().enumerate() {
            buffers.drain(..).for_each(|buffer| self.account.spare().give(size_at(place), buffer));
        }
        self.account.give(std::mem::take(&mut self.kept));
        &mut self.account
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clients::tests::entry;
    use crate::memory::budget::Budget;

    /// Returns a pool that may have as much memory as it wants.
    fn pool() -> Pool {
        Pool::new(true, Account::new(Arc::new(Budget::new(1 << 40, 1)), Arc::clone(entry().counters(0))))
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_buffer_is_used_again_for_what_fits_its_size() {
        let mut pool = pool();
        let buffer = pool.take(5000).unwrap();
        assert_eq!(buffer.len(), 5000);
        let start = buffer.as_ptr();
        pool.give(buffer);
        assert_ne!(pool.take(4096).unwrap().as_ptr(), start);
        let buffer = pool.take(8192).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.len()), (start, 8192));
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn every_length_has_a_size_that_holds_it() {
        let mut pool = pool();
        for len in [1, 512, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 32 << 20] {
            assert!(footprint(len) >= len && footprint(len) <= (2 * len).max(4096));
            let buffer = pool.take(len).unwrap();
            assert_eq!(buffer.len(), len);
            pool.give(buffer);
        }
    }

    /// Red if the rest of a request that consists of whole steps, which is empty, counts as a buffer: two of the
    /// longest requests would then be charged more than twice their length, which is what a connection may hold by
    /// default.
    #[test]
    fn a_request_counts_for_the_buffers_of_its_steps() {
        for (len, step, expected) in [
            (0, 65536, 0),
            (1, 65536, 4096),
            (65536, 65536, 65536),
            (32 << 20, 1 << 20, 32 << 20),
            (70000, 65536, 73728),
        ] {
            assert_eq!(footprints(len, step), expected, "{len} in steps of {step}");
        }
    }

    /// Red if buffers that are not in use hold memory that other connections could have: a client that reads no reply
    /// would hold it for as long as the connection waits for the client.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn what_is_kept_does_not_keep_the_common_part() {
        const MIB: usize = 1 << 20;
        let entry = entry();
        // 8 MiB for each of four connections, and 96 MiB for all.
        let budget = Arc::new(Budget::new(129 * MIB, 4));
        let mut pool = Pool::new(true, Account::new(Arc::clone(&budget), Arc::clone(entry.counters(0))));
        assert!(pool.promise(8 * MIB, true));
        let buffers: Vec<_> = (0..8).map(|_| pool.take(MIB).unwrap()).collect();
        pool.account.give(8 * MIB);
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.kept, 8 * MIB);
        assert!(pool.promise(16 * MIB, true));
        let free = |budget: &Budget| {
            let free = budget.take(99, &entry.bell, 0, 1..=usize::MAX, false);
            budget.give(free);
            free
        };
        assert_eq!(free(&budget), 80 * MIB, "half of what the requests need, and as much again for what is kept");
        pool.shrink();
        assert_eq!((free(&budget), pool.kept), (87 * MIB, MIB), "a little is left, for the next request");
        pool.account.give(16 * MIB);
        pool.shrink();
        assert_eq!((free(&budget), pool.kept), (96 * MIB, MIB));
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn what_is_kept_is_bounded() {
        let mut pool = pool();
        let buffers: Vec<_> = (0..20).map(|_| pool.take(1 << 20).unwrap()).collect();
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.kept, MAX_KEPT);
        let big = pool.take(16 << 20).unwrap();
        pool.give(big);
        assert_eq!(pool.by_size[12].len(), 0);
    }
}
