//! A process of its own, because the test limits the memory of its process: the threads of the device `file` where
//! there is no io_uring.

#[path = "it/common/mod.rs"]
mod common;
mod memory;

use blkmq::driver::Health;
use blkmq::{Bio, RequestQueue, Status};
use common::{run, submitter};
use memory::allow_threads;

/// Red if the first thread is made when the file is opened, before a server has given up its rights: here opening then
/// fails. Red (hangs) if requests are taken that no thread will do. Red too if such a flush counts as one that failed
/// in the kernel: the file would be given up forever.
#[test]
fn a_file_has_no_thread_before_its_first_request_and_is_good_again_once_it_has_one() {
    let folder = tempfile::tempdir().expect("there is room");
    let spec = format!("file,path={},size=1M,engine=threads", folder.path().join("disk").display());
    allow_threads(false);
    let driver = blkmq_drivers::open(&spec).expect("the file can be made");
    let q = RequestQueue::builder(driver).build().expect("the device makes sense");
    let mut submitter = submitter(&q);
    let mut flush = || run(&mut submitter, [Bio::flush()]).remove(0).status;

    assert_eq!(q.driver().health(), Health::Good, "nobody has asked for anything");
    assert_eq!(flush(), Status::IoError);
    let health = q.driver().health();
    assert!(
        matches!(&health, Health::Away(text) if text.contains("until the system gives the device a thread")),
        "{health:?}"
    );
    allow_threads(true);
    assert_eq!(flush(), Status::Ok);
    assert_eq!(q.driver().health(), Health::Good);
}
