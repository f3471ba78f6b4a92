use std::sync::{Arc, Mutex};

use blkmq::driver::{Batch, Driver, NextEvent, Topology, spec};
use blkmq::event::EventFd;
use blkmq::pages::Command;
use blkmq::{Limits, RequestQueue, Status};
use blkmq_engine::{Bounds, Engine, Export, FrontEnd, harness};

use super::*;

const MOST: u32 = 64 << 10;

/// An engine with one export, of this device.
fn engine(device: Arc<dyn Driver>) -> Arc<Engine> {
    let q = RequestQueue::builder(device).build().unwrap();
    harness::engine(Export::new("", q), 1)
}

/// The requests of a queue of this depth, as a client of the engine.
fn work_of(
    engine: &Arc<Engine>,
    depth: u16,
    pages: Option<Arc<dyn PageSource>>,
    is_read_only: bool,
) -> (Work, Submitter) {
    let bell = Arc::new(EventFd::new().unwrap());
    let entry = engine.clients.enter(FrontEnd::Ublk, "kernel".into(), vec![bell]);
    let bounds = Bounds { requests: depth, ..engine.bounds };
    let (submitter, session) = Session::of_own(engine, 0, (&entry, 0), bounds).unwrap();
    (Work::new(session, (depth, MOST), pages, is_read_only).unwrap(), submitter)
}

fn work(device: &str, depth: u16) -> (Work, Submitter) {
    work_of(&engine(spec::open(device).unwrap()), depth, None, false)
}

fn asks(op: u8, flags: u32, start_sector: u64, nr_sectors: u32) -> Descriptor {
    Descriptor { op_flags: u32::from(op) | flags, nr_sectors, start_sector }
}

/// Has all requests done that have arrived. Returns the results by tag.
fn finish(work: &mut Work, submitter: &mut Submitter) -> Vec<(u16, i32)> {
    let mut results = Vec::new();
    while !work.is_idle() {
        work.submit(submitter);
        work.drive(submitter);
        results.extend(std::iter::from_fn(|| work.next_over()));
    }
    results.sort_unstable();
    results
}

/// Red if data goes elsewhere than where the descriptor says, or a result is not what the kernel expects.
#[test]
fn what_is_written_by_one_tag_is_read_by_another() {
    let (mut work, mut submitter) = work("ram,size=1M", 4);
    let address = work.address(1);
    work.data(1).unwrap()[..8192].fill(7);
    work.arrive(1, &asks(op::WRITE, flag::FUA | flag::META, 8, 16));
    assert_eq!(finish(&mut work, &mut submitter), [(1, 8192)]);
    assert_eq!(work.address(1), address, "the kernel knows the buffer's address for good");
    work.data(0).unwrap().fill(9);
    work.arrive(0, &asks(op::READ, flag::SWAP, 0, 32));
    work.arrive(2, &asks(op::FLUSH, 0, 0, 0));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 16384), (2, 0)]);
    let read = work.data(0).unwrap();
    assert!(read[..4096].iter().chain(&read[12288..16384]).all(|byte| *byte == 0));
    assert!(read[4096..12288].iter().all(|byte| *byte == 7));
    assert!(read[16384..].iter().all(|byte| *byte == 9), "nothing behind the request is touched");
    work.arrive(3, &asks(op::WRITE_ZEROES, flag::NOUNMAP, 8, 8));
    work.arrive(1, &asks(op::DISCARD, 0, 16, 8));
    let results = finish(&mut work, &mut submitter);
    assert_eq!(results, [(1, 0), (3, 0)]);
    work.arrive(0, &asks(op::READ, 0, 8, 8));
    finish(&mut work, &mut submitter);
    assert!(work.data(0).unwrap()[..4096].iter().all(|byte| *byte == 0));
}

