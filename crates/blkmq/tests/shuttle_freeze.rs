//! A freeze of a whole queue, in random interleavings: `RUSTFLAGS="--cfg shuttle"`.
#![cfg(shuttle)]

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, RequestQueue};
use blkmq_sync::{Arc, thread};

const RUNS: usize = 3_000;

fn submit_and_poll(q: &Arc<RequestQueue>, first: u64) {
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    submitter.submit(Bio::write(first, Buffer::zeroed(512))).unwrap();
    while submitter.nr_outstanding() > 0 {
        submitter.poll();
        while submitter.reap().is_some() {}
        thread::yield_now();
    }
}

/// Red if a freeze, once everything is counted, does not wait for threads that may still be putting tags back: a thread
/// that completes a request counts it first, and then puts its tag back.
#[test]
fn a_drained_queue_has_its_tags_back() {
    let model = |scheduler: &'static str| {
        move || {
            let driver = spec::open("null,irqmode=1,poll_queues=0,hw_queue_depth=2").unwrap();
            let q = RequestQueue::builder(driver).scheduler(scheduler).slots(2).build().unwrap();
            let threads = [0, 80].map(|first| {
                let q = Arc::clone(&q);
                thread::spawn(move || submit_and_poll(&q, first))
            });
            let mut freeze = q.freeze();
            freeze.wait();
            assert_eq!(q.in_flight(), 0, "{}", q.dump());
            drop(freeze);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    };
    shuttle::check_random(model("none"), RUNS);
    shuttle::check_random(model("mq-deadline"), RUNS);
}
