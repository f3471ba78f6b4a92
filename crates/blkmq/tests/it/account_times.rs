//! As block/024 of blktests, the times of requests of less than a tick, which add up; and those of long ones.

use crate::device::{Drive, Recorder, join, open, read, virtual_queue, write};
use blkmq::{Bio, SectorRange};

/// Red if times are rounded to ms before they are summed.
#[test]
fn requests_of_less_than_a_tick_add_up() {
    let (q, _) = virtual_queue(open("null,irqmode=2,completion_nsec=500us"), |q| q);
    let mut submitter = join(&q);
    let mut one_by_one = |number, bio: fn(u64, u64) -> Bio| {
        for at in 0..number {
            submitter.submit_now(bio(at * 64, 8));
            assert!(submitter.finish()[0].status.is_ok());
        }
        let stat = q.disk_stats();
        [stat.read_ticks, stat.write_ticks, stat.discard_ticks]
    };
    assert_eq!(one_by_one(1500, read), [750, 0, 0]);
    assert_eq!(one_by_one(1800, write), [750, 900, 0]);
    let stat = q.disk_stats();
    // Without a pause between them, the device was always busy.
    assert!((1645..=1650).contains(&stat.io_ticks), "{stat}");
}

/// Red if a request that absorbs an older one counts from its own submission, for the whole queue or for a range.
#[test]
fn a_request_that_absorbs_an_older_one_counts_from_the_submission_of_that_one() {
    let device = Recorder::of_depth(1);
    let range = SectorRange { name: "all".to_owned(), first: 0, nr_sectors: 1 << 20 };
    let (q, clock) = virtual_queue(device.clone(), |q| q.scheduler("mq-deadline").ranges(vec![range]));
    let mut submitter = join(&q);
    // The first request has the tag, so the others wait in the scheduler. The last one fills the gap between them.
    for sector in [1000, 16, 0, 8] {
        submitter.submit_now(write(sector, 8));
        clock.advance(1_000_000);
    }
    device.drain(&mut [&mut submitter]);
    for stat in [q.disk_stats(), q.range_stats()[0].1] {
        assert_eq!((stat.write_ios, stat.write_merges, stat.write_ticks), (2, 2, 4 + 3), "{stat}");
    }
}

/// Red if a request that the device keeps for long does not show as busy before it ends, or if more than the time that
/// has passed is counted when it ends.
#[test]
fn a_long_request_shows_as_busy_before_it_ends() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=10s"), |q| q);
    let mut submitter = join(&q);
    submitter.submit_now(read(0, 8));
    for second in 1..=10 {
        clock.advance(1_000_000_000);
        let stat = q.disk_stats();
        assert!((second * 1000 - 2..=second * 1000).contains(&stat.io_ticks), "after {second} s: {stat}");
    }
    assert!(submitter.wait(1, None).is_ready() && submitter.reap().is_some());
    clock.advance(5_000_000_000);
    assert!((9998..=10_000).contains(&q.disk_stats().io_ticks), "{}", q.disk_stats());
}
