//! Reads and writes that block.

use std::io::ErrorKind;

use crate::device::open;
use blkmq::blocking::BlockingSubmitter;
use blkmq::{Client, Failed, RequestQueue, Status};

fn disk(device: &str) -> (RequestQueue, BlockingSubmitter) {
    let q = RequestQueue::builder(open(device)).slots(2).build().expect("the device is good");
    let disk = BlockingSubmitter::new(&q, &Client::new("me")).expect("there is a place");
    (q, disk)
}

/// Red if bytes go elsewhere than the caller said, if an operation that is longer than a request is cut short, or if
/// the buffer of a longer operation shows through in a shorter one.
#[test]
fn what_was_written_is_read_at_any_length() {
    let (_q, disk) = disk("null,size=1M,memory_backed=1,irqmode=2,completion_nsec=1us,max_sectors=24");
    let bytes: Vec<u8> = (0..100 * 1024).map(|at| (at % 251) as u8).collect();
    assert_eq!(disk.write_at(&bytes, 4096).expect("the device is good"), bytes.len());
    for len in [512, bytes.len(), 12 * 1024, 512] {
        let mut read = vec![9; len];
        disk.read_exact_at(&mut read, 4096).expect("the device is good");
        assert!(read == bytes[..len], "{len} bytes");
    }
    let mut before = [9; 4096];
    disk.read_exact_at(&mut before, 0).expect("the device is good");
    assert_eq!(before, [0; 4096]);
    disk.sync_data().expect("the device has a cache, or needs none");
}

/// Red if the end of the device is not that of a block device under `pread` and `pwrite`.
#[test]
fn the_device_ends_as_a_block_device_does() {
    let (_q, disk) = disk("ram,size=64K");
    let mut two = [7; 1024];
    assert_eq!(disk.read_at(&mut two, 65536 - 512).expect("a sector is there"), 512);
    assert_eq!(disk.read_at(&mut two, 65536).expect("the end is no error"), 0);
    assert_eq!(disk.read_at(&mut two, 1 << 40).expect("nor is what lies behind it"), 0);
    assert_eq!(disk.read_exact_at(&mut two, 65536 - 512).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(disk.write_at(&two, 65536 - 512).expect("a sector is there"), 512);
    assert_eq!(disk.write_at(&two, 65536).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.write_all_at(&two, 65536 - 512).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.write_at(&[], 65536).expect("nothing is always written"), 0);
}

/// Red if an error does not say what would be right, or hides the status.
#[test]
fn errors_say_what_was_wrong() {
    let (_q, disk) = disk("null,size=1M,bs=4096,badblocks=64-71,memory_backed=1");
    let mut bytes = [0; 512];
    let error = disk.read_at(&mut bytes, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "512 bytes at 100: both must be multiples of the logical block size, 4096 bytes");
    let mut block = [0; 4096];
    let error = disk.read_at(&mut block, 64 * 512).unwrap_err();
    let failed = error.get_ref().and_then(|inner| inner.downcast_ref::<Failed>());
    assert_eq!(failed.map(|failed| failed.completion.status), Some(Status::Medium));
    assert!(disk.read_at(&mut block, 0).is_ok(), "an error ends only its own call");
}
