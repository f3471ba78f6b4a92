//! A file that is served, and what other programs do to it: its name is taken away, or it is protected from writes.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::common::{run, status_of, submitter};
use blkmq::driver::Health;
use blkmq::{Bio, Buffer, Flags, RequestQueue, Status};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

fn open(path: &Path, more: &str) -> RequestQueue {
    let spec = format!("file,path={}{more}", path.display());
    RequestQueue::builder(blkmq_drivers::open(&spec).expect("it can be opened")).build().expect("it makes sense")
}

fn write(sector: u64) -> Bio {
    Bio::write(sector, Buffer::from(&[7; 4096][..]))
}

/// Red if a file that will be lost, or not found, when its server ends counts as good; if it counts as failed, or does
/// not count as good again once it is back.
#[test]
fn a_file_that_has_lost_its_name_is_told_of_and_served_on() {
    let folder = tempfile::tempdir().expect("there is room");
    let [path, aside] = ["disk", "aside"].map(|name| folder.path().join(name));
    let orphaned = |q: &RequestQueue, why: &str| match q.driver().health() {
        Health::Orphaned(text) => {
            assert!(text.starts_with(&format!("{}: ", path.display())) && text.contains(why), "{text}");
        }
        health => panic!("{why}: {health:?}"),
    };
    let q = open(&path, ",size=1M");
    assert_eq!(q.driver().health(), Health::Good);
    fs::rename(&path, &aside).expect("it is there");
    orphaned(&q, "the file was renamed");
    fs::write(&path, "another").expect("there is room");
    orphaned(&q, "the file was renamed");
    fs::rename(&aside, &path).expect("it is there");
    assert_eq!(q.driver().health(), Health::Good, "it is back");
    fs::write(&aside, "another").expect("there is room");
    fs::rename(&aside, &path).expect("it is there");
    orphaned(&q, "the file was deleted, or another one was renamed over it");
    fs::remove_file(&path).expect("it is there");
    orphaned(&q, "the file was deleted");
    let over = run(&mut submitter(&q), [write(0), Bio::flush()]);
    assert!(over.iter().all(|done| done.status == Status::Ok), "{over:?}");
}

/// Red if a write to a file that became immutable is answered as if the operation did not exist, or if such an answer
/// counts as a loss of what was written before.
#[test]
fn a_file_that_must_not_be_changed_any_more_says_so_to_each_request() {
    for more in [",engine=any", ",engine=threads", ",direct=0"] {
        let memory = memfd_create("disk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("there is room");
        ftruncate(&memory, 1 << 20).expect("it may grow");
        let q = open(Path::new(&format!("/proc/self/fd/{}", memory.as_raw_fd())), more);
        let mut submitter = submitter(&q);
        let mut status = |bio| status_of(&mut submitter, bio);
        assert_eq!(status(write(0)), Status::Ok);
        // The kernel answers as for a file with the attribute `i`, which not every file system has.
        fcntl_add_seals(&memory, SealFlags::WRITE).expect("no program has it mapped to write");
        let durable = Flags { fua: true, ..Flags::NONE };
        for bio in [write(8), write(8).with_flags(durable), Bio::write_zeroes(8, 8), Bio::discard(8, 8)] {
            let what = format!("{more}: {bio:?}");
            assert_eq!(status(bio), Status::NotPermitted, "{what}");
        }
        assert_eq!((status(Bio::flush()), q.driver().health()), (Status::Ok, Health::Good), "{more}");
    }
}
