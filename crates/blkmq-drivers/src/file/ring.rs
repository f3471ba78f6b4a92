//! The io_uring of one hardware queue.
//!
//! Each of its two sides has a lock: one thread at a time puts requests on the ring, and one at a time takes
//! completions off. A thread that finds another thread taking completions off leaves. While completions remain, the
//! ring's descriptor stays readable, so a thread that then sleeps on the descriptor wakes at once. If the ring belongs
//! to one submitter, no thread finds another thread there.
#![expect(unsafe_code, reason = "rings are shared between threads and memory is handed to the kernel")]

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use blkmq::Time;
use blkmq::driver::{Batch, Done};
use blkmq::event::EventFd;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::chain::{self, LINKS, Link};
use super::engine::{Engine, Offers};
use super::journal::Journal;
use super::poller::Poller;
use super::refusal::{explained, refused};
use super::registered::{Memory, SLOTS, Table, pages_slot};
use super::target::Target;
use super::transfer::Transfer;
use crate::{OpenError, lock, try_lock};

/// A ring, and the requests that are on it.
///
/// The ring of a polled hardware queue has a [`Poller`] for reads and writes, because nothing else can be polled for.
pub(super) struct Ring {
    uring: IoUring,
    offers: Offers,
    poller: OnceLock<Poller>,
    /// Whether the hardware queue is polled. This changes only while no request is in flight.
    polls: AtomicBool,
    /// The lock of the thread that puts entries on the ring.
    starting: Mutex<Side>,
    /// The lock of the thread that takes completions off the ring.
    reaping: Mutex<()>,
    /// The transfers by tag. Each lock is taken by one thread at a time: first by the thread that starts the request,
    /// then by the thread that finds its completion.
    transfers: Box<[Mutex<Transfer>]>,
    /// Whether the kernel has not taken everything that is on the ring.
    is_behind: AtomicBool,
    /// Whether the ring belongs to one submitter.
    is_owned: bool,
    /// The number of the event that the ring watches, or [`NO_BELL`]. Only the submitter that the ring belongs to uses
    /// this.
    bell: AtomicU64,
    /// The journal, with the number of the hardware queue. The journal is told of each entry and of each completion.
    journal: Option<(u16, Arc<dyn Journal>)>,
}

/// What the thread needs that puts entries on a ring.
#[derive(Default)]
struct Side {
    /// The memory that the ring knows.
    table: Table,
    /// Entries for which the ring had no room, in order. Those of one request stay together.
    later: VecDeque<Box<[squeue::Entry]>>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("is_behind", &self.is_behind).finish_non_exhaustive()
    }
}

/// Marks the user data of entries that are no transfer's; the user data of a transfer's entry is the transfer's tag,
/// and its [`Link`] if it is in a chain. The rest is the number of the event that the entry watches, or [`NO_BELL`] for
/// the end of a watch.
const BELL: u64 = 1 << 63;

/// The number of no event.
const NO_BELL: u64 = BELL - 1;

/// Makes a ring for `depth` requests at once.
///
/// On a ring that belongs to one submitter the kernel posts completions when that submitter next enters the kernel. It
/// sends no interrupt to the submitter's processor before ("cooperative"). Sleeping on the ring enters the kernel. A
/// flag on the ring tells a submitter that polls without sleeping. A shared ring does without: the kernel posts what
/// one thread started when that same thread enters the kernel, and another thread may be waiting for it.
///
/// Task work that is deferred until the submitter sleeps would bind a ring to one thread for good, and a submitter may
/// move to another thread. It takes as many system calls, and was measured to take as much CPU time.
fn make_ring(depth: u16, is_owned: bool) -> io::Result<(IoUring, Offers)> {
    // Most requests have one entry at a time. The completion side has room for those with a chain: completions for
    // which there is no room would be found only by a system call.
    let entries = u32::from(depth).next_power_of_two().max(2 * LINKS as u32);
    let completions = entries * (LINKS as u32 + 1);
    if is_owned {
        let made = IoUring::builder()
            .setup_clamp()
            .setup_cqsize(completions)
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(entries);
        // Kernels before 5.19 refuse the flags.
        if !matches!(&made, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            return made.map(|uring| Offers::new(uring, true, depth));
        }
    }
    let made = IoUring::builder().setup_clamp().setup_cqsize(completions).build(entries);
    made.map(|uring| Offers::new(uring, false, depth))
}

