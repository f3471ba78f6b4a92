//! Named ranges of sectors with statistics of their own.

use std::sync::Arc;

use crate::device::{ONE_QUEUE, Recorder, read, reap, write};
use blkmq::driver::spec;
use blkmq::{Accounting, Bio, Client, DiskStats, Limits, RequestQueue, SectorRange, Status, Submitter};

fn range(name: &str, first: u64, nr_sectors: u64) -> SectorRange {
    SectorRange { name: name.to_owned(), first, nr_sectors }
}

fn two() -> Vec<SectorRange> {
    vec![range("p2", 1000, 500), range("p1", 0, 1000)]
}

fn rig(accounting: Accounting, ranges: Vec<SectorRange>) -> (Arc<Recorder>, RequestQueue, Submitter) {
    let limits = Limits { capacity_sectors: 1 << 20, write_cache: true, ..Limits::default() };
    let device = Recorder::new(limits, ONE_QUEUE);
    let q = RequestQueue::builder(device.clone()).accounting(accounting).ranges(ranges).build();
    let q = q.expect("the queue is good");
    let submitter = q.submitter(&Client::new("test")).expect("there is a place");
    (device, q, submitter)
}

fn pass(device: &Recorder, submitter: &mut Submitter, bio: Bio) {
    submitter.submit(bio).expect("there is a slot");
    reap(submitter);
    while device.nr_held() > 0 {
        device.finish_oldest(Status::Ok);
        reap(submitter);
    }
}

fn stat_of(q: &RequestQueue, name: &str) -> DiskStats {
    let known = q.range_stats();
    known.iter().find(|(range, _)| range.name == name).map(|(_, stat)| *stat).expect("the range is there")
}

#[test]
fn a_request_counts_in_its_range_and_in_the_whole() {
    for accounting in [Accounting::PerThread, Accounting::Shared] {
        let (device, q, mut submitter) = rig(accounting, two());
        assert_eq!(q.range_stats().iter().map(|(range, _)| range.name.clone()).collect::<Vec<_>>(), ["p1", "p2"]);
        // In p1, in p2, across the border, in neither, and without sectors.
        for bio in [read(0, 8), write(1499, 1), read(996, 8), read(1500, 8), Bio::flush()] {
            pass(&device, &mut submitter, bio);
        }
        let (p1, p2, whole) = (stat_of(&q, "p1"), stat_of(&q, "p2"), q.disk_stats());
        assert_eq!((p1.read_ios, p1.read_sectors, p1.write_ios, p1.flush_ios), (2, 16, 0, 0), "{p1}");
        assert_eq!((p2.read_ios, p2.write_ios, p2.write_sectors, p2.flush_ios), (0, 1, 1, 0), "{p2}");
        assert_eq!((whole.read_ios, whole.read_sectors, whole.write_ios, whole.flush_ios), (3, 24, 2, 1), "{whole}");
        assert_eq!([p1.in_flight, p2.in_flight, whole.in_flight], [0, 0, 0]);
    }
}

/// Red if 33 requests of a range that the device has are not in flight both in the range and in the whole queue. Linux
/// before 5.10 showed none in the whole queue.
#[test]
fn what_is_in_flight_in_a_range_is_in_flight_in_the_whole() {
    for accounting in [Accounting::PerThread, Accounting::Shared] {
        let (device, q, mut submitter) = rig(accounting, two());
        for at in 0..33 {
            submitter.submit(read(1000 + at * 10, 8)).expect("there is a slot");
        }
        reap(&mut submitter);
        assert_eq!([q.disk_stats().in_flight, stat_of(&q, "p2").in_flight, stat_of(&q, "p1").in_flight], [33, 33, 0]);
        assert_eq!(q.inflight(), [33, 0]);
        while device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
        }
        assert_eq!(reap(&mut submitter).len(), 33);
        assert_eq!([q.disk_stats().in_flight, stat_of(&q, "p2").in_flight], [0, 0]);
    }
}

