//! Threads that do what a ring would do, for systems that give no io_uring, such as containers that forbid it.
//!
//! A call is what one entry of a ring asks for, and its answer is what the ring's completion would say. Everything else
//! is the same as with a ring: what remains of a request after a short read, and how long a request stays borrowed.
#![expect(unsafe_code, reason = "the kernel is told where a request's memory is, as a ring's entry tells it")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::lock;

/// The most threads of a hardware queue. Disks that gain from more requests at once need io_uring anyway.
const MOST_THREADS: usize = 64;

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    /// Fill pieces of memory.
    Read { pieces: *const libc::iovec, len: usize, offset: u64 },
    /// Write pieces of memory, with the flags of pwritev2.
    Write { pieces: *const libc::iovec, len: usize, offset: u64, flags: i32 },
    /// Sync all data of the file.
    Sync,
    /// Nothing, for this long.
    Pause(Duration),
    /// Change a range, with the mode of fallocate.
    Range { mode: i32, offset: u64, bytes: u64 },
}

/// A call for a request with a tag.
///
/// # Invariant
/// The memory that `operation` names lives and does not move until the call is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) tag: u16,
    pub(super) operation: Operation,
}

// SAFETY: by the invariant the addresses are valid on every thread. Only the kernel follows them.
unsafe impl Send for Call {}

impl Call {
    /// Asks the kernel, with the descriptors of a [`Target`](super::target::Target), and waits. The answer has the form
    /// of a ring's answer: what was done, or a negative error number.
    fn perform(&self, [direct, buffered, claiming]: [RawFd; 3]) -> i32 {
        let result = match self.operation {
            Operation::Read { pieces, len, offset } => {
                // SAFETY: by the invariant the pieces live, and the memory that they name is the request's, to be
                // written.
                unsafe { libc::preadv2(direct, pieces, len as i32, offset as i64, 0) }
            }
            Operation::Write { pieces, len, offset, flags } => {
                // SAFETY: by the invariant the pieces live, and so does the memory that they name.
                unsafe { libc::pwritev2(direct, pieces, len as i32, offset as i64, flags) }
            }
            // SAFETY: the call reads no memory.
            Operation::Sync => unsafe { libc::fdatasync(buffered) as isize },
            Operation::Pause(time) => {
                thread::sleep(time);
                0
            }
            Operation::Range { mode, offset, bytes } => {
                // SAFETY: the call reads no memory.
                unsafe { libc::fallocate(claiming, mode, offset as i64, bytes as i64) as isize }
            }
        };
        if result < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { result as i32 }
    }
}

/// What the threads and their users share.
#[derive(Debug, Default)]
struct PoolState {
    /// Calls that no thread has taken.
    calls: VecDeque<Call>,
    /// The answers, each with its tag.
    answers: Vec<(u16, i32)>,
    threads: Vec<JoinHandle<()>>,
    /// Why the system gave no first thread when it was last asked for one.
    refusal: Option<io::Error>,
    /// Number of threads that wait for a call.
    nr_idle: usize,
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    /// The descriptors of the target, which stay open as long as there are threads.
    fds: [RawFd; 3],
    state: Mutex<PoolState>,
    /// Signals that there is a call, or that the pool ends.
    work: Condvar,
    /// Readable while there are answers.
    ready: EventFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// What each thread does.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(call) = state.calls.pop_front() else {
                if state.is_over {
                    return;
                }
                state.nr_idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.nr_idle -= 1;
                continue;
            };
            drop(state);
            let answer = call.perform(self.fds);
            state = self.lock();
            state.answers.push((call.tag, answer));
            self.ready.notify();
        }
    }
}

/// The threads of a hardware queue.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    most: usize,
}

