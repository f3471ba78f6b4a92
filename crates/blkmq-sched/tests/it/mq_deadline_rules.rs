//! Rules by which mq-deadline chooses, each by an example. `mq_deadline_model` holds them, and what they do together,
//! against a naive model.

use crate::bench::{Bench, MS, NEVER, best_effort, idle, read, real_time, write};
use blkmq_sched::{Feedback, Info, InsertAt, Tally};

/// A rule, the knobs of its example, what has been dispatched before, what waits then, and the order in which that is
/// dispatched, by its place among what waits.
type Example<'a> = (&'a str, &'a [(&'a str, i64)], &'a [Info], &'a [Info], &'a [u64]);

#[test]
fn each_example_is_dispatched_by_its_rule() {
    let (one_by_one, batches) =
        (&[("fifo_batch", 1), ("writes_starved", 0)], &[("fifo_batch", 2), ("writes_starved", 2)]);
    let reads: [Info; 7] = std::array::from_fn(|number| read(8 * (number as u64 + 1)));
    let examples: [Example<'_>; 10] = [
        ("sectors, not arrivals, order a batch", &[], &[], &[read(24), read(8), read(16)], &[1, 2, 0]),
        ("arrivals order equal sectors", &[], &[], &[read(8), read(8), read(8)], &[0, 1, 2]),
        // Linux keeps the beginning of the last request, so requests that overlap it are still next in order.
        (
            "the order goes on from the beginning of the last request",
            &[],
            &[read(100)],
            &[read(99), read(108), read(104), read(100)],
            &[3, 2, 1, 0],
        ),
        ("each direction has its own place", one_by_one, &[read(100), write(500)], &[read(8), read(200)], &[1, 0]),
        ("behind the last sector the oldest is next", &[], &[read(1000)], &[read(64), read(8)], &[0, 1]),
        ("reads go before writes", &[], &[write(8)], &[write(0), read(0)], &[1, 0]),
        (
            "a batch ends after fifo_batch requests",
            &[("fifo_batch", 3), ("writes_starved", 0)],
            &[read(0)],
            &[reads[0], reads[1], reads[2], reads[3], write(0)],
            &[0, 1, 4, 2, 3],
        ),
        (
            "a fifo_batch of 0 makes each request a batch",
            &[("fifo_batch", 0), ("writes_starved", 1)],
            &[],
            &[read(0), read(8), read(16), write(0), write(8)],
            &[0, 3, 1, 4, 2],
        ),
        (
            "writes pass after writes_starved batches of reads",
            batches,
            &[read(0)],
            &[reads.as_slice(), &[write(0), write(8), write(16)]].concat(),
            &[0, 1, 2, 3, 4, 7, 8, 5, 6, 9],
        ),
        (
            "a negative writes_starved lets writes always pass",
            &[("fifo_batch", 1), ("writes_starved", -1)],
            &[],
            &[read(0), read(8), write(0), write(8)],
            &[2, 3, 0, 1],
        ),
    ];
    for (rule, knobs, dispatched, waiting, order) in examples {
        let mut bench = Bench::new(knobs);
        for info in dispatched {
            let id = bench.insert(*info, 0);
            assert_eq!(bench.dispatch(0), id, "{rule}");
        }
        waiting.iter().for_each(|info| _ = bench.insert(*info, 0));
        let expected: Vec<u64> = order.iter().map(|place| dispatched.len() as u64 + place).collect();
        assert_eq!(bench.dispatch_all(0), expected, "{rule}");
    }
}

#[test]
fn a_request_expires_at_its_deadline_and_not_before() {
    for (now, oldest_first) in [(10 * MS - 1, false), (10 * MS, true)] {
        let mut bench = Bench::new(&[("fifo_batch", 1), ("read_expire", 10)]);
        bench.begin_reads();
        let oldest = bench.insert(read(900), 0);
        let next = bench.insert(read(8), 0);
        assert_eq!(bench.dispatch(now), if oldest_first { oldest } else { next }, "at {now} ns");
    }
}

#[test]
fn a_lower_class_waits_while_a_higher_one_is_inside_the_driver() {
    let mut bench = Bench::new(&[]);
    let [high, middle, low] = [real_time(0), best_effort(8), idle(16)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), [high]);
    bench.complete(0);
    assert_eq!(bench.dispatch(0), NEVER, "a completion counts once it is folded in");
    bench.fold();
    assert_eq!(bench.dispatch_all(0), [middle]);
    bench.complete(1);
    bench.fold();
    assert_eq!(bench.dispatch_all(0), [low]);
}

#[test]
fn sums_that_are_too_large_strand_nothing() {
    let mut bench = Bench::new(&[]);
    bench.scheduler.observe(Feedback::Sums(&Tally { completed: [u64::MAX; 3], ..Tally::default() }));
    let ids = [real_time(0), best_effort(8), idle(16)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), ids);
}

#[test]
fn a_request_that_waited_prio_aging_expire_passes_higher_classes() {
    for (now, passes) in [(150 * MS - 1, false), (150 * MS, true)] {
        let mut bench = Bench::new(&[("prio_aging_expire", 100)]);
        let low = bench.insert(idle(0), 50 * MS);
        let high = bench.insert(real_time(0), 50 * MS);
        assert_eq!(bench.dispatch(now), if passes { low } else { high }, "at {now} ns");
    }
}

#[test]
fn every_list_and_counter_is_shown() {
    let mut bench = Bench::new(&[]);
    bench.begin_reads();
    bench.insert(read(8), 0);
    bench.insert(idle(16), 0);
    bench.insert_at(real_time(24), InsertAt::Head, 0);
    let lines = [
        "read1_fifo_list:\n  rq 1 Read sector 8 + 8 fifo_time 500000000 ns\n",
        "read2_next_rq:\n  rq 2 Read sector 16 + 8",
        "batching: 1\nstarved: 0\nlast_dir: read\n",
        "dispatch:\n  rq 3 Read sector 24 + 8 fifo_time 0 ns\n",
        "owned_by_driver: 0 1 0\nqueued: 1 2 1\n",
        "level1: inserted 2 merged 0 dispatched 1 completed 0\n",
    ];
    for line in lines {
        assert!(bench.shows(line), "{line} is not in\n{}", bench.show());
    }
}