/// Makes an empty table for memory, and for the pages of as many requests. A kernel that has no such tables also
/// refuses what is registered later. Returns whether the kernel has them.
fn make_table(uring: &IoUring, nr_requests: u16) -> bool {
    uring.submitter().register_buffers_sparse(SLOTS as u32 + u32::from(nr_requests)).is_ok()
}

impl Offers {
    /// Makes the ring's table for memory, too.
    fn new(uring: IoUring, is_cooperative: bool, depth: u16) -> (IoUring, Self) {
        let has_pages = make_table(&uring, depth);
        let has_table = has_pages || make_table(&uring, 0);
        let has_timed_sleep = uring.params().is_feature_ext_arg();
        (uring, Self { is_cooperative, has_table, has_pages, has_timed_sleep })
    }

    /// What the system offers the device, in one sentence: what a ring uses that belongs to one submitter.
    pub(super) fn here() -> String {
        match Self::find() {
            Ok(offers) => format!("io_uring; a ring that belongs to one submitter has {offers}"),
            Err(error) => format!("threads do the requests: {}", explained(&error)),
        }
    }

    /// What a ring has here that belongs to one submitter.
    ///
    /// # Errors
    /// Why the system gives none.
    pub(super) fn find() -> io::Result<Self> {
        make_ring(1, true).map(|(_, offers)| offers)
    }
}

impl Engine for Ring {
    fn start(&self, target: &Target, batch: &mut Batch<'_>, now: Time) {
        let end = target.end(now);
        let mut side = lock(&self.starting);
        while let Some(next) = Transfer::next(&self.transfers, target, batch, end) {
            let (tag, mut transfer) = next.unwrap_or_else(|tag| {
                self.submit(&mut side);
                panic!("tag {tag} is with the kernel already; each tag of a hardware queue is out once");
            });
            transfer.look_up(&side.table);
            self.put(&mut side, tag, &transfer);
        }
        self.submit(&mut side);
    }

    fn reap(&self, target: &Target, done: &mut Done<'_>) {
        if self.is_behind() {
            self.submit(&mut lock(&self.starting));
        }
        if self.is_owned {
            self.let_post();
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
            if completion.user_data() & BELL != 0 {
                self.note_bell(&completion);
            } else {
                is_unfinished |= self.take(target, &completion, false, done);
            }
        }
        if is_unfinished {
            self.submit(&mut lock(&self.starting));
            // The submitters of these requests may sleep, and this thread may have nothing more to wait for. A thread
            // that looked between the answer and the new entry of a polled request has found nothing to poll for.
            if self.is_behind() || self.poller().is_some_and(Poller::is_busy) {
                done.plan_anew();
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.reaping));
        // SAFETY: the ring keeps it open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    fn sleep(&self, bell: &EventFd, timeout: Option<Duration>) -> bool {
        debug_assert!(self.is_owned, "no other thread uses the ring meanwhile");
        if self.poller().is_some() || !self.offers.has_timed_sleep || !self.watch(bell) {
            return false;
        }
        // A time that is too long for the kernel's type is as good as none.
        let timeout = timeout.filter(|timeout| timeout.as_secs() <= i64::MAX as u64).map(types::Timespec::from);
        let mut args = types::SubmitArgs::new();
        if let Some(timeout) = &timeout {
            args = args.timespec(timeout);
        }
        // The error is the end of the time, a signal, or a lack of memory. In each case the caller looks again.
        let _ = self.uring.submitter().submit_with_args(1, &args);
        if self.is_behind() {
            self.note_behind(&lock(&self.starting));
        }
        true
    }

    fn offers(&self) -> Option<Offers> {
        Some(self.offers)
    }

    fn is_restless(&self) -> bool {
        self.is_behind() || self.poller().is_some_and(Poller::is_busy)
    }

    fn poller(&self) -> Option<&Poller> {
        if self.polls.load(Ordering::Relaxed) { self.poller.get() } else { None }
    }

    /// If the kernel refuses memory, because it may not pin so much, the memory is used like any other memory.
    fn register(&self, slot: u16, memory: Option<Memory>) {
        let mut side = lock(&self.starting);
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
        side.table.set(slot, memory.filter(|_| is_known));
    }

    /// This waits for no lock: a thread may be in the kernel for a request that never ends.
    fn let_go(&self) {
        if self.offers.has_pages {
            let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            let slots = vec![nothing; self.transfers.len()];
            // SAFETY: no memory is named. What slots had stays as long as the kernel needs it.
            // An error is a lack of memory, and the program ends.
            let _ = unsafe { self.uring.submitter().register_buffers_update(pages_slot(0).into(), &slots, None) };
        }
    }

