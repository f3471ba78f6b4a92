//! Many threads whose requests find no room, under every locking.

use crate::common::assert_balanced;
use crate::common::random::{Random, operations, seed};
use crate::common::ways::every;
use crate::room::{assert_in_order, operation, queue, submitter};
use blkmq::driver::spec::open;
use blkmq::{RequestQueue, Status};

/// Submits `each` operations of submitter `by`, a few at a time.
fn submits(q: &RequestQueue, by: u64, each: u64, mut random: Random) {
    let mut submitter = submitter(q);
    let mut number = 0;
    while number < each || submitter.nr_outstanding() > 0 {
        for _ in 0..random.below(6) {
            if number < each && submitter.nr_outstanding() < 32 {
                submitter.submit(operation(by, number)).expect("there are slots");
                number += 1;
            }
        }
        if random.below(4) == 0 {
            submitter.wait(1, None);
        } else {
            submitter.poll();
        }
        while let Some(done) = submitter.reap() {
            assert_eq!(done.status, Status::Ok);
        }
    }
}

/// Red (hangs) if a request without room is forgotten while other threads take turns at the scheduler; red if it comes
/// in twice, or behind a later one of its submitter and kind.
#[test]
fn what_finds_no_room_comes_in_once_and_in_order() {
    const THREADS: u64 = 4;
    let random = Random::new(seed());
    for way in every() {
        for (tags, nr_requests) in [(1, 1), (2, 3)] {
            let device = format!("null,size=64G,irqmode=1,poll_queues=0,hw_queue_depth={tags}");
            let device = open(&device).expect("the spec is good");
            let (q, log) = queue(way, device, nr_requests);
            let each = operations(1_000);
            std::thread::scope(|scope| {
                for by in 0..THREADS {
                    let random = random.fork(by);
                    let q = &q;
                    scope.spawn(move || submits(q, by, each, random));
                }
            });
            assert_in_order(&log, THREADS, each, &format!("{way}, {nr_requests} requests"));
            assert_balanced(&q);
        }
    }
}
