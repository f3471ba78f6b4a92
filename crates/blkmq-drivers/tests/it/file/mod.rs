//! Files behind the block layer, on a real file system and on tmpfs.

mod contents;
mod extents;
mod limits;
mod loops;
mod memory;
mod queues;
mod threads;

use std::path::Path;

use blkmq::{Locking, RequestQueue};
use tempfile::TempDir;

const SECTOR: usize = 512;

/// A folder in a base, which is removed when the test ends.
fn folder(base: &str) -> TempDir {
    tempfile::tempdir_in(base).expect("the folder for tests is writable")
}

/// A folder on the disk of the target folder.
pub(crate) fn disk_folder() -> TempDir {
    folder(env!("CARGO_TARGET_TMPDIR"))
}

/// The path of a file in a folder, for a spec.
fn file(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
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