    fn registered(&self) -> usize {
        lock(&self.starting).table.bytes()
    }

    fn make_poller(&self, target: &Target) -> Result<bool, OpenError> {
        let is_missing = self.poller.get().is_none();
        if is_missing {
            let poller = Poller::new(target, self.transfers.len() as u16).map_err(refused)?;
            make_table(&poller.uring, 0);
            let _ = self.poller.set(poller);
        }
        Ok(is_missing)
    }

    fn set_polls(&self, polls: bool) {
        // The block layer has the queue frozen; its unfreezing publishes this.
        self.polls.store(polls, Ordering::Relaxed);
    }
}

impl Ring {
    /// Creates a ring for `depth` requests at once. `journal`: the journal, and the number of the hardware queue there.
    pub(super) fn new(
        target: &Target,
        depth: u16,
        is_owned: bool,
        journal: Option<(u16, Arc<dyn Journal>)>,
    ) -> io::Result<Self> {
        let (uring, offers) = make_ring(depth, is_owned)?;
        uring.submitter().register_files(&target.fds())?;
        Ok(Self {
            uring,
            offers,
            poller: OnceLock::new(),
            polls: AtomicBool::new(false),
            starting: Mutex::default(),
            reaping: Mutex::default(),
            transfers: (0..depth).map(|_| Mutex::new(Transfer::new())).collect(),
            is_behind: AtomicBool::new(false),
            is_owned,
            bell: AtomicU64::new(NO_BELL),
            journal,
        })
    }

    /// Returns true if the kernel has to be asked again to take what is on the ring.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Puts a transfer's entry on the ring, or its chain of entries.
    fn put(&self, side: &mut MutexGuard<'_, Side>, tag: u16, transfer: &Transfer) {
        if let Some(entries) = transfer.entries(tag) {
            debug_assert!(self.journal.is_none(), "a journal does not see what a chain moves");
            return self.push(side, &entries);
        }
        let entry = transfer.entry().user_data(tag.into());
        if let Some((hctx, journal)) = &self.journal {
            journal.asked(*hctx, tag, transfer.asked());
        }
        let Some(poller) = self.poller().filter(|poller| transfer.moves_data() && !poller.is_refused()) else {
            if side.later.is_empty() && self.fits_one(&entry) {
                return;
            }
            return self.push(side, &[entry]);
        };
        poller.note_start();
        // SAFETY: the caller has `starting`, so there is no other view of this side.
        let mut entries = unsafe { poller.uring.submission_shared() };
        // SAFETY: by the transfer's invariant, what the entry names lives and does not move until it is answered.
        let pushed = unsafe { entries.push(&entry) };
        pushed.expect("a poller's ring has an entry for each tag");
    }

    /// Puts the entries of a transfer on the ring, one behind the other. Where the ring has no room for all of them,
    /// the kernel is asked to take what is there; what finds no room then goes later.
    fn push(&self, side: &mut MutexGuard<'_, Side>, entries: &[squeue::Entry]) {
        if side.later.is_empty() && self.fits(entries) {
            return;
        }
        self.submit(side);
        if !(side.later.is_empty() && self.fits(entries)) {
            side.later.push_back(entries.into());
            self.set_behind(true);
        }
    }

    /// Puts this entry on the ring, if there is room for it. The caller has `starting`.
    fn fits_one(&self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller has `starting`, so there is no other view of this side.
        let mut ring = unsafe { self.uring.submission_shared() };
        // SAFETY: by the transfer's invariant, what the entry names lives and does not move until it is answered.
        unsafe { ring.push(entry) }.is_ok()
    }

    /// Puts these entries on the ring, if there is room for all of them. The caller has `starting`.
    fn fits(&self, entries: &[squeue::Entry]) -> bool {
        // SAFETY: the caller has `starting`, so there is no other view of this side.
        let mut ring = unsafe { self.uring.submission_shared() };
        // SAFETY: by the transfer's invariant, what the entries name lives and does not move until they are answered.
        // The files of commands are the pages' own; a file that is closed makes its command fail.
        unsafe { ring.push_multiple(entries) }.is_ok()
    }

    /// Returns the rings that entries are put on: the poller's, if the hardware queue is polled, and this one.
    fn urings(&self) -> impl Iterator<Item = &IoUring> {
        self.poller().map(|poller| &poller.uring).into_iter().chain([&self.uring])
    }

