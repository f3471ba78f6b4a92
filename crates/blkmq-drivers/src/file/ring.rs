//! The io_uring of one hardware queue.
//!
//! Each of its two sides has a lock: one thread at a time puts requests on the ring, and one at a time takes
//! completions off. A thread that finds another thread taking completions off leaves. While completions remain, the
//! ring's descriptor stays readable, so a thread that then sleeps on the descriptor wakes at once. If the ring belongs
//! to one submitter, no thread finds another thread there.
#![expect(unsafe_code, reason = "rings are shared between threads and memory is handed to the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use blkmq::Time;
use blkmq::driver::{Batch, Done};
use io_uring::{IoUring, cqueue, squeue};

use super::journal::Journal;
use super::poller::Poller;
use super::registered::{Memory, SLOTS, Table};
use super::target::Target;
use super::transfer::Transfer;
use crate::{lock, try_lock};

/// A ring, and the requests that are on it.
///
/// The ring of a polled hardware queue has a [`Poller`] for reads and writes, because nothing else can be polled for.
pub(super) struct Ring {
    uring: IoUring,
    poller: OnceLock<Poller>,
    /// Whether the hardware queue is polled. This changes only while no request is in flight.
    polls: AtomicBool,
    /// The lock of the thread that puts entries on the ring. The lock guards the table of memory that the ring knows.
    starting: Mutex<Table>,
    /// The lock of the thread that takes completions off the ring.
    reaping: Mutex<()>,
    /// The transfers by tag. Each lock is taken by one thread at a time: first by the thread that starts the request,
    /// then by the thread that finds its completion.
    transfers: Box<[Mutex<Transfer>]>,
    /// Whether the kernel has not taken everything that is on the ring.
    is_behind: AtomicBool,
    /// The journal, with the number of the hardware queue. The journal is told of each entry and of each completion.
    journal: Option<(u16, Arc<dyn Journal>)>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("is_behind", &self.is_behind).finish_non_exhaustive()
    }
}

/// Makes an empty table for memory. A kernel that has no such tables also refuses what is registered later.
fn make_table(uring: &IoUring) {
    let _ = uring.submitter().register_buffers_sparse(SLOTS as u32);
}

impl Ring {
    /// A ring for `depth` requests at once.
    pub(super) fn new(target: &Target, depth: u16) -> io::Result<Self> {
        // The kernel makes the completion side twice as long. Each request has one entry at a time.
        let uring = IoUring::builder().setup_clamp().build(u32::from(depth))?;
        uring.submitter().register_files(&target.fds())?;
        make_table(&uring);
        Ok(Self {
            uring,
            poller: OnceLock::new(),
            polls: AtomicBool::new(false),
            starting: Mutex::default(),
            reaping: Mutex::default(),
            transfers: (0..depth).map(|_| Mutex::new(Transfer::new())).collect(),
            is_behind: AtomicBool::new(false),
            journal: None,
        })
    }

    /// The same ring with a journal, and the number of its hardware queue there.
    pub(super) fn with_journal(mut self, journal: Option<(u16, Arc<dyn Journal>)>) -> Self {
        self.journal = journal;
        self
    }

    /// Makes the poller that a polled hardware queue needs. Returns whether it is new, and so knows none of the memory.
    pub(super) fn make_poller(&self, target: &Target) -> io::Result<bool> {
        let is_missing = self.poller.get().is_none();
        if is_missing {
            let poller = Poller::new(target, self.transfers.len() as u16)?;
            make_table(&poller.uring);
            let _ = self.poller.set(poller);
        }
        Ok(is_missing)
    }

