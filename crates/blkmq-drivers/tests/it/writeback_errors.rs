//! Syncs that fail: the loss is reported to every client that asks for durability afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::common::{run, status_of, submitter};
use crate::file::disk_folder;
use blkmq::driver::Health;
use blkmq::{Bio, Buffer, Flags, RequestQueue, Status, Submitter};
use blkmq_drivers::file::{Asked, Config, File, Journal};
use tempfile::TempDir;

/// Replaces the kernel's answer by an error, once.
#[derive(Debug)]
struct Failing {
    /// Which entry fails.
    fails: fn(Asked) -> bool,
    /// The request that fails next: hardware queue and tag. Below zero there is none.
    place: AtomicI32,
    /// The error number. 0 once it was reported.
    errno: AtomicI32,
}

impl Failing {
    fn new(errno: i32, fails: fn(Asked) -> bool) -> Arc<Self> {
        Arc::new(Self { fails, place: AtomicI32::new(-1), errno: AtomicI32::new(errno) })
    }

    fn place(hctx: u16, tag: u16) -> i32 {
        i32::from(hctx) << 16 | i32::from(tag)
    }
}

impl Journal for Failing {
    fn asked(&self, hctx: u16, tag: u16, asked: Asked) {
        if (self.fails)(asked) && self.errno.load(Ordering::Relaxed) != 0 {
            self.place.store(Self::place(hctx, tag), Ordering::Relaxed);
        }
    }

    fn answered(&self, hctx: u16, tag: u16, result: i32) -> i32 {
        if self.place.load(Ordering::Relaxed) != Self::place(hctx, tag) {
            return result;
        }
        self.place.store(-1, Ordering::Relaxed);
        -self.errno.swap(0, Ordering::Relaxed)
    }
}

fn fua(bio: Bio) -> Bio {
    bio.with_flags(Flags { fua: true, ..Flags::default() })
}

fn is_sync(asked: Asked) -> bool {
    asked == Asked::Sync
}

fn is_durable_write(asked: Asked) -> bool {
    matches!(asked, Asked::Write { is_durable: true, .. })
}

struct Setting {
    folder: TempDir,
    q: RequestQueue,
}

/// Opens a new file with two hardware queues.
pub(crate) fn open(journal: Arc<dyn Journal>, change: impl FnOnce(&mut Config)) -> (TempDir, RequestQueue) {
    let folder = disk_folder();
    let mut config = Config { size: Some(1 << 20), queues: 2, ..Config::new(folder.path().join("disk")) };
    change(&mut config);
    let file = File::open_with_journal(config, journal).expect("the file can be made");
    (folder, queue(file))
}

fn queue(file: File) -> RequestQueue {
    RequestQueue::builder(Arc::new(file)).scheduler("none").build().expect("the device makes sense")
}

impl Setting {
    fn new(direct: bool, journal: Arc<Failing>) -> Self {
        let (folder, q) = open(journal, |config| config.direct = direct);
        Self { folder, q }
    }

    /// The answers to each of these operations, in turn, for submitters of both rings.
    fn statuses(&self, bios: impl Fn() -> Vec<Bio>) -> Vec<Vec<Status>> {
        let mut submitters = [submitter(&self.q), submitter(&self.q)];
        let each = |submitter: &mut Submitter| bios().into_iter().map(|bio| status_of(submitter, bio)).collect();
        submitters.iter_mut().map(each).collect()
    }
}

fn write() -> Bio {
    Bio::write(0, Buffer::from(&[7; 4096][..]))
}

/// All operations that promise durability.
fn promises() -> Vec<Bio> {
    vec![Bio::flush(), fua(write()), fua(Bio::write_zeroes(8, 8)), fua(Bio::discard(8, 8)), Bio::flush()]
}

/// All operations that promise no durability.
fn others() -> Vec<Bio> {
    vec![write(), Bio::write_zeroes(8, 8), Bio::discard(8, 8), Bio::read(0, Buffer::zeroed(4096))]
}

