//! Writeback errors where the kernel cannot be asked for them, as on an overlay. Here a filter refuses the system call
//! to the thread of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::common::{run, status_of, submitter};
use crate::seccomp::filter_of;
use crate::writeback_errors;
use blkmq::{Bio, Buffer, Flags, RequestQueue, Status};
use blkmq_drivers::file::{Asked, Choice, Journal};
use seccompiler::apply_filter;
use tempfile::TempDir;

/// Makes the kernel refuse a system call from now on, to this thread and to those that it starts.
fn forbid(call: i64) {
    apply_filter(&filter_of(call)).expect("the kernel has filters");
}

/// Opens a file for which the kernel cannot be asked.
fn open(engine: Choice, journal: Arc<dyn Journal>) -> (TempDir, RequestQueue) {
    forbid(libc::SYS_sync_file_range);
    writeback_errors::open(journal, |config| config.engine = engine)
}

/// Holds the answer to the first sync until the test releases it, and makes the answer an error.
#[derive(Debug, Default)]
struct Keeping {
    /// The hardware queue of that sync plus 1. 0 while there is no such sync.
    place: AtomicU32,
    is_answered: AtomicBool,
    is_let_go: AtomicBool,
    /// Whether a sync waits for others.
    is_waiting: AtomicBool,
}

impl Journal for Keeping {
    fn asked(&self, hctx: u16, _tag: u16, asked: Asked) {
        match asked {
            Asked::Sync => {
                let place = u32::from(hctx) + 1;
                let _ = self.place.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed);
            }
            Asked::Pause => self.is_waiting.store(true, Ordering::Relaxed),
            _ => (),
        }
    }

    fn answered(&self, hctx: u16, _tag: u16, result: i32) -> i32 {
        if self.place.load(Ordering::Relaxed) != u32::from(hctx) + 1 || self.is_answered.swap(true, Ordering::Relaxed) {
            return result;
        }
        while !self.is_let_go.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        -libc::EIO
    }
}

/// Red if the driver believes the second flush: the kernel has reported the loss only to the first flush, whose answer
/// no thread has taken yet.
#[test]
fn no_sync_is_believed_before_one_beside_it_is_answered() {
    for engine in [Choice::IoUring, Choice::Threads] {
        let journal = Arc::<Keeping>::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (_folder, q) = open(engine, Arc::clone(&journal) as _);
                let [mut first, mut second] = [submitter(&q), submitter(&q)];
                let status = |done: blkmq::Completion| done.status;
                let first = thread::spawn(move || status(run(&mut first, [Bio::flush()]).remove(0)));
                while !journal.is_answered.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                second.submit(Bio::flush()).expect("there is a slot");
                let mut over = Vec::new();
                while over.is_empty() && !journal.is_waiting.load(Ordering::Relaxed) {
                    second.poll();
                    second.reap_all(|done| over.push(status(done)));
                }
                journal.is_let_go.store(true, Ordering::Relaxed);
                let early = std::mem::take(&mut over);
                while early.is_empty() && over.is_empty() {
                    second.wait(1, None);
                    second.reap_all(|done| over.push(status(done)));
                }
                assert_eq!((&early[..], first.join().expect("it does not panic")), (&[][..], Status::IoError));
                assert_eq!(over, [Status::IoError], "{engine:?}");
            });
        });
    }
}

/// A journal that ignores everything.
#[derive(Debug)]
struct Nobody;

impl Journal for Nobody {}

/// Red if the thread that takes completions does the sync itself: meanwhile no other thread could take completions of
/// that ring, or sleep. In this test the thread may not sync, so the refusal would be taken for a loss.
#[test]
fn no_thread_that_takes_completions_syncs() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let (_folder, q) = open(Choice::IoUring, Arc::new(Nobody));
            forbid(libc::SYS_fdatasync);
            let write = Bio::write(0, Buffer::from(&[7; 4096][..])).with_flags(Flags { fua: true, ..Flags::default() });
            for bio in [write, Bio::flush()] {
                assert_eq!(status_of(&mut submitter(&q), bio), Status::Ok);
            }
        });
    });
}
