//! Data and holes of a file, as the device reports them and as the file system has them.

use std::fs;

use blkmq::driver::Extent;
use blkmq::{Bio, Buffer, Flags, Locking, RequestQueue, Status};
use tempfile::TempDir;

use super::{SECTOR, bases, file, folder, queue};
use crate::common::{read, status_of, submitter};

/// The extents that a device reports: for each the first byte, the length, and whether it is a hole.
fn map(q: &RequestQueue) -> Vec<(u64, u64, bool)> {
    let end = q.limits().capacity_sectors * SECTOR as u64;
    let (mut at, mut told) = (0, Vec::<(u64, u64, bool)>::new());
    while at < end {
        let found = q.driver().extent(at, end - at);
        assert!((1..=end - at).contains(&found.bytes) && found.is_hole == found.is_zero, "{found:?} at {at}");
        match told.last_mut() {
            Some((_, bytes, is_hole)) if *is_hole == found.is_hole => *bytes += found.bytes,
            _ => told.push((at, found.bytes, found.is_hole)),
        }
        at += found.bytes;
    }
    told
}

/// Blocks of 512 bytes that a file occupies.
fn blocks(path: &str) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).expect("the file is there"))
}

/// Whether the file system reports holes, and can make them.
fn has_holes(folder: &TempDir) -> bool {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

    let path = file(folder, "probe");
    fs::write(&path, [1; 1 << 16]).expect("it can be made");
    let probe = fs::OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let has_holes =
        fallocate(&probe, punch, 0, 1 << 16).is_ok() && seek(&probe, SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO);
    if !has_holes {
        println!("SKIP: the file system of {path} has no holes, or does not tell");
    }
    has_holes
}

/// Red if data is reported as a hole, including data that is only in the page cache, or if a later question does not
/// see what a discard or zeroes have left.
#[test]
fn the_extents_of_a_file_are_its_own() {
    const KIB: u64 = 1 << 10;
    const SIZE: u64 = 4096 * KIB;
    for folder in bases().into_iter().map(folder).filter(has_holes) {
        for direct in [0, 1] {
            let path = file(&folder, &format!("file{direct}"));
            let q = queue(&format!("file,path={path},size=4M,direct={direct}"), "none", Locking::Single);
            let mut submitter = submitter(&q);
            assert_eq!(map(&q), [(0, SIZE, true)]);
            let mut done = |bio| assert_eq!(status_of(&mut submitter, bio), Status::Ok);
            done(Bio::write(2048, Buffer::from(&vec![7; 256 << 10][..])));
            let data = (1024 * KIB, 256 * KIB, false);
            assert_eq!(map(&q), [(0, 1024 * KIB, true), data, (1280 * KIB, SIZE - 1280 * KIB, true)], "{path}");
            assert_eq!(q.driver().extent(1024 * KIB + 100, 200), Extent::data(200));
            assert_eq!(q.driver().extent(100, 200), Extent::hole(200));
            done(Bio::discard(2048, 128));
            done(Bio::write_zeroes(2432, 128));
            let data = (1088 * KIB, 128 * KIB, false);
            assert_eq!(map(&q), [(0, 1088 * KIB, true), data, (1216 * KIB, SIZE - 1216 * KIB, true)], "{path}");
            done(Bio::write_zeroes(0, 8192));
            done(Bio::flush());
            assert_eq!((map(&q), blocks(&path)), (vec![(0, SIZE, true)], 0), "{path}");
        }
    }
}

/// Red if zeroes leave no hole where they may, or leave one where they must not.
#[test]
fn zeroes_of_a_file_leave_a_hole_unless_they_must_not() {
    let nounmap = Flags { nounmap: true, ..Flags::NONE };
    for folder in bases().into_iter().map(folder).filter(has_holes) {
        let path = file(&folder, "file");
        let q = queue(&format!("file,path={path},size=1M"), "none", Locking::Single);
        let mut submitter = submitter(&q);
        assert_eq!(status_of(&mut submitter, Bio::write(0, Buffer::from(&vec![7; 1 << 20][..]))), Status::Ok);
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
        let full = blocks(&path);
        assert!(full >= 2048, "{full}");
        let status = status_of(&mut submitter, Bio::write_zeroes(0, 2048).with_flags(nounmap));
        if status == Status::Ok {
            assert_eq!(read(&mut submitter, 0, 1 << 20), vec![0; 1 << 20]);
        } else {
            assert_eq!(status, Status::Unsupported);
            assert_eq!(read(&mut submitter, 0, 1 << 20), vec![7; 1 << 20]);
            println!("SKIP: the file system of {path} cannot zero in place");
        }
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
        assert!(blocks(&path) >= 2048, "{path} has {} of {full} blocks", blocks(&path));
        assert_eq!(status_of(&mut submitter, Bio::write_zeroes(0, 2048)), Status::Ok);
        assert_eq!(read(&mut submitter, 0, 1 << 20), vec![0; 1 << 20]);
        assert_eq!(blocks(&path), 0, "{path}");
    }
}

/// Red if the part past the end of a file that has become shorter is reported as a hole: reads fail there.
#[test]
fn there_is_no_hole_behind_the_end_of_a_file() {
    for folder in bases().into_iter().map(folder).filter(has_holes) {
        let path = file(&folder, "file");
        let q = queue(&format!("file,path={path},size=1M"), "none", Locking::Single);
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(64 << 10)).expect("it is ours");
        assert_eq!(q.driver().extent(0, 1 << 20), Extent::hole(64 << 10));
        assert_eq!(q.driver().extent(64 << 10, 4096), Extent::data(4096));
    }
}
