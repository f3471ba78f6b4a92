//! How long the file is, and whether it has become shorter than clients were told.
//!
//! A write behind the end of a file makes the file longer, so one that was cut short would become as long as before by
//! what clients write, with zeroes in between, and nobody would have seen it. Linux has no write that must not do so,
//! and tells no process of a file that is cut short; only a look shows it. A look takes a system call, so it is done
//! once in a while, by the clock that each batch of requests brings along, and for every request that reaches the last
//! block, which alone could hide the loss for ever.
//!
//! What stays is a window of [`LOOK_EVERY`]: what is written in it behind the new end, but for the last block, makes
//! the file longer. It stays shorter than it was even so, and is found to be at the next look.
//!
//! The look for a request that reaches the last block, and the write itself, are two steps. A process that cuts the
//! file short between them is not seen: the write makes the file as long as it was, with zeroes before it, and no later
//! look finds a difference.

use std::sync::atomic::{AtomicU64, Ordering};

use blkmq::Time;

/// How often the length is looked at while there are requests, in nanoseconds.
const LOOK_EVERY: u64 = 1_000_000;

/// The length of an open file, in bytes.
#[derive(Debug)]
pub(super) struct Length {
    /// The most that clients were told of. Only grows.
    told: AtomicU64,
    /// The least that it was found to have since it became shorter than that; no limit before.
    limit: AtomicU64,
    /// Not before this is the file looked at again.
    next_look: AtomicU64,
}

/// A file that has become shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shorter {
    /// So many bytes it has.
    pub(super) found: u64,
    /// So many it had.
    pub(super) told: u64,
}

impl Length {
    /// That of a file of which no client was told yet.
    pub(super) const fn new() -> Self {
        Self { told: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX), next_look: AtomicU64::new(0) }
    }

    /// Clients are told of so many bytes, which the file has: it was looked at before this.
    pub(super) fn tell(&self, bytes: u64) {
        // Release: pairs with the load in `look`. The thread that reads it looks at the file after this one has.
        self.told.fetch_max(bytes, Ordering::Release);
    }

    /// What requests may come up to without a look at the file.
    pub(super) fn end(&self) -> u64 {
        self.told.load(Ordering::Relaxed).min(self.limit.load(Ordering::Relaxed))
    }

    /// Whether requests may reach so far, as far as is known.
    pub(super) fn allows(&self, bytes: u64) -> bool {
        bytes <= self.limit.load(Ordering::Relaxed)
    }

    /// Whether it is time to look. Of several threads that ask, one is to.
    pub(super) fn is_due(&self, now: Time) -> bool {
        let next = self.next_look.load(Ordering::Relaxed);
        now.0 >= next
            && (self.next_look)
                .compare_exchange(next, now.0.saturating_add(LOOK_EVERY), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Looks at the file, which has so many bytes as `look` says; `None` from it says that the kernel does not tell.
    pub(super) fn look(&self, look: impl FnOnce() -> Option<u64>) -> Option<Shorter> {
        // Acquire: pairs with the change in `tell`. Of a file that grows `look` finds as much as was told, or more;
        // `tell` was called after such a look.
        let told = self.told.load(Ordering::Acquire);
        let found = look().filter(|found| *found < told)?;
        self.limit.fetch_min(found, Ordering::Relaxed);
        Some(Shorter { found, told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if what was told grows shorter without a look, a file whose size the kernel does not say counts as
    /// shorter, or one that was cut short is trusted again once it is longer: what lay behind its end is gone.
    #[test]
    fn a_file_that_is_shorter_than_was_told_stays_so() {
        let length = Length::new();
        length.tell(8192);
        assert_eq!((length.end(), length.look(|| Some(8192)), length.look(|| Some(9000))), (8192, None, None));
        length.tell(16384);
        length.tell(8192);
        assert!(length.end() == 16384 && length.look(|| None).is_none() && length.allows(16384));
        assert_eq!(length.look(|| Some(4096)), Some(Shorter { found: 4096, told: 16384 }));
        assert!(length.end() == 4096 && length.allows(4096) && !length.allows(4097));
        // Whatever is written or told now, what lay behind is gone.
        assert_eq!((length.look(|| Some(16384)), length.end()), (None, 4096));
        length.tell(32768);
        assert_eq!((length.look(|| Some(32768)), length.end()), (None, 4096));
    }

    /// Red if the file is looked at for every batch, or not again.
    #[test]
    fn it_is_looked_at_once_in_a_while() {
        let length = Length::new();
        let due =
            [0, 0, 999_999, 1_000_000, 1_000_001, 5_000_000, 5_999_999, 6_000_000].map(|now| length.is_due(Time(now)));
        assert_eq!(due, [true, false, false, true, false, true, false, true]);
    }
}