/// Red if the driver believes the next sync of the ring, or a sync of another ring: the kernel reports a loss only
/// once.
#[test]
fn after_a_sync_that_failed_no_flush_and_no_fua_is_believed_by_any_ring() {
    for (direct, first) in [
        (false, Bio::flush as fn() -> Bio),
        (true, Bio::flush),
        (false, || fua(Bio::write_zeroes(16, 8))),
        (true, || fua(Bio::discard(16, 8))),
    ] {
        let setting = Setting::new(direct, Failing::new(libc::ENOSPC, is_sync));
        assert_eq!(setting.q.driver().health(), Health::Good);
        let failed =
            run(&mut submitter(&setting.q), [write(), first()]).iter().map(|done| done.status).collect::<Vec<_>>();
        assert!(failed.contains(&Status::Ok) && failed.contains(&Status::NoSpace), "{failed:?}");
        for statuses in setting.statuses(promises) {
            assert_eq!(statuses, [Status::IoError; 5]);
        }
        for statuses in setting.statuses(others) {
            assert_eq!(statuses, [Status::Ok; 4], "what promises nothing goes on");
        }
        let health = setting.q.driver().health();
        let trouble = health.trouble().expect("something is wrong");
        assert!(matches!(health, Health::Failed(_)), "{health:?}");
        assert!(trouble.starts_with("a sync failed at 20") && trouble.contains("No space left on device"), "{trouble}");
        assert!(setting.q.dump().contains(&format!("\nhealth failed: {trouble}\n")), "{}", setting.q.dump());
        // After it is opened anew, it works as before.
        let Setting { folder, q } = setting;
        drop(q);
        let file = File::open(Config { direct, ..Config::new(folder.path().join("disk")) }).expect("it is free");
        let q = queue(file);
        assert_eq!(status_of(&mut submitter(&q), Bio::flush()), Status::Ok);
        assert_eq!(q.driver().health(), Health::Good);
    }
}

/// A file system on top of another one accepts no durable writes: each write is followed by a sync. Returns whether
/// there were durable writes, and prints it if there were none.
fn has_durable_writes(journal: &Failing) -> bool {
    let has = journal.errno.load(Ordering::Relaxed) == 0;
    if !has {
        println!("SKIP: the folder for tests is on an overlay");
    }
    has
}

/// Red if the error of a durable write is reported only to that write's client: the error may be about earlier data in
/// the page cache.
#[test]
fn after_a_durable_write_that_failed_through_the_page_cache_no_flush_is_believed() {
    let journal = Failing::new(libc::EIO, is_durable_write);
    let setting = Setting::new(false, Arc::clone(&journal));
    let status = status_of(&mut submitter(&setting.q), fua(write()));
    if !has_durable_writes(&journal) {
        return;
    }
    assert_eq!(status, Status::IoError);
    for statuses in setting.statuses(promises) {
        assert_eq!(statuses, [Status::IoError; 5]);
    }
    assert!(
        setting.q.driver().health().trouble().is_some_and(|text| text.starts_with("a write that was to be durable"))
    );
}

/// Red if a disk that has no room for one write, or has a bad sector, is given up forever.
#[test]
fn a_durable_write_that_had_no_room_or_met_a_bad_sector_hurts_nobody_else() {
    for (direct, errno) in [(false, libc::ENOSPC), (true, libc::ENOSPC), (true, libc::EIO)] {
        let journal = Failing::new(errno, is_durable_write);
        let setting = Setting::new(direct, Arc::clone(&journal));
        if direct && !setting.q.dump().contains(", direct)") {
            println!("SKIP: the file system of {} has no direct I/O", setting.folder.path().display());
            continue;
        }
        let status = status_of(&mut submitter(&setting.q), fua(write()));
        if !has_durable_writes(&journal) {
            return;
        }
        assert!(!status.is_ok());
        for statuses in setting.statuses(promises) {
            assert_eq!(statuses, [Status::Ok; 5]);
        }
        assert_eq!(setting.q.driver().health(), Health::Good);
    }
}

/// Cuts the file short when a request is answered, and replaces the answer by that of a disk that is gone.
#[derive(Debug)]
struct Vanishing(std::path::PathBuf);

impl Journal for Vanishing {
    fn answered(&self, _hctx: u16, _tag: u16, _result: i32) -> i32 {
        let file = std::fs::OpenOptions::new().write(true).open(&self.0).expect("it is there");
        file.set_len(0).expect("it can be cut");
        -libc::ENOSPC
    }
}

/// Red if a disk that is gone counts as full: its client would wait for room.
#[test]
fn a_disk_that_is_gone_is_not_full() {
    let folder = disk_folder();
    let path = folder.path().join("disk");
    let config = Config { size: Some(1 << 20), ..Config::new(&path) };
    let q = queue(File::open_with_journal(config, Arc::new(Vanishing(path))).expect("the file can be made"));
    let status = status_of(&mut submitter(&q), Bio::write(1024, Buffer::from(&[7; 4096][..])));
    assert_eq!(status, Status::IoError);
    let health = q.driver().health();
    assert!(health.trouble().is_some_and(|text| text.starts_with("the file became shorter at ")), "{health:?}");
}
