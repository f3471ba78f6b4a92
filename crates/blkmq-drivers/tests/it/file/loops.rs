//! Block devices, which the driver claims for itself: loop devices, in front of files.

use std::path::Path;
use std::process::Command;

use blkmq::{Bio, Buffer, Flags, Locking, Status};

use super::{SECTOR, disk_folder, file, queue};
use crate::common::{read, status_of, submitter};

/// A loop device, which goes with the value.
struct Loop(String);

impl Loop {
    /// `None` where there can be none. Then a message says that the test is skipped.
    fn new(file: &str) -> Option<Self> {
        if !Path::new("/dev/loop-control").exists() {
            println!("SKIP there is no /dev/loop-control");
            return None;
        }
        match Command::new("losetup").args(["--find", "--show", file]).output() {
            Ok(output) if output.status.success() => Some(Self(String::from_utf8_lossy(&output.stdout).trim().into())),
            other => {
                println!("SKIP a loop device takes losetup, and the rights of root: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Red before ranges were changed by the descriptor that claims the device: the kernel refused to change a range of
/// which the page cache had something that was not written, because another descriptor of the same server has the
/// device.
#[test]
fn ranges_of_a_claimed_block_device_are_changed_behind_buffered_writes() {
    let folder = disk_folder();
    let path = file(&folder, "disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("the folder is writable");
    let Some(device) = Loop::new(&path) else { return };
    for (engine, direct) in [("io_uring", 0), ("threads", 0), ("io_uring", 1)] {
        let spec = format!("file,path={},direct={direct},engine={engine}", device.0);
        let q = queue(&spec, "none", Locking::default());
        let identity = q.driver().identity().expect("its data stays");
        assert!(identity.starts_with("block device 7:"), "{identity}");
        let mut submitter = submitter(&q);
        let nounmap = Flags { nounmap: true, ..Flags::NONE };
        let ranges = [Bio::discard, Bio::write_zeroes, |sector, nr| Bio::write_zeroes(sector, nr)];
        for (number, (range, flags)) in ranges.iter().zip([Flags::NONE, Flags::NONE, nounmap]).enumerate() {
            let (sector, data) = (number as u64 * 64, Buffer::from(&[7; 64 * SECTOR][..]));
            assert_eq!(status_of(&mut submitter, Bio::write(sector, data)), Status::Ok);
            // Of the page cache also parts of pages.
            let skip = if direct == 0 { 3 } else { 8 };
            let status = status_of(&mut submitter, range(sector + skip as u64, 16).with_flags(flags));
            assert_eq!(status, Status::Ok, "{spec}, {number}");
            let found = read(&mut submitter, sector, 64 * SECTOR);
            let is_zero = |at: usize| (skip * SECTOR..(skip + 16) * SECTOR).contains(&at);
            assert!(found.iter().enumerate().all(|(at, byte)| *byte == if is_zero(at) { 0 } else { 7 }), "{spec}");
        }
    }
}