impl Pool {
    /// Creates a pool for `depth` calls at once, with the descriptors of a target. The pool has no thread yet. Each
    /// thread is made when calls need it, so it has the same restrictions as the process, which gives up rights after
    /// the file was opened.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new(fds: [RawFd; 3], depth: u16) -> io::Result<Self> {
        let state = PoolState {
            calls: VecDeque::with_capacity(depth.into()),
            answers: Vec::with_capacity(depth.into()),
            ..PoolState::default()
        };
        let shared = Shared { fds, state: Mutex::new(state), work: Condvar::new(), ready: EventFd::new()? };
        Ok(Self { shared: Arc::new(shared), most: usize::from(depth).min(MOST_THREADS) })
    }

    /// Makes the first thread, if there is none. Returns whether calls will be answered: a thread stays as long as the
    /// pool.
    ///
    /// COST: a lock that threads take for each call.
    pub(super) fn has_thread(&self) -> bool {
        let mut state = self.shared.lock();
        if state.threads.is_empty() {
            state.refusal = self.grow(&mut state).err();
        }
        !state.threads.is_empty()
    }

    /// Returns why no call is answered, if that is so.
    pub(super) fn refusal(&self) -> Option<String> {
        self.shared.lock().refusal.as_ref().map(io::Error::to_string)
    }

    fn grow(&self, state: &mut PoolState) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        state.threads.push(thread::Builder::new().name("file".to_owned()).spawn(move || shared.work())?);
        Ok(())
    }

    /// Hands a call to the threads of a pool that [has a thread](Self::has_thread). The order of calls is not kept.
    /// Returns at once.
    ///
    /// COST: a lock that threads take for each call, and a system call for each thread that is woken.
    pub(super) fn push(&self, call: Call) {
        let mut state = self.shared.lock();
        debug_assert!(!state.threads.is_empty(), "nobody would answer");
        state.calls.push_back(call);
        if state.calls.len() > state.nr_idle && state.threads.len() < self.most {
            // If the system gives no more threads, the existing ones do the call.
            let _ = self.grow(&mut state);
        }
        self.shared.work.notify_one();
    }

    /// Readable while there are answers.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }

    /// Moves all answers to `answers`.
    pub(super) fn take_answers(&self, answers: &mut Vec<(u16, i32)>) {
        let mut state = self.shared.lock();
        if !state.answers.is_empty() {
            // With the next answer a thread makes the descriptor readable again. The thread adds the answer under the
            // lock.
            self.shared.ready.drain();
            answers.append(&mut state.answers);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.work.notify_all();
        // No thread may use a descriptor that is closed after this.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn answers(pool: &Pool, count: usize) -> Vec<(u16, i32)> {
        let mut answers = Vec::new();
        while answers.len() < count {
            pool.take_answers(&mut answers);
            thread::yield_now();
        }
        answers
    }

    fn piece(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    /// Red if an answer is not what a ring's completion would say: the bytes that were done, or 0. Red too if an
    /// offset, a mode or a piece of memory gets lost.
    #[test]
    #[cfg_attr(miri, ignore = "there is no preadv2")]
    fn calls_are_answered_as_a_ring_answers_them() {
        let file = tempfile::tempfile().expect("there is room");
        let pool = Pool::new([file.as_raw_fd(); 3], 4).expect("there are descriptors");
        assert!(pool.has_thread());
        let (mut text, mut back) = (*b"ab", [9_u8; 8]);
        let pieces = [piece(&mut text), piece(&mut back)];
        let write = Operation::Write { pieces: &raw const pieces[0], len: 1, offset: 2, flags: libc::RWF_DSYNC };
        let grow = Operation::Range { mode: 0, offset: 0, bytes: 5 };
        let read = Operation::Read { pieces: &raw const pieces[1], len: 1, offset: 1 };
        for (tag, operation, expected) in [(3, write, 2), (1, Operation::Sync, 0), (0, grow, 0), (2, read, 4)] {
            pool.push(Call { tag, operation });
            assert_eq!(answers(&pool, 1), [(tag, expected)]);
        }
        assert_eq!(back, *b"\0ab\0\x09\x09\x09\x09");
    }

    /// Hangs if a thread that waits is not woken, or threads do not end.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn threads_end_with_the_pool() {
        let pool = Pool::new([-1; 3], 2).expect("there are descriptors");
        assert!(pool.has_thread());
        (0..8).for_each(|tag| pool.push(Call { tag, operation: Operation::Sync }));
        let mut tags: Vec<_> = answers(&pool, 8)
            .into_iter()
            .map(|(tag, answer)| {
                assert_eq!(answer, -libc::EBADF);
                tag
            })
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..8).collect::<Vec<_>>());
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        assert!(shared.upgrade().is_none());
    }
}
