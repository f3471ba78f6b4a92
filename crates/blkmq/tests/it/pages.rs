//! Operations whose data is in pages of the kernel: only devices that take pages get them, and each by itself.

use std::sync::Arc;

use crate::device::{Drive, ONE_QUEUE, Recorder, join, reap, write};
use blkmq::pages::{Command, PageSource, Pages};
use blkmq::{Bio, Buffer, Buffers, Limits, Op, RejectReason, RequestQueue, Status, Submitter};

/// Pages that no driver of the kernel has.
#[derive(Debug)]
struct Nowhere;

impl PageSource for Nowhere {
    fn register(&self, _name: u32, _slot: u16) -> Command {
        Command { file: -1, op: 0, bytes: [0; 16] }
    }

    fn unregister(&self, name: u32, slot: u16) -> Command {
        self.register(name, slot)
    }
}

fn pages(bytes: u32) -> Buffers {
    Pages::new(Arc::new(Nowhere), 5, bytes).into()
}

fn queue(pages_align: u32, scheduler: &str) -> (Arc<Recorder>, Submitter) {
    let limits = Limits { capacity_sectors: 1 << 20, max_sectors: 16, pages_align, ..Limits::default() };
    let device = Recorder::new(limits, ONE_QUEUE);
    let q = RequestQueue::builder(device.clone()).scheduler(scheduler).build().expect("the device makes sense");
    (device, join(&q))
}

/// Red if a device that looks for the data in memory gets an operation that has none there: it would complete it
/// without data.
#[test]
fn a_device_that_needs_the_data_in_memory_gets_no_pages() {
    let (device, mut submitter) = queue(0, "none");
    for op in [Op::Read, Op::Write] {
        let rejected = submitter.submit(Bio::new(op, 0, 8, pages(4096))).expect_err("the device takes none");
        assert!(matches!(rejected.reason, RejectReason::Bad(Status::Unsupported)), "{:?}", rejected.reason);
        assert!(matches!(rejected.bio.buffers, Buffers::Pages(_)), "the pages come back");
    }
    assert!(device.take_seen().is_empty());
}

#[test]
fn pages_are_as_long_as_their_operation() {
    let (device, mut submitter) = queue(512, "none");
    for bio in [
        Bio::new(Op::Read, 0, 8, pages(4097)),
        Bio::new(Op::Write, 0, 8, pages(3584)),
        Bio::new(Op::Discard, 0, 8, pages(4096)),
        Bio::new(Op::Flush, 0, 0, pages(512)),
    ] {
        assert!(submitter.submit(bio).is_err());
    }
    assert!(device.take_seen().is_empty());
}

/// Red if a request has pages of two operations, or pages and memory: the driver would move the data of the first one
/// alone.
#[test]
fn an_operation_with_pages_never_merges() {
    for scheduler in blkmq::scheduler_names() {
        let (device, mut submitter) = queue(512, scheduler);
        for bio in [
            write(0, 8),
            Bio::write(8, pages(4096)),
            Bio::write(16, pages(4096)),
            write(24, 8),
            Bio::write(32, pages(4096)),
        ] {
            submitter.submit(bio).expect("there is room");
        }
        submitter.flush_plug();
        let mut seen = device.take_seen();
        while device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
            reap(&mut submitter);
            seen.extend(device.take_seen());
        }
        seen.sort_by_key(|seen| seen.sector);
        let seen: Vec<_> = seen.into_iter().map(|seen| (seen.sector, seen.segments, seen.pages)).collect();
        let here = |sector| (sector, vec![4096], None);
        let there = |sector| (sector, vec![], Some((0, 4096)));
        assert_eq!(seen, [here(0), there(8), there(16), here(24), there(32)], "{scheduler}");
    }
}

/// Red if a part of an operation gets the pages of another part, or if the pages do not come back.
#[test]
fn each_part_of_an_operation_has_its_part_of_the_pages() {
    let (device, mut submitter) = queue(4, "mq-deadline");
    submitter.submit_now(Bio::read(100, pages(40 * 512)).with_user_data(3));
    let seen: Vec<_> = device.take_seen().into_iter().map(|seen| (seen.sector, seen.pages)).collect();
    assert_eq!(seen, [(100, Some((0, 8192))), (116, Some((8192, 8192))), (132, Some((16384, 4096)))]);
    let mut done = Vec::new();
    while device.nr_held() > 0 {
        device.finish_oldest(Status::Ok);
        done.extend(reap(&mut submitter));
    }
    let [done] = <[_; 1]>::try_from(done).expect("one operation");
    assert_eq!((done.status, done.bio.user_data, done.bio.buffers.len()), (Status::Ok, 3, 40 * 512));
    assert!(matches!(done.bio.buffers, Buffers::Pages(_)));
    // The buffers of other operations are what they were.
    submitter.submit_now(Bio::read(0, Buffer::zeroed(512)));
    assert_eq!(device.take_seen()[0].pages, None);
    device.finish_oldest(Status::Ok);
    assert_eq!(reap(&mut submitter).len(), 1);
}
