//! As block/018 of blktests, the times of reads, writes and discards on a device of known latency; and block/024,
//! requests of less than a tick that add up.

use crate::device::front::claiming;
use crate::device::{Drive, ONE_QUEUE, Recorder, join, open, read, virtual_queue, write};
use blkmq::{Accounting, Bio, DiskStats, Limits, RequestQueue, Status, Submitter, Time};

fn queue(completion: &str, scheduler: &str, accounting: Accounting) -> (RequestQueue, Submitter) {
    let inner = open(&format!("null,irqmode=2,completion_nsec={completion}"));
    // The device has no data to discard, but a discard can take time.
    let limits = Limits { max_discard_sectors: 1 << 20, max_discard_segments: 1, ..inner.limits() };
    let (q, _) = virtual_queue(claiming(limits, inner), |q| q.scheduler(scheduler).accounting(accounting));
    let submitter = join(&q);
    (q, submitter)
}

fn one_by_one(submitter: &mut Submitter, bios: impl Iterator<Item = Bio>) {
    for bio in bios {
        submitter.submit(bio).expect("there is a slot");
        assert!(submitter.wait(1, None).is_ready());
        assert!(submitter.reap().expect("the operation is over").status.is_ok());
    }
}

/// Reads, writes and discards, in ms.
const fn ticks(stat: &DiskStats) -> [u64; 3] {
    [stat.read_ticks, stat.write_ticks, stat.discard_ticks]
}

#[test]
fn times_are_the_latencies_of_the_device() {
    for scheduler in blkmq::scheduler_names() {
        for accounting in [Accounting::PerThread, Accounting::Shared] {
            let (q, mut submitter) = queue("1s", scheduler, accounting);
            assert_eq!(ticks(&q.disk_stats()), [0, 0, 0]);
            one_by_one(&mut submitter, [read(0, 8)].into_iter());
            assert_eq!(ticks(&q.disk_stats()), [1000, 0, 0]);
            one_by_one(&mut submitter, [write(0, 8)].into_iter());
            assert_eq!(ticks(&q.disk_stats()), [1000, 1000, 0]);
            one_by_one(&mut submitter, [Bio::discard(0, 8), Bio::discard(64, 8)].into_iter());
            assert_eq!(ticks(&q.disk_stats()), [1000, 1000, 2000]);
            // Two requests at a time each take as long as one.
            submitter.submit(read(0, 8)).expect("there is a slot");
            submitter.submit(read(100, 8)).expect("there is a slot");
            submitter.finish();
            let stat = q.disk_stats();
            assert_eq!(ticks(&stat), [3000, 1000, 2000]);
            assert_eq!(stat.time_in_queue, 6000);
            assert_eq!([stat.read_ios, stat.write_ios, stat.discard_ios], [3, 1, 2]);
            assert_eq!([stat.read_sectors, stat.write_sectors, stat.discard_sectors], [24, 8, 16]);
            // The device was busy for five seconds, seen through ticks of 2^20 ns.
            assert!((4990..=5000).contains(&stat.io_ticks), "{stat}");
        }
    }
}

/// Red if times are rounded to ms before they are summed.
#[test]
fn requests_of_less_than_a_tick_add_up() {
    let (q, mut submitter) = queue("500us", "none", Accounting::PerThread);
    one_by_one(&mut submitter, (0..1500).map(|at| read(at * 64, 8)));
    assert_eq!(ticks(&q.disk_stats()), [750, 0, 0]);
    one_by_one(&mut submitter, (0..1800).map(|at| write(at * 64, 8)));
    assert_eq!(ticks(&q.disk_stats()), [750, 900, 0]);
    let stat = q.disk_stats();
    // Without a pause between them, the device was always busy.
    assert!((1645..=1650).contains(&stat.io_ticks), "{stat}");
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

/// Red if the times are those of the part that was handed over last: parts that this thread completed itself come
/// first.
#[test]
fn an_operation_that_was_split_is_over_with_its_last_part() {
    let limits = Limits { max_sectors: 8, ..open("null").limits() };
    let device = Recorder::new(limits, ONE_QUEUE);
    let (q, clock) = virtual_queue(device.clone(), |q| q);
    let (mut submitter, mut other) = (join(&q), join(&q));
    submitter.submit_now(write(0, 16));
    assert_eq!(device.nr_held(), 2);
    for (time, poller) in [(100, &mut other), (200, &mut submitter)] {
        clock.advance_to(Time(time));
        device.finish_oldest(Status::Ok);
        poller.poll();
    }
    let over = submitter.reap().expect("both parts are over");
    assert_eq!((over.submitted, over.issued, over.completed), (Time(0), Time(0), Time(200)));
}
