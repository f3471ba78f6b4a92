//! A drive that goes away while requests are in flight, and that comes back.

use std::fs::{self, DirEntry, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use blkmq::driver::Health;
use blkmq::{Bio, Buffer, Completion, Flags, Locking, RequestQueue, Status, Submitter};

use super::{BLOCK, BLOCK_SECTORS, ask, block, queue};
use crate::common::{read, status_of, submitter};

const THREADS: u64 = 4;
/// Requests that a thread has in flight.
const DEPTH: usize = 32;
/// Requests that a thread completes before the drive may go, and that it submits after the first error.
const BEFORE: u64 = 200;
const AFTER: u64 = 200;

/// The guest takes a moment to see that a drive is gone, or is there.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

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
    fn run(mut self, q: &RequestQueue, thread: u64, is_loaded: &Barrier) -> Self {
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
        submitter.wait(1, None);
        submitter.reap_all(|done| self.note(&done));
    }
}

/// Asks for the drive to be taken away under load, by `away`, and looks how the requests end. At least `failing`
/// requests of each thread have to fail. Then asks for the drive by `back`, looks what it has, and returns its path.
fn check_away(disk: &Path, away: &str, failing: u64, back: &str) -> PathBuf {
    let spec = |disk: &Path| format!("file,path={},submit_queues=4,poll_queues=2", disk.display());
    let open = |disk| queue(&spec(disk), "mq-deadline", Locking::Combining);
    let q = open(disk);
    let kept = Bio::write(KEPT, block(KEPT_BYTE)).with_flags(Flags { fua: true, ..Flags::NONE });
    assert_eq!(status_of(&mut submitter(&q), kept), Status::Ok);
    assert_eq!(q.driver().health(), Health::Good);

    let is_loaded = Arc::new(Barrier::new(THREADS as usize + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (q, is_loaded) = (q.clone(), Arc::clone(&is_loaded));
            thread::spawn(move || Load::default().run(&q, number, &is_loaded))
        })
        .collect();
    is_loaded.wait();
    ask(away);
    for thread in threads {
        let Load { submitted, completed, failed } = thread.join().expect("it came to its end");
        assert!(submitted == completed && failed >= failing, "{completed} of {submitted}, {failed} failed");
        println!("{submitted} requests, {failed} failed");
    }
    assert_eq!(q.busy_tags(), 0);
    for bio in [Bio::flush(), Bio::discard(0, 8), Bio::write_zeroes(0, 8), Bio::read(0, Buffer::zeroed(BLOCK))] {
        let op = bio.op;
        assert_eq!(status_of(&mut submitter(&q), bio), Status::IoError, "{op:?}");
    }
    let health = q.driver().health();
    assert!(matches!(health, Health::Failed(_)), "{health:?}");
    println!("health {health:?}");
    println!("PASS {away}: each request to {} ends, with an error after that, and the device says so", disk.display());
    drop(q);

    while disk_there().is_some() {
        thread::sleep(BETWEEN_LOOKS);
    }
    ask(back);
    let disk = loop {
        if let Some(disk) = disk_there() {
            break disk;
        }
        thread::sleep(BETWEEN_LOOKS);
    };
    let q = open(&disk);
    let mut submitter = submitter(&q);
    assert_eq!(read(&mut submitter, KEPT, BLOCK), [KEPT_BYTE; BLOCK]);
    assert_eq!(status_of(&mut submitter, Bio::write(0, block(3))), Status::Ok);
    assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
    assert_eq!(read(&mut submitter, 0, BLOCK), [3; BLOCK]);
    assert_eq!(q.driver().health(), Health::Good);
    println!("PASS {away}: {} is back and has what was durable", disk.display());
    disk
}

/// The guest's one NVMe drive, if it can be opened. It may come back by another name: the kernel gives a name again
/// only when all that had the old drive open have let go of it.
fn disk_there() -> Option<PathBuf> {
    let nodes = fs::read_dir("/dev").expect("the guest has it").map(|node| node.expect("it is read"));
    let is_disk = |node: &DirEntry| node.file_type().is_ok_and(|kind| kind.is_block_device());
    let is_nvme = |node: &DirEntry| node.file_name().as_encoded_bytes().starts_with(b"nvme");
    let mut disks = nodes.filter(|node| is_nvme(node) && is_disk(node)).map(|node| node.path());
    disks.find(|disk| File::open(disk).is_ok())
}

/// First the kernel is told that the drive will go, as when a slot has a button for it, and lets the requests end that
/// the drive has. Then the drive is gone from one moment to the next. The kernel finds out when requests take too long,
/// and gives up all that are in flight.
///
/// Red if a request is lost when the drive goes away, or if it ends well that was submitted after one that did not; if
/// a request ends well that was in flight when the drive vanished; if a flush is believed afterwards; if the device
/// does not say what is wrong; or if the drive does not work when it is back and opened anew.
pub(crate) fn check(disk: &str) {
    let disk = check_away(Path::new(disk), "pull", AFTER, "return");
    // How long the kernel waits for a request before it looks after the drive, in milliseconds. By default the kernel
    // waits for half a minute, and does so twice.
    let name = disk.file_name().expect("it is a device").display();
    fs::write(format!("/sys/block/{name}/queue/io_timeout"), "5000").expect("it can be set");
    check_away(&disk, "vanish", AFTER + DEPTH as u64, "replace");
}
