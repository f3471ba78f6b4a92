//! Busy time under loads that are mostly idle. Published failures of Linux before 6.10: 10 % busy was shown as 80 %,
//! and short requests with 4 ms of pause between them as 90 %.

use crate::device::{Drive, join, open, read, virtual_queue};
use blkmq::{Accounting, Clock, RequestQueue, SectorRange, VirtualClock};

const US: u64 = 1000;
const SECOND: u64 = 1_000_000_000;

/// Busy time as a share of the time that passed, in tenths of a percent, for requests of `busy` ns each `period` ns.
fn share(busy: u64, period: u64, accounting: Accounting) -> u64 {
    let (q, clock) =
        virtual_queue(open(&format!("null,irqmode=2,completion_nsec={busy}")), |q| q.accounting(accounting));
    let mut submitter = join(&q);
    let mut next = 0;
    while clock.now().0 < 20 * SECOND {
        clock.advance_to(blkmq::Time(next));
        submitter.submit(read(0, 8)).expect("there is a slot");
        assert!(submitter.wait(1, None).is_ready() && submitter.reap().is_some());
        next += period;
    }
    clock.advance_to(blkmq::Time(next));
    let stat = q.disk_stats();
    assert!(stat.io_ticks <= clock.now().0 / 1_000_000, "more than all the time: {stat}");
    stat.io_ticks * 1_000_000 * 1000 / clock.now().0
}

/// Red if a start counts the time since the last end as busy. Linux 5.0 to 6.9 counted at least a tick of it.
#[test]
fn an_idle_disk_is_shown_idle() {
    for (busy, period, expected) in [
        // 10 % busy, with periods around the tick and far from it.
        (100 * US, 1000 * US, 100),
        (1000 * US, 10_000 * US, 100),
        (10_000 * US, 100_000 * US, 100),
        (110 * US, 1100 * US, 100),
        // 4 ms of pause.
        (50 * US, 4050 * US, 12),
        (400 * US, 4400 * US, 91),
        // Half of the time, and nearly all of it.
        (500 * US, 1000 * US, 500),
        (950 * US, 1000 * US, 950),
    ] {
        for accounting in [Accounting::PerThread, Accounting::Shared] {
            let got = share(busy, period, accounting);
            assert!(got.abs_diff(expected) <= 15, "{busy} of {period} ns: {got} and not {expected} thousandths");
        }
    }
}

/// Red if time is counted twice when requests of two submitters overlap, or if a gap between requests is counted.
#[test]
fn overlapping_requests_count_once() {
    let (q, clock) = virtual_queue(open("null,irqmode=2,completion_nsec=30ms"), |q| q);
    let mut submitters = [0; 2].map(|_| join(&q));
    // The requests begin at 0 and 20, end at 30 and 50, and begin again at 100: half of the time is busy.
    for round in 0..100 {
        for (submitter, at) in submitters.iter_mut().zip([0, 20]) {
            clock.advance_to(blkmq::Time((round * 100 + at) * 1_000_000));
            submitter.submit_now(read(at * 100, 8));
        }
        for submitter in &mut submitters {
            while submitter.wait(1, None).is_ready() {
                assert!(submitter.reap().is_some());
            }
        }
    }
    clock.advance_to(blkmq::Time(100 * 100 * 1_000_000));
    let stat = q.disk_stats();
    assert!((4900..=5100).contains(&stat.io_ticks), "{stat}");
    assert_eq!(stat.read_ticks, 6000, "{stat}");
}

/// Red if a gauge begins with the tick that is under way: a queue or range that comes in the middle of a tick was not
/// busy in the part of the tick before that.
#[test]
fn what_passed_before_a_queue_or_a_range_was_there_does_not_count() {
    let tick = 1 << 20;
    let clock = VirtualClock::new();
    clock.advance_to(blkmq::Time(tick - 1000));
    let range = |name: &str| SectorRange { name: name.to_owned(), first: 0, nr_sectors: 1000 };
    let q = RequestQueue::builder(open("null,irqmode=2,completion_nsec=2000"))
        .clock(Clock::Virtual(clock.clone()))
        .ranges(vec![range("first")])
        .build()
        .expect("the queue is good");
    let mut submitter = join(&q);
    let mut busy = || {
        submitter.submit(read(0, 8)).expect("there is a slot");
        assert!(submitter.wait(1, None).is_ready() && submitter.reap().is_some());
        (q.disk_stats().io_ticks, q.range_stats()[0].1.io_ticks)
    };
    assert_eq!(busy(), (0, 0), "{:?} have passed", clock.now());
    clock.advance_to(blkmq::Time(5 * tick - 1000));
    q.change_ranges(vec![range("second")]).expect("it is good").wait().expect("nothing is in flight");
    assert_eq!(busy(), (1, 0), "the whole queue had a request across the edge of a tick");
}
