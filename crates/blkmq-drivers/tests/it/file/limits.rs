//! What a file refuses, and what it has no room for.

use std::fs;

use blkmq::{Bio, Buffer, Locking, RejectReason, Status};

use super::{SECTOR, bases, disk_folder, file, folder, queue};
use crate::common::{read, status_of, submitter};

/// Red if a device that only reads takes a change, if it keeps other readers away, or if it lets a writer in.
#[test]
fn what_only_reads_refuses_the_rest() {
    let folder = disk_folder();
    let path = file(&folder, "a");
    fs::write(&path, vec![9; 1 << 16]).expect("the folder for tests is writable");
    let q = queue(&format!("file,path={path},read_only=1"), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    assert_eq!(read(&mut submitter, 8, 4096), vec![9; 4096]);
    for bio in [Bio::write(0, Buffer::zeroed(4096)), Bio::discard(0, 8), Bio::write_zeroes(0, 8)] {
        let rejected = submitter.submit(bio).expect_err("it would change the file");
        assert_eq!(rejected.reason, RejectReason::Bad(Status::Unsupported));
    }
    // Another device that only reads is accepted, and one that writes is not.
    let other = blkmq_drivers::open(&format!("file,path={path},read_only=1"));
    assert!(other.is_ok());
    let error = blkmq_drivers::open(&format!("file,path={path},lock_timeout=0")).expect_err("it is in use").to_string();
    assert!(error.ends_with("a: in use by another server"), "{error}");
}

/// Red if an error does not say which file it is about, and what would be right, or if a file is changed by it.
#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let folder = disk_folder();
    let path = file(&folder, "a");
    fs::write(&path, vec![0; 1 << 16]).expect("the folder for tests is writable");
    fs::write(file(&folder, "empty"), b"").expect("the folder for tests is writable");
    let cases = [
        ("file".to_owned(), "device file: a path is missing, as in file,path=disk.img".to_owned()),
        (
            format!("file,path={path}x"),
            format!(
                "device file: {path}x: No such file or directory (os error 2); with a size it is made, as in \
                 file,path={path}x,size=1G"
            ),
        ),
        (format!("{path}/x"), format!("device file: {path}/x: Not a directory (os error 20)")),
        (
            format!("file,path={path},size=1M"),
            format!("device file: {path}: it has 65536 bytes, not 1048576; leave size= out to take it as it is"),
        ),
        (
            format!("file,path={path},direct=0,poll_queues=1"),
            format!("device file: {path}: polled hardware queues need direct I/O, which is off or not for this file"),
        ),
        (
            format!("file,path={}", folder.path().display()),
            format!("device file: {}: Is a directory (os error 21)", folder.path().display()),
        ),
        ("file,path=/dev/null".to_owned(), "device file: /dev/null: neither a file nor a block device".to_owned()),
    ];
    for (spec, error) in cases {
        assert_eq!(blkmq_drivers::open(&spec).expect_err("it cannot be opened").to_string(), error);
    }
    let error =
        blkmq_drivers::open(&format!("file,path={}", file(&folder, "empty"))).expect_err("it is empty").to_string();
    assert!(error.contains("it has 0 bytes, less than one block"), "{error}");
    assert_eq!(fs::metadata(&path).map(|file| file.len()).ok(), Some(1 << 16), "no error changes the file");
}

/// Red if a file that becomes larger while it is used cannot be used to its end once `revalidate` was called.
#[test]
fn a_file_may_grow_while_it_is_used() {
    for base in bases() {
        let folder = folder(base);
        let path = file(&folder, "a");
        let q = queue(&format!("file,path={path},size=1M"), "mq-deadline", Locking::Combining);
        let mut submitter = submitter(&q);
        let block = q.limits().logical_block_size as usize;
        let beyond = (1 << 20) / SECTOR as u64;
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len((2 << 20) + 100))
            .expect("it grows");
        let rejected = submitter.submit(Bio::write(beyond, Buffer::zeroed(block))).expect_err("nobody has looked yet");
        assert_eq!(rejected.reason, RejectReason::Bad(Status::BeyondEnd));
        assert_eq!(q.revalidate(), Ok(2 * beyond), "whole blocks alone count");
        let end = 2 * beyond - (block / SECTOR) as u64;
        assert_eq!(status_of(&mut submitter, Bio::write(end, Buffer::from(&vec![4; block][..]))), Status::Ok);
        assert_eq!(read(&mut submitter, end, block), vec![4; block]);
        assert!(q.dump().contains("2097152 bytes"), "{}", q.dump());
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(1 << 20)).expect("it shrinks");
        let error = q.revalidate().expect_err("what lies behind the end may be in flight").to_string();
        assert!(error.contains("has 2048 sectors, not 4096"), "{error}");
        assert_eq!(q.limits().capacity_sectors, 4096);
    }
}
