//! A hardware queue whose requests are carried out by threads instead of a ring.
//!
//! The engine of threads starts requests and takes answers, as a [ring](super::ring) does. The threads themselves are
//! in the [pool](super::pool). They know calls, and no requests.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use blkmq::driver::{Batch, Done};
use blkmq::{Status, Time};

use super::engine::Engine;
use super::journal::Journal;
use super::pool::{Call, Pool};
use super::target::Target;
use super::transfer::Transfer;
use crate::{lock, try_lock};

/// Threads, and the requests that they have.
pub(super) struct Threads {
    pool: Pool,
    /// Answers that are on their way to the block layer. The thread that takes them has this lock.
    answers: Mutex<Vec<(u16, i32)>>,
    /// The transfers by tag. Each lock is taken by one thread at a time: first by the thread that starts the request,
    /// then by the thread that takes its answer.
    transfers: Box<[Mutex<Transfer>]>,
    journal: Option<(u16, Arc<dyn Journal>)>,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Engine for Threads {
    /// All requests fail while the system gives no thread.
    fn start(&self, target: &Target, batch: &mut Batch<'_>, now: Time) {
        if !self.pool.has_thread() {
            return batch.finish_all(Status::IoError);
        }
        let end = target.end(now);
        while let Some(next) = Transfer::next(&self.transfers, target, batch, end) {
            let (tag, transfer) = next.unwrap_or_else(|tag| {
                panic!("tag {tag} is with a thread already; each tag of a hardware queue is out once")
            });
            self.ask(tag, &transfer);
        }
    }

    fn reap(&self, target: &Target, done: &mut Done<'_>) {
        let Some(mut answers) = try_lock(&self.answers) else { return };
        self.pool.take_answers(&mut answers);
        for (tag, mut result) in answers.drain(..) {
            if let Some((hctx, journal)) = &self.journal {
                result = journal.answered(*hctx, tag, result);
            }
            let transfer = lock(&self.transfers[usize::from(tag)]);
            if let Some(transfer) = Transfer::settle(transfer, target, result, done) {
                self.ask(tag, &transfer);
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.answers));
        self.pool.fd()
    }

    fn refusal(&self) -> Option<String> {
        self.pool.refusal()
    }
}

impl Threads {
    /// Threads for `depth` requests at once.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new(target: &Target, depth: u16, journal: Option<(u16, Arc<dyn Journal>)>) -> io::Result<Self> {
        Ok(Self {
            pool: Pool::new(target.fds(), depth)?,
            answers: Mutex::new(Vec::with_capacity(depth.into())),
            transfers: (0..depth).map(|_| Mutex::new(Transfer::new())).collect(),
            journal,
        })
    }

    /// Makes a thread do what is still to be done for a transfer.
    fn ask(&self, tag: u16, transfer: &MutexGuard<'_, Transfer>) {
        if let Some((hctx, journal)) = &self.journal {
            journal.asked(*hctx, tag, transfer.asked());
        }
        self.pool.push(Call { tag, operation: transfer.operation() });
    }
}