/// Red if the end of a request looks its range up again: an operation that merges at the front must not move the
/// request to another range.
#[test]
fn a_request_that_grows_over_the_border_stays_in_its_range() {
    for accounting in [Accounting::PerThread, Accounting::Shared] {
        let limits = Limits { capacity_sectors: 1 << 20, ..Limits::default() };
        let device = Recorder::new(limits, blkmq::driver::Topology { depth: 1, ..ONE_QUEUE });
        let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline").accounting(accounting).ranges(two());
        let q = q.build().expect("the queue is good");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        for bio in [write(50_000, 8), write(1000, 8), write(992, 8)] {
            submitter.submit(bio).expect("there is a slot");
            submitter.flush_plug();
        }
        assert_eq!([stat_of(&q, "p1").in_flight, stat_of(&q, "p2").in_flight, q.disk_stats().in_flight], [0, 1, 2]);
        while device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
            reap(&mut submitter);
        }
        let (p1, p2) = (stat_of(&q, "p1"), stat_of(&q, "p2"));
        assert_eq!(p1, DiskStats { io_ticks: p1.io_ticks, ..DiskStats::default() });
        assert_eq!((p2.write_ios, p2.write_merges, p2.write_sectors, p2.in_flight), (1, 1, 16, 0), "{p2}");
    }
}

#[test]
fn ranges_change_under_load_and_keep_the_sums_of_their_names() {
    let (device, q, mut submitter) = rig(Accounting::PerThread, Vec::new());
    assert_eq!(q.range_stats(), []);
    pass(&device, &mut submitter, read(0, 8));
    let set = |submitter: &mut Submitter, ranges: Vec<SectorRange>| {
        // One request is in flight when the change begins, and the change waits for it.
        submitter.submit(read(0, 8)).expect("there is a slot");
        reap(submitter);
        let mut change = q.change_ranges(ranges).expect("the ranges are good");
        assert!(change.poll().is_none());
        device.finish_oldest(Status::Ok);
        reap(submitter);
        change.poll().expect("the queue has drained").expect("the ranges can be set");
    };
    set(&mut submitter, two());
    pass(&device, &mut submitter, read(0, 8));
    assert_eq!(stat_of(&q, "p1").read_ios, 1, "what came before the range was there does not count");
    // The first range gets another place and goes on counting. The second one has a new name.
    set(&mut submitter, vec![range("p1", 100, 8), range("p3", 1000, 500)]);
    pass(&device, &mut submitter, read(100, 8));
    pass(&device, &mut submitter, read(1000, 8));
    assert_eq!([stat_of(&q, "p1").read_ios, stat_of(&q, "p3").read_ios], [3, 1]);
    // A range that goes and comes again begins at zero.
    set(&mut submitter, vec![range("p3", 1000, 500)]);
    set(&mut submitter, two());
    assert_eq!(q.range_stats().iter().map(|(_, stat)| stat.read_ios).collect::<Vec<_>>(), [0, 0]);
    set(&mut submitter, Vec::new());
    assert_eq!(q.range_stats(), []);
    assert_eq!(q.disk_stats().read_ios, 9);
    assert_eq!(q.disk_stats().in_flight, 0);
}

#[test]
fn bad_ranges_are_refused_in_and_out() {
    let driver = || spec::open("null,size=1M").expect("the spec is good");
    let behind = RequestQueue::builder(driver()).ranges(vec![range("p1", 2000, 49)]).build();
    let error = behind.expect_err("the range is too long").to_string();
    assert_eq!(error, "range 'p1': 2000+49 ends behind the device's 2048 sectors");
    let q = RequestQueue::builder(driver()).ranges(vec![range("p1", 0, 2048)]).build().expect("the range fits");
    let overlap = q.change_ranges(vec![range("a", 0, 10), range("b", 9, 1)]);
    assert_eq!(overlap.err().map(|error| error.to_string()), Some("range 'b' overlaps range 'a'".to_owned()));
    assert_eq!(q.range_stats().len(), 1, "what was there stays");
}
