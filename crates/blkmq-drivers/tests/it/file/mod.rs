//! Files behind the block layer, on a real file system and on tmpfs.

mod contents;
mod extents;
mod limits;
mod loops;
mod memory;
mod queues;
mod threads;

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::run;
use blkmq::{Bio, Buffer, Locking, RequestQueue, Status, Submitter};

const SECTOR: usize = 512;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(base: &str, name: &str) -> Self {
        let path = Path::new(base).join(format!("blkmq-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder for tests is writable");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder on a disk's file system, and one on a file system without a disk.
fn bases() -> Vec<&'static str> {
    [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"].into_iter().filter(|base| Path::new(base).is_dir()).collect()
}

fn queue(spec: &str, scheduler: &str, locking: Locking) -> RequestQueue {
    let driver = blkmq_drivers::open(spec).expect("the file can be opened");
    let q = RequestQueue::builder(driver).scheduler(scheduler).locking(locking);
    q.build().expect("the device makes sense")
}

fn status_of(submitter: &mut Submitter, bio: Bio) -> Status {
    run(submitter, [bio]).remove(0).status
}

fn read(submitter: &mut Submitter, sector: u64, len: usize) -> Vec<u8> {
    let done = run(submitter, [Bio::read(sector, Buffer::zeroed(len))]).remove(0);
    assert_eq!(done.status, Status::Ok);
    done.bio.buffers.iter().next().expect("a read has a buffer").to_vec()
}
