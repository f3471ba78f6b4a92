use std::sync::Arc;

use blkmq::driver::spec;
use blkmq::{Client, RequestQueue};

use super::*;

const MOST: usize = 64 << 10;

fn queue(device: &str) -> Arc<RequestQueue> {
    RequestQueue::builder(spec::open(device).unwrap()).build().unwrap()
}

fn ask(op: u8, flags: u32, start_sector: u64, nr_sectors: u32) -> Descriptor {
    Descriptor { op_flags: u32::from(op) | flags, nr_sectors, start_sector }
}

/// Has all requests done that have arrived. Returns the results by tag.
fn finish(work: &mut Work, submitter: &mut Submitter) -> Vec<(u16, i32)> {
    let mut results = Vec::new();
    while !work.is_idle() {
        work.submit(submitter);
        submitter.poll();
        submitter.reap_all(|done| work.settle(done));
        results.extend(std::iter::from_fn(|| work.next_over()));
    }
    results.sort_unstable();
    results
}

/// Red if data goes elsewhere than where the descriptor says, or a result is not what the kernel expects.
#[test]
fn what_is_written_by_one_tag_is_read_by_another() {
    let q = queue("ram,size=1M");
    let mut submitter = q.submitter(&Client::new("kernel")).unwrap();
    let mut work = Work::new(4, MOST).unwrap();
    let address = work.address(1);
    work.data(1).unwrap()[..8192].fill(7);
    work.arrive(1, &ask(op::WRITE, flag::FUA | flag::META, 8, 16));
    assert_eq!(finish(&mut work, &mut submitter), [(1, 8192)]);
    assert_eq!(work.address(1), address, "the kernel knows the buffer's address for good");
    work.data(0).unwrap().fill(9);
    work.arrive(0, &ask(op::READ, flag::SWAP, 0, 32));
    work.arrive(2, &ask(op::FLUSH, 0, 0, 0));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 16384), (2, 0)]);
    let read = work.data(0).unwrap();
    assert!(read[..4096].iter().chain(&read[12288..16384]).all(|byte| *byte == 0));
    assert!(read[4096..12288].iter().all(|byte| *byte == 7));
    assert!(read[16384..].iter().all(|byte| *byte == 9), "nothing behind the request is touched");
    work.arrive(3, &ask(op::WRITE_ZEROES, flag::NOUNMAP, 8, 8));
    work.arrive(1, &ask(op::DISCARD, 0, 16, 8));
    let results = finish(&mut work, &mut submitter);
    assert_eq!(results, [(1, 0), (3, 0)]);
    work.arrive(0, &ask(op::READ, 0, 8, 8));
    finish(&mut work, &mut submitter);
    assert!(work.data(0).unwrap()[..4096].iter().all(|byte| *byte == 0));
}

/// Red if a request that makes no sense does anything but end with an error of its own.
#[test]
fn nonsense_ends_with_an_error_for_that_request_alone() {
    let q = queue("ram,size=1M,bs=4096");
    let mut submitter = q.submitter(&Client::new("kernel")).unwrap();
    let mut work = Work::new(8, MOST).unwrap();
    work.arrive(0, &ask(op::READ, 0, 0, 0));
    work.arrive(1, &ask(op::WRITE, 0, 0, u32::MAX));
    work.arrive(2, &ask(op::READ, 0, u64::MAX, 8));
    work.arrive(3, &ask(op::READ, 0, 1, 8));
    work.arrive(4, &ask(op::WRITE, 0, 2048, 8));
    work.arrive(5, &ask(4, 0, 0, 8));
    work.arrive(6, &ask(0xff, u32::MAX << 8, 0, 8));
    work.arrive(7, &ask(op::READ, u32::MAX << 8, 8, 8));
    work.arrive(8, &ask(op::READ, 0, 8, 8));
    work.arrive(7, &ask(op::WRITE, 0, 8, 8));
    let results = finish(&mut work, &mut submitter);
    let numbers: Vec<_> = results.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(results[7], (7, 4096));
    assert!(results[..7].iter().all(|(_, result)| *result < 0), "{results:?}");
    assert_eq!(results[5].1, -libc::EOPNOTSUPP);
}

/// Red if the kernel is told another error than the device's.
#[test]
fn what_the_device_cannot_do_is_told_as_such() {
    let q = queue("null,size=1M,discard=0");
    let mut submitter = q.submitter(&Client::new("kernel")).unwrap();
    let mut work = Work::new(1, MOST).unwrap();
    work.arrive(0, &ask(op::DISCARD, 0, 0, 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, -libc::EOPNOTSUPP)]);
    assert_eq!(failed(Status::Medium), -libc::ENODATA);
    assert_eq!(failed(Status::Timeout), -libc::ETIMEDOUT);
}

/// Red if what the kernel writes is in another class of the scheduler than what clients of the other servers write.
#[test]
fn changes_are_synchronous_as_those_of_other_servers_are() {
    let is_sync = |op| operation(&ask(op, 0, 0, 8)).unwrap().flags.sync;
    assert_eq!([op::WRITE, op::DISCARD, op::WRITE_ZEROES].map(is_sync), [true; 3]);
}
