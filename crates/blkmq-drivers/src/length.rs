//! How long a file or an image is, and whether it has become shorter than the length that was reported to clients.
//! Where nothing notifies the driver of a change, as of a file, the driver has to look.
//!
//! A write past the end of a file makes the file longer. So if another process cuts a file short, the writes of clients
//! would make it as long as before, with zeroes in between, and no program would notice. Linux has no write that does
//! not extend the file, and notifies no process when a file is cut short. Only a look at the length shows it. A look
//! takes a system call. So the driver looks once in a while, by the clock that each batch of requests brings, and for
//! every request that reaches the last block: only such a request could hide the loss forever.
//!
//! A window of [`LOOK_EVERY`] remains. A write in this window past the new end, except in the last block, makes the
//! file longer. The file is still shorter than it was, and the next look finds that.
//!
//! The look for a request that reaches the last block, and the write itself, are two steps. If a process cuts the file
//! short between these steps, the driver does not see it: the write makes the file as long as it was, with zeroes
//! before the written data, and no later look finds a difference.

use std::sync::atomic::{AtomicU64, Ordering};

use blkmq::Time;

/// How often the driver looks at the length while there are requests, in nanoseconds.
const LOOK_EVERY: u64 = 1_000_000;

/// The length of an open file or image, in bytes.
#[derive(Debug)]
pub(crate) struct Length {
    /// The greatest length that was reported to clients. The number only grows.
    reported: AtomicU64,
    /// The smallest length that was found since the file became shorter than `reported`. No limit before that.
    limit: AtomicU64,
    /// The file is not looked at again before this time.
    next_look: AtomicU64,
}

/// A file that has become shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shorter {
    /// The number of bytes that the file has.
    pub(crate) found: u64,
    /// The number of bytes that was reported to clients.
    pub(crate) reported: u64,
}

impl Length {
    /// The length of a file whose length was reported to no client yet.
    pub(crate) const fn new() -> Self {
        Self { reported: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX), next_look: AtomicU64::new(0) }
    }

    /// Called when this length is reported to clients. The caller has looked at the file before.
    pub(crate) fn report(&self, bytes: u64) {
        // Release: pairs with the load in `look`. A thread that reads this value looks at the file after this thread
        // has looked.
        self.reported.fetch_max(bytes, Ordering::Release);
    }

    /// Requests up to this byte need no look at the file.
    pub(crate) fn end(&self) -> u64 {
        self.reported.load(Ordering::Relaxed).min(self.limit.load(Ordering::Relaxed))
    }

    /// Returns true if requests may reach this far, as far as is known.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        bytes <= self.limit.load(Ordering::Relaxed)
    }

    /// What was lost, if the file has become shorter.
    pub(crate) fn shorter(&self) -> Option<Shorter> {
        let (found, reported) = (self.limit.load(Ordering::Relaxed), self.reported.load(Ordering::Relaxed));
        (found < u64::MAX).then_some(Shorter { found, reported })
    }

    /// Returns true if it is time to look. If several threads ask at the same time, one of them gets `true`.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        let next = self.next_look.load(Ordering::Relaxed);
        now.0 >= next
            && (self.next_look)
                .compare_exchange(next, now.0.saturating_add(LOOK_EVERY), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Looks at the file. `look` returns the file's length, or `None` if the kernel does not say.
    pub(crate) fn look(&self, look: impl FnOnce() -> Option<u64>) -> Option<Shorter> {
        // Acquire: pairs with the change in `report`. If the file grows, `look` finds at least the reported length,
        // because `report` was called after a look that found it.
        let reported = self.reported.load(Ordering::Acquire);
        let found = look().filter(|found| *found < reported)?;
        self.limit.fetch_min(found, Ordering::Relaxed);
        Some(Shorter { found, reported })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the reported length shrinks without a look, if a file whose size the kernel does not report counts as
    /// shorter, or if a file that was cut short is trusted again once it is longer: the data past its shorter end is
    /// gone.
    #[test]
    fn a_file_that_is_shorter_than_reported_stays_so() {
        let length = Length::new();
        length.report(8192);
        assert_eq!((length.end(), length.look(|| Some(8192)), length.look(|| Some(9000))), (8192, None, None));
        length.report(16384);
        length.report(8192);
        assert!(length.end() == 16384 && length.look(|| None).is_none() && length.allows(16384));
        assert_eq!(length.look(|| Some(4096)), Some(Shorter { found: 4096, reported: 16384 }));
        assert!(length.end() == 4096 && length.allows(4096) && !length.allows(4097));
        // Whatever is written or reported now, the data past the shorter end is gone.
        assert_eq!((length.look(|| Some(16384)), length.end()), (None, 4096));
        length.report(32768);
        assert_eq!((length.look(|| Some(32768)), length.end()), (None, 4096));
    }

    /// Red if the file is looked at for every batch, or if it is not looked at again.
    #[test]
    fn it_is_looked_at_once_in_a_while() {
        let length = Length::new();
        let due =
            [0, 0, 999_999, 1_000_000, 1_000_001, 5_000_000, 5_999_999, 6_000_000].map(|now| length.is_due(Time(now)));
        assert_eq!(due, [true, false, false, true, false, true, false, true]);
    }
}
