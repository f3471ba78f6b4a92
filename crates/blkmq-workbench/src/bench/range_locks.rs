//! Range locks, so that no read-modify-write of a block loses another operation's change.
//!
//! A device changes whole blocks. An operation on a part of a block reads the block, puts its bytes in, and writes the
//! block back. Whatever another operation writes to the block between that read and that write would be lost. So each
//! operation locks the blocks that it changes before it submits its first request, and releases them when it has
//! completed. Locks that overlap are granted in the order in which they were requested.
//!
//! There is no deadlock: an operation requests one lock, and waits only for older ones. A thread with an operation that
//! waits still takes the completions of its other operations, or has none outstanding.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The position of a lock in the order in which locks were requested.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct RangeLock {
    ticket: Ticket,
    /// The blocks, as a range of bytes.
    blocks: Range<u64>,
    /// Older locks that overlap this one. It is granted when there are none.
    conflicts: usize,
}

#[derive(Debug, Default)]
struct Table {
    last: Ticket,
    /// By ticket.
    locks: Vec<RangeLock>,
    /// Threads that sleep until a lock is granted.
    sleepers: usize,
}

/// The locks of jobs that run at the same time.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    table: Mutex<Table>,
    /// Notified when a lock is granted that had to wait.
    granted: Condvar,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Table {
    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.locks.binary_search_by_key(&ticket, |lock| lock.ticket).ok()
    }

    fn is_granted(&self, ticket: Ticket) -> bool {
        self.position(ticket).is_some_and(|at| self.locks[at].conflicts == 0)
    }
}

impl RangeLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a lock on blocks, given as a range of bytes. Returns its ticket, and whether it is granted at once.
    ///
    /// COST: a mutex, and a comparison with each lock that is held or waits.
    pub(super) fn request(&self, blocks: Range<u64>) -> (Ticket, bool) {
        let mut table = self.table();
        let conflicts = table.locks.iter().filter(|lock| overlap(&lock.blocks, &blocks)).count();
        table.last += 1;
        let ticket = table.last;
        table.locks.push(RangeLock { ticket, blocks, conflicts });
        (ticket, conflicts == 0)
    }

    pub(super) fn release(&self, ticket: Ticket) {
        let mut table = self.table();
        let Some(at) = table.position(ticket) else { return };
        let released = table.locks.remove(at);
        let mut grants = false;
        for lock in table.locks[at..].iter_mut().filter(|lock| overlap(&lock.blocks, &released.blocks)) {
            lock.conflicts -= 1;
            grants |= lock.conflicts == 0;
        }
        if grants && table.sleepers > 0 {
            self.granted.notify_all();
        }
    }

    /// The position of the first of these locks that is granted.
    pub(super) fn first_granted(&self, mut tickets: impl Iterator<Item = Ticket>) -> Option<usize> {
        let table = self.table();
        tickets.position(|ticket| table.is_granted(ticket))
    }

    /// Sleeps until one of these locks is granted, for `at_most` at the longest. May return earlier.
    pub(super) fn wait(&self, mut tickets: impl Iterator<Item = Ticket>, at_most: Duration) {
        let mut table = self.table();
        if tickets.any(|ticket| table.is_granted(ticket)) {
            return;
        }
        table.sleepers += 1;
        let (mut table, _) = self.granted.wait_timeout(table, at_most).unwrap_or_else(PoisonError::into_inner);
        table.sleepers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Red if a lock is granted before an older one that overlaps it is released, or waits for one that does not
    /// overlap it.
    #[test]
    fn locks_that_overlap_are_granted_in_order() {
        let locks = RangeLocks::default();
        let (first, is_granted) = locks.request(0..1024);
        assert!(is_granted);
        let (other, is_granted) = locks.request(1024..2048);
        assert!(is_granted, "they do not overlap");
        let (second, is_granted) = locks.request(512..1536);
        assert!(!is_granted);
        let (third, is_granted) = locks.request(512..1024);
        assert!(!is_granted);
        let granted = || locks.first_granted([third, second].into_iter());
        assert_eq!(granted(), None);
        locks.release(first);
        assert_eq!(granted(), None, "the second one waits for two, and the third one for the second");
        locks.release(other);
        assert_eq!(granted(), Some(1));
        locks.release(second);
        assert_eq!(granted(), Some(0));
    }

    /// Red if a release does not wake the thread whose lock it grants.
    #[test]
    fn a_release_wakes_the_thread_that_waits() {
        let (locks, begin) = (RangeLocks::default(), Instant::now());
        let (first, _) = locks.request(0..512);
        let (second, _) = locks.request(0..512);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while locks.first_granted([second].into_iter()).is_none() {
                    locks.wait([second].into_iter(), Duration::from_secs(60));
                }
            });
            while locks.table().sleepers == 0 {
                std::thread::yield_now();
            }
            locks.release(first);
        });
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }
}