    /// Registers memory in a slot, or clears the slot. If the kernel refuses memory, because it may not pin so much,
    /// the memory is used like any other memory.
    pub(super) fn register(&self, slot: u16, memory: Option<Memory>) {
        let mut table = lock(&self.starting);
        let piece = |memory: Option<Memory>| libc::iovec {
            iov_base: memory.map_or(std::ptr::null_mut(), |memory| std::ptr::without_provenance_mut(memory.start)),
            iov_len: memory.map_or(0, |memory| memory.len),
        };
        let update = |uring: &IoUring, memory| {
            // SAFETY: an arena stays registered no longer than its memory exists. A transfer names a slot only if the
            // table says so when the transfer starts, under the lock. The transfer's buffer keeps the arena until the
            // transfer is over.
            unsafe { uring.submitter().register_buffers_update(slot.into(), &[piece(memory)], None) }
        };
        let urings = || self.poller.get().map(|poller| &poller.uring).into_iter().chain([&self.uring]);
        let is_known = urings().all(|uring| update(uring, memory).is_ok());
        if !is_known {
            // Memory that only one of the two rings knows is of no use. A slot that is cleared in vain was empty.
            urings().for_each(|uring| drop(update(uring, None)));
        }
        table.set(slot, memory.filter(|_| is_known));
    }

    /// Bytes of memory that it has registered.
    pub(super) fn registered(&self) -> usize {
        lock(&self.starting).bytes()
    }

    /// Makes the hardware queue a polled one, or not, from now on. No request is in flight.
    pub(super) fn set_polls(&self, polls: bool) {
        // The block layer has the queue frozen; its unfreezing publishes this.
        self.polls.store(polls, Ordering::Relaxed);
    }

    /// The poller of reads and writes, if they are polled.
    pub(super) fn poller(&self) -> Option<&Poller> {
        if self.polls.load(Ordering::Relaxed) { self.poller.get() } else { None }
    }

    /// The ring's descriptor, which is readable while there are completions, except those that must be polled for. The
    /// call first waits for the thread that takes completions, as [`Driver::ready_fd`](blkmq::driver::Driver::ready_fd)
    /// asks for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.reaping));
        // SAFETY: the ring keeps it open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    /// Whether the kernel has to be asked again to take what is on the ring.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Starts the requests of a batch, in order, except those that reach past the end of a file that has become
    /// shorter.
    pub(super) fn start(&self, target: &Target, batch: &mut Batch<'_>, now: Time) {
        let end = target.end(now);
        let side = lock(&self.starting);
        while let Some(next) = Transfer::next(&self.transfers, target, batch, end) {
            let (tag, mut transfer) = next.unwrap_or_else(|tag| {
                self.submit(&side);
                panic!("tag {tag} is with the kernel already; each tag of a hardware queue is out once");
            });
            transfer.look_up(&side);
            self.put(&side, tag, &transfer);
        }
        self.submit(&side);
    }

    /// Puts a transfer's entry on the ring.
    fn put(&self, _side: &MutexGuard<'_, Table>, tag: u16, transfer: &Transfer) {
        let entry: squeue::Entry = transfer.entry().user_data(tag.into());
        if let Some((hctx, journal)) = &self.journal {
            journal.asked(*hctx, tag, transfer.asked());
        }
        let poller = self.poller().filter(|poller| transfer.moves_data() && !poller.is_refused());
        let uring = poller.map_or(&self.uring, |poller| {
            poller.note_start();
            &poller.uring
        });
        // SAFETY: the caller has `starting`, so there is no other view of this side.
        let mut entries = unsafe { uring.submission_shared() };
        // SAFETY: by the transfer's invariant, what the entry names lives and does not move until it is answered.
        let pushed = unsafe { entries.push(&entry) };
        pushed.expect("a ring has an entry for each tag");
    }

    /// Lets the kernel take what is on the ring.
    fn submit(&self, _side: &MutexGuard<'_, Table>) {
        let mut is_behind = false;
        for uring in self.poller().map(|poller| &poller.uring).into_iter().chain([&self.uring]) {
            // SAFETY: the caller has `starting`, so there is no other view of this side.
            let is_empty = unsafe { uring.submission_shared() }.is_empty();
            if is_empty {
                continue;
            }
            // An error is a lack of memory, or a signal. The entries stay on the ring, and the next poll offers them
            // again.
            let result = uring.submit();
            // SAFETY: as above.
            is_behind |= result.is_err() || !unsafe { uring.submission_shared() }.is_empty();
        }
        if is_behind != self.is_behind() {
            self.is_behind.store(is_behind, Ordering::Relaxed);
        }
    }