/// Red if a request that makes no sense does anything but end with an error of its own.
#[test]
fn nonsense_ends_with_an_error_for_that_request_alone() {
    let (mut work, mut submitter) = work("ram,size=1M,bs=4096", 8);
    work.arrive(0, &asks(op::READ, 0, 0, 0));
    work.arrive(1, &asks(op::WRITE, 0, 0, u32::MAX));
    work.arrive(2, &asks(op::READ, 0, u64::MAX, 8));
    work.arrive(3, &asks(op::READ, 0, 1, 8));
    work.arrive(4, &asks(op::WRITE, 0, 2048, 8));
    work.arrive(5, &asks(4, 0, 0, 8));
    work.arrive(6, &asks(0xff, u32::MAX << 8, 0, 8));
    work.arrive(7, &asks(op::READ, u32::MAX << 8, 8, 8));
    work.arrive(8, &asks(op::READ, 0, 8, 8));
    work.arrive(7, &asks(op::WRITE, 0, 8, 8));
    let results = finish(&mut work, &mut submitter);
    let numbers: Vec<_> = results.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(results[7], (7, 4096));
    assert!(results[..7].iter().all(|(_, result)| *result < 0), "{results:?}");
    assert_eq!(results[5].1, -libc::EOPNOTSUPP);
}

/// Red before the server refused changes itself: the kernel passes on the writes of a device of the device mapper that
/// lies on a read-only block device.
#[test]
fn nothing_is_changed_through_a_read_only_block_device() {
    let engine = engine(spec::open("ram,size=1M").unwrap());
    let (mut work, mut submitter) = work_of(&engine, 5, None, true);
    for (tag, op) in (0..).zip([op::WRITE, op::WRITE_ZEROES, op::DISCARD, op::READ, op::FLUSH]) {
        work.data(tag).unwrap().fill(7);
        work.arrive(tag, &asks(op, 0, 0, if op == op::FLUSH { 0 } else { 8 }));
    }
    let no = -libc::EPERM;
    assert_eq!(finish(&mut work, &mut submitter), [(0, no), (1, no), (2, no), (3, 4096), (4, 0)]);
    assert!(work.data(3).unwrap()[..4096].iter().all(|byte| *byte == 0), "nothing was written");
    assert!(work.data(0).unwrap().iter().all(|byte| *byte == 7), "the buffer is there for the next request");
}

/// Red before a read from a device that keeps no data brought what the request before it had in the tag's buffer.
#[test]
fn a_device_that_keeps_nothing_reads_as_zeroes() {
    let (mut work, mut submitter) = work("null,size=1M", 1);
    work.data(0).unwrap().fill(7);
    work.arrive(0, &asks(op::WRITE, 0, 0, 16));
    work.arrive(0, &asks(op::READ, 0, 0, 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 8192)]);
    work.arrive(0, &asks(op::READ, 0, 0, 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 4096)]);
    let data = work.data(0).unwrap();
    assert!(data[..4096].iter().all(|byte| *byte == 0) && data[4096..].iter().all(|byte| *byte == 7));
}

/// Red if the kernel is told another error than the device's.
#[test]
fn what_the_device_cannot_do_is_told_as_such() {
    let (mut work, mut submitter) = work("null,size=1M,discard=0", 1);
    work.arrive(0, &asks(op::DISCARD, 0, 0, 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, -libc::EOPNOTSUPP)]);
    let told = |status| failed(&Failure::of_status(status).unwrap());
    assert_eq!([Status::Medium, Status::Timeout].map(told), [-libc::ENODATA, -libc::ETIMEDOUT]);
}

/// Red if a flag of the kernel is lost, or a flag changes what is done. Changes are synchronous by themselves, as those
/// of other servers.
#[test]
fn flags_say_what_they_say() {
    let found = |op, flags| super::ask(&asks(op, flags, 0, 8)).unwrap();
    let [none, all] = [0, flag::FUA | flag::META | flag::NOUNMAP | flag::SWAP];
    let hints = Hints { meta: true, sync: true };
    assert_eq!(found(op::READ, none), (Ask::Read, Hints::default()));
    assert_eq!(found(op::READ, all), (Ask::Read, hints));
    assert_eq!(found(op::WRITE, flag::FUA), (Ask::Write { fua: true }, Hints::default()));
    assert_eq!(found(op::DISCARD, all), (Ask::Discard { fua: false }, hints));
    assert_eq!(found(op::FLUSH, all), (Ask::Flush, Hints::default()));
    let zeroes = |fua, no_hole| Ask::WriteZeroes { fua, no_hole, fast: true };
    assert_eq!([none, all].map(|flags| found(op::WRITE_ZEROES, flags).0), [zeroes(false, false), zeroes(true, true)]);
}

