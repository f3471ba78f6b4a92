//! What was acknowledged is there after a kill and after a power loss; the order of requests to a file's rings shows it
//! too. And what clients are told when disks are full, syncs or sectors fail, or descriptors run out.

mod block_device;
mod errors;
mod journal;
mod kills;
mod ledger;
mod load;
mod losses;
mod machine;
#[path = "../../../../blkmq-drivers/tests/it/mount/mod.rs"]
mod mount;
mod power;
mod replies;
mod tail;

use std::path::PathBuf;
use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::{Locking, RequestQueue};
use blkmq_export::{Export, Server};
use tempfile::TempDir;

/// The lockings that a scheduler of this name can have. `kyber` orders each hardware queue by itself, and the buckets
/// of `staged` belong to one order of them all.
fn lockings(scheduler: &str) -> Vec<Locking> {
    let is_refused = |locking: &Locking| scheduler == "kyber" && matches!(locking, Locking::Staged(_));
    Locking::ALL.into_iter().filter(|locking| !is_refused(locking)).collect()
}

/// A folder on a disk, which is removed when the value is dropped.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder for tests is writable")
}

/// A file in this folder.
fn file(folder: &TempDir, name: &str) -> (PathBuf, String) {
    let path = folder.path().join(name);
    let text = path.display().to_string();
    (path, text)
}

/// A queue in front of a device.
fn queue(driver: Arc<dyn Driver>, scheduler: &str) -> RequestQueue {
    RequestQueue::builder(driver).scheduler(scheduler).build().expect("the queue is good")
}

/// A server of a queue.
fn serve(q: RequestQueue) -> Server {
    Server::builder().export(Export::new("", q)).start().expect("the server is right")
}