    /// Lets the kernel take what is on the ring, and what found no room there.
    fn submit(&self, side: &mut MutexGuard<'_, Side>) {
        let mut is_behind = self.hand_over();
        while !is_behind && let Some(entries) = side.later.pop_front() {
            let fits = self.fits(&entries);
            debug_assert!(fits, "a ring from which the kernel has taken everything has room for a chain");
            is_behind = self.hand_over();
        }
        self.set_behind(is_behind || !side.later.is_empty());
    }

    /// Asks the kernel to take what is on the ring. Returns whether it has left anything. The caller has `starting`.
    fn hand_over(&self) -> bool {
        let mut is_behind = false;
        for uring in self.urings() {
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
        is_behind
    }

    /// Called when the kernel was asked in another way to take what is on the ring.
    fn note_behind(&self, side: &MutexGuard<'_, Side>) {
        // SAFETY: the caller has `starting`, so there is no other view of this side.
        let is_empty = |uring: &IoUring| unsafe { uring.submission_shared() }.is_empty();
        self.set_behind(!side.later.is_empty() || !self.urings().all(is_empty));
    }

    fn set_behind(&self, is_behind: bool) {
        if is_behind != self.is_behind() {
            self.is_behind.store(is_behind, Ordering::Relaxed);
        }
    }

    /// Makes the ring watch this event from now on: an event that is readable completes something on the ring, also if
    /// it became readable before. Returns whether the ring does.
    ///
    /// COST: nothing if the ring has watched the event since an earlier sleep.
    fn watch(&self, bell: &EventFd) -> bool {
        let watched = self.bell.load(Ordering::Relaxed);
        if watched == bell.id() {
            return true;
        }
        let mut side = lock(&self.starting);
        self.submit(&mut side);
        let end =
            (watched != NO_BELL).then(|| opcode::PollRemove::new(BELL | watched).build().user_data(BELL | NO_BELL));
        let fd = types::Fd(bell.as_fd().as_raw_fd());
        let watch = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(BELL | bell.id());
        let entries: Vec<_> = end.into_iter().chain([watch]).collect();
        // SAFETY: this thread has `starting`, so there is no other view of this side.
        let mut submission = unsafe { self.uring.submission_shared() };
        // SAFETY: the entries name no memory, and the kernel keeps the event's file until the watch ends.
        let pushed = unsafe { submission.push_multiple(&entries) }.is_ok();
        drop(submission);
        if pushed {
            self.submit(&mut side);
            self.bell.store(bell.id(), Ordering::Relaxed);
        }
        pushed
    }

    /// Called for a completion that is no transfer's: the event was readable. Without a further one to come, the watch
    /// is over, and the next sleep begins another.
    fn note_bell(&self, completion: &cqueue::Entry) {
        let is_watched = completion.user_data() == BELL | self.bell.load(Ordering::Relaxed);
        if is_watched && !cqueue::more(completion.flags()) {
            self.bell.store(NO_BELL, Ordering::Relaxed);
        }
    }

    /// Lets the kernel post completions, if it waits for this thread to enter the kernel.
    ///
    /// COST: a lock that no other thread waits for; a system call if there is something to post.
    fn let_post(&self) {
        let side = lock(&self.starting);
        // SAFETY: this thread has `starting`, so there is no other view of this side.
        if unsafe { self.uring.submission_shared() }.taskrun() {
            // An error is a lack of memory, or a signal, and the flag is still there at the next poll.
            let _ = self.uring.submit();
            self.note_behind(&side);
        }
    }

    /// Takes a completion. Returns whether more of its request was put on a ring. With `is_refused`, that is all of the
    /// request.
    fn take(&self, target: &Target, completion: &cqueue::Entry, is_refused: bool, done: &mut Done<'_>) -> bool {
        let (tag, mut result) = (completion.user_data() as u16, completion.result());
        if let Some((hctx, journal)) = &self.journal {
            result = journal.answered(*hctx, tag, result);
        }
        let mut transfer = lock(&self.transfers[usize::from(tag)]);
        let result = match transfer.answered_link(Link::of(completion.user_data()), result) {
            chain::Next::Wait => return false,
            chain::Next::TakeOut => {
                let entry = transfer.last_entry(tag);
                self.push(&mut lock(&self.starting), entry.as_slice());
                return true;
            }
            chain::Next::Over(result) => result,
        };
        let unfinished = if is_refused { Some(transfer) } else { Transfer::settle(transfer, target, result, done) };
        if let Some(transfer) = &unfinished {
            self.put(&mut lock(&self.starting), tag, transfer);
        }
        unfinished.is_some()
    }
}