/// Red if a request of the block device is not counted, or not as one of its own.
#[test]
fn the_device_is_a_client_with_its_counts() {
    let engine = engine(spec::open("ram,size=1M").unwrap());
    let (mut work, mut submitter) = work_of(&engine, 2, None, false);
    work.arrive(0, &asks(op::READ, 0, 0, 8));
    work.arrive(1, &asks(op::READ, 0, 0, 0));
    assert_eq!(engine.clients.list()[0].unanswered, 2);
    finish(&mut work, &mut submitter);
    let info = engine.clients.list().remove(0);
    assert_eq!((info.requests, info.unanswered, info.bytes, info.memory), (2, 0, 4096, 0));
    assert_eq!((info.errors.of(Cause::Invalid), info.errors.count()), (1, 1));
    assert_eq!(info.client.as_deref(), Some("kernel@default"));
}

/// A device that notes the pages of each request, with sector, name, first byte and length, and fails those of a
/// sector.
#[derive(Debug, Default)]
struct Taker(Mutex<Vec<(u64, u32, usize, usize)>>);

const FAILS: u64 = 64;

impl Driver for Taker {
    fn name(&self) -> &'static str {
        "taker"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 20, max_sectors: 16, pages_align: 4, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 4)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(mut rq) = batch.next_request() {
            assert_eq!(rq.segments().count(), 0, "the data is not in memory");
            let pages = rq.pages().map(|pages| (rq.sector(), pages.register(7).op, pages.offset(), pages.len()));
            self.0.lock().unwrap().extend(pages);
            let status = if rq.sector() == FAILS { Status::NoSpace } else { Status::Ok };
            batch.finish(rq, status);
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        NextEvent::Never
    }
}

/// Tells the name of the pages as the number of a command.
#[derive(Debug)]
struct Names;

impl PageSource for Names {
    fn register(&self, name: u32, slot: u16) -> Command {
        Command { file: -1, op: name, bytes: [slot as u8; 16] }
    }

    fn unregister(&self, name: u32, slot: u16) -> Command {
        self.register(name, slot)
    }
}

/// Red if a request has the pages of another tag or is not all of its own, or if a tag has none for its next request,
/// also behind a failure and behind a request of several operations.
#[test]
fn with_zero_copy_each_request_has_the_pages_of_its_tag() {
    let taker = Arc::new(Taker::default());
    let (mut work, mut submitter) = work_of(&engine(taker.clone()), 2, Some(Arc::new(Names)), false);
    assert_eq!((work.address(0), work.address(1), work.spare(), work.data(0)), (0, 0, 0, None));
    for (start, sectors) in [(0, 8), (8, 24), (FAILS, 8), (128, 128), (0, 8)] {
        work.arrive(0, &asks(op::WRITE, 0, start, sectors));
        work.arrive(1, &asks(op::READ, 0, start + 1024, sectors));
        let done = finish(&mut work, &mut submitter);
        let result = sectors as i32 * 512;
        assert_eq!(done, [(0, if start == FAILS { -libc::ENOSPC } else { result }), (1, result)]);
        let mut seen = std::mem::take(&mut *taker.0.lock().unwrap());
        seen.sort_unstable();
        let parts = |(name, start): (u32, u64)| {
            let first = |at: u32| {
                (start + u64::from(at), name, at as usize * 512, sectors.min(16).min(sectors - at) as usize * 512)
            };
            (0..sectors).step_by(16).map(first).collect::<Vec<_>>()
        };
        assert_eq!(seen, [(0, start), (1, start + 1024)].map(parts).concat());
    }
    // Other operations leave the pages where they are, and so does a request that makes no sense.
    work.arrive(0, &asks(op::FLUSH, 0, 0, 0));
    work.arrive(1, &asks(op::READ, 0, 0, MOST / 512 + 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 0), (1, -libc::EINVAL)]);
    work.arrive(0, &asks(op::READ, 0, 0, 8));
    work.arrive(1, &asks(op::READ, 0, 8, 8));
    assert_eq!(finish(&mut work, &mut submitter), [(0, 4096), (1, 4096)]);
}