    /// Takes completions off the ring, unless another thread is doing so.
    pub(super) fn reap(&self, target: &Target, done: &mut Done<'_>) {
        if self.is_behind() {
            self.submit(&lock(&self.starting));
        }
        let Some(_side) = try_lock(&self.reaping) else { return };
        let mut is_unfinished = false;
        if let Some(poller) = self.poller().filter(|poller| poller.is_busy()) {
            poller.look();
            // SAFETY: this thread has `reaping`, so there is no other view of this side.
            for completion in unsafe { poller.uring.completion_shared() } {
                let is_refused = poller.note_answer(completion.result());
                is_unfinished |= self.take(target, &completion, is_refused, done);
            }
        }
        // SAFETY: as above.
        for completion in unsafe { self.uring.completion_shared() } {
            is_unfinished |= self.take(target, &completion, false, done);
        }
        if is_unfinished {
            self.submit(&lock(&self.starting));
            // The submitters of these requests may sleep, and this thread may have nothing more to wait for. A thread
            // that looked between the answer and the new entry of a polled request has found nothing to poll for.
            if self.is_behind() || self.poller().is_some_and(Poller::is_busy) {
                done.plan_anew();
            }
        }
    }

    /// Takes a completion. Returns whether more of its request was put on a ring. With `is_refused`, that is all of the
    /// request.
    fn take(&self, target: &Target, completion: &cqueue::Entry, is_refused: bool, done: &mut Done<'_>) -> bool {
        let (tag, mut result) = (completion.user_data() as u16, completion.result());
        if let Some((hctx, journal)) = &self.journal {
            result = journal.answered(*hctx, tag, result);
        }
        let transfer = lock(&self.transfers[usize::from(tag)]);
        let unfinished = if is_refused { Some(transfer) } else { Transfer::settle(transfer, target, result, done) };
        if let Some(transfer) = &unfinished {
            self.put(&lock(&self.starting), tag, transfer);
        }
        unfinished.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::file::Config;

    fn is_readable(ring: &Ring) -> bool {
        let fd = ring.fd();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).expect("it can be polled")
            == 1
    }

    fn ring() -> Ring {
        let folder = tempfile::tempdir().expect("it can be made");
        let path = folder.path().join("file");
        let target =
            Target::open(&Config { size: Some(1 << 20), ..Config::new(&path) }, &|_| ()).expect("it can be opened");
        Ring::new(&target, 4).expect("the kernel has rings")
    }

    /// Red if the call does not wait: a thread that sleeps would wake at once, again and again, while another thread
    /// takes completions.
    #[test]
    #[cfg_attr(miri, ignore = "there is no io_uring")]
    fn a_thread_about_to_sleep_waits_for_the_one_that_takes_completions() {
        let ring = ring();
        let reaping = lock(&ring.reaping);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| ring.fd());
            thread::sleep(Duration::from_millis(20));
            assert!(!sleeper.is_finished(), "it did not wait");
            drop(reaping);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no io_uring")]
    fn a_ring_is_readable_while_completions_lie_on_it() {
        let ring = ring();
        assert!(!is_readable(&ring) && !ring.is_behind());
        for tag in 0..4 {
            let transfer = lock(&ring.transfers[usize::from(tag)]);
            ring.put(&lock(&ring.starting), tag, &transfer);
        }
        assert!(!is_readable(&ring), "the kernel has not been asked yet");
        ring.submit(&lock(&ring.starting));
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let fd = ring.fd();
        assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&patience)), Ok(1));
        let mut over = Vec::new();
        while over.len() < 4 {
            // SAFETY: no other thread has the ring.
            let completions = unsafe { ring.uring.completion_shared() };
            over.extend(completions.map(|completion| (completion.user_data(), completion.result())));
        }
        over.sort_unstable();
        assert_eq!(over, [(0, 0), (1, 0), (2, 0), (3, 0)]);
        assert!(!is_readable(&ring) && !ring.is_behind());
    }
}
