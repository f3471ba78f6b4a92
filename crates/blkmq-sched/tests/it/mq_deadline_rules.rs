//! What mq-deadline shows, and sums that no embedder should bring. `mq_deadline_model` holds its choices against a
//! naive model.

use crate::bench::{Bench, ROOMY, best_effort, idle, read, real_time};
use blkmq_sched::{Feedback, InsertAt, Tally};

#[test]
fn sums_that_are_too_large_strand_nothing() {
    let mut bench = Bench::new(ROOMY);
    bench.scheduler.observe(Feedback::Sums(&Tally { completed: [u64::MAX; 3], ..Tally::default() }));
    let ids = [real_time(0), best_effort(8), idle(16)].map(|info| bench.insert(info));
    assert_eq!(bench.dispatch_all(), ids);
}

#[test]
fn every_list_and_counter_is_shown() {
    let mut bench = Bench::new(ROOMY);
    bench.insert(read(0));
    assert_eq!(bench.dispatch_all(), [0]);
    bench.insert(read(8));
    bench.insert(idle(16));
    bench.insert_at(real_time(24), InsertAt::Head);
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
