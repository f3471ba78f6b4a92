//! A drive that is pulled out while requests are in flight, and that comes back.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use blkmq::driver::Health;
use blkmq::{Bio, Buffer, Completion, Flags, Locking, RequestQueue, Status, Submitter};

use super::{BLOCK, BLOCK_SECTORS, ask, block, queue, read, status_of};
use crate::common::submitter;

const THREADS: u64 = 4;
/// Requests that a thread has in flight.
const DEPTH: usize = 32;
/// Requests that a thread completes before the drive may go, and that it submits after the first error.
const BEFORE: u64 = 200;
const AFTER: u64 = 200;

/// A place that no thread of the load writes to, and its contents.
const KEPT: u64 = 100_000;
const KEPT_BYTE: u8 = 0xa5;

/// A thread's requests while the drive goes away.
#[derive(Default)]
struct Load {
    submitted: u64,
    completed: u64,
    /// How many had completed with an error when the latest request was submitted.
    failed: u64,
}

impl Load {
    /// The next request: reads and writes, some of them polled, some durable.
    fn next(&mut self, thread: u64) -> Bio {
        let number = self.submitted;
        self.submitted += 1;
        let sector = (thread * 1024 + number % 1024) * BLOCK_SECTORS;
        let flags = Flags { polled: number.is_multiple_of(2), fua: number % 8 == 5, nomerge: true, ..Flags::NONE };
        let bio = match number % 4 {
            0 | 3 => Bio::read(sector, Buffer::zeroed(BLOCK)).with_flags(Flags { fua: false, ..flags }),
            _ => Bio::write(sector, block(1)).with_flags(flags),
        };
        // What is submitted after an error has to fail too.
        bio.with_user_data(u64::from(self.failed > 0))
    }

    fn note(&mut self, done: &Completion) {
        self.completed += 1;
        match done.status {
            Status::Ok => assert_eq!(done.bio.user_data, 0, "the drive was gone before, and now it answers"),
            Status::IoError => self.failed += 1,
            other => panic!("{other:?} says something else than that the drive is gone"),
        }
    }

    /// Keeps requests in flight until there was an error, and some more. Tells by `is_loaded` that it is at work.
    fn run(mut self, q: &Arc<RequestQueue>, thread: u64, is_loaded: &Barrier) -> Self {
        let mut submitter = submitter(q);
        let mut has_told = false;
        let mut after = 0;
        while after < AFTER {
            if self.completed >= BEFORE && !has_told {
                is_loaded.wait();
                has_told = true;
            }
            while submitter.nr_outstanding() < DEPTH && after < AFTER {
                after += u64::from(self.failed > 0);
                submitter.submit(self.next(thread)).expect("there is a slot");
            }
            self.take(&mut submitter);
        }
        while submitter.nr_outstanding() > 0 {
            self.take(&mut submitter);
        }
        assert!(has_told, "the drive went before it was to go");
        self
    }

    fn take(&mut self, submitter: &mut Submitter) {
        submitter.wait();
        submitter.reap_all(|done| self.note(&done));
    }
}

/// Red if a request is lost when the drive goes away, or if it ends well that was submitted after one that did not; if
/// a flush is believed afterwards; if the device does not say what is wrong; or if the drive does not work when it is
/// back and opened anew.
pub(crate) fn check(disk: &str) {
    let spec = format!("file,path={disk},submit_queues=4,poll_queues=2");
    let q = queue(&spec, "mq-deadline", Locking::Combining);
    let kept = Bio::write(KEPT, block(KEPT_BYTE)).with_flags(Flags { fua: true, ..Flags::NONE });
    assert_eq!(status_of(&mut submitter(&q), kept), Status::Ok);
    assert_eq!(q.driver().health(), Health::Good);

    let is_loaded = Arc::new(Barrier::new(THREADS as usize + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (q, is_loaded) = (Arc::clone(&q), Arc::clone(&is_loaded));
            thread::spawn(move || Load::default().run(&q, number, &is_loaded))
        })
        .collect();
    is_loaded.wait();
    ask("pull");
    for thread in threads {
        let Load { submitted, completed, failed } = thread.join().expect("it came to its end");
        assert!(submitted == completed && failed >= AFTER, "{completed} of {submitted}, {failed} failed");
        println!("{submitted} requests, {failed} failed");
    }
    assert_eq!(q.in_flight(), 0);
    for bio in [Bio::flush(), Bio::discard(0, 8), Bio::write_zeroes(0, 8), Bio::read(0, Buffer::zeroed(BLOCK))] {
        let op = bio.op;
        assert_eq!(status_of(&mut submitter(&q), bio), Status::IoError, "{op:?}");
    }
    let health = q.driver().health();
    assert!(matches!(health, Health::Failed(_)), "{health:?}");
    println!("health {health:?}");
    println!("PASS each request ends when {disk} is pulled out, with an error after that, and the device says so");
    drop(q);

    ask("return");
    let node = await_node(disk);
    let q = queue(&spec.replace(disk, &node.display().to_string()), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    assert_eq!(read(&mut submitter, KEPT, BLOCK), [KEPT_BYTE; BLOCK]);
    assert_eq!(status_of(&mut submitter, Bio::write(0, block(3))), Status::Ok);
    assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
    assert_eq!(read(&mut submitter, 0, BLOCK), [3; BLOCK]);
    assert_eq!(q.driver().health(), Health::Good);
    println!("PASS {} is back and has what was durable", node.display());
}

/// Waits until the kernel has found the drive.
fn await_node(disk: &str) -> PathBuf {
    while !Path::new(disk).exists() {
        thread::sleep(Duration::from_millis(20));
    }
    disk.into()
}
