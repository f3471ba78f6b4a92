//! Quiescing: the driver gets nothing, everything that was submitted meanwhile stays queued, and goes on afterwards.

mod common;

use blkmq::{Bio, Buffer, Client};
use common::control::quiesce;
use common::random::{Random, operations, seed};
use common::worker::Load;
use common::{assert_balanced, queue};

/// Red if a submitter without a scheduler starts requests, or hands them to a driver that takes concurrent calls, though
/// it may not run: the driver got them, or they stayed in the submitter's hands until it submitted again.
#[test]
fn what_is_submitted_to_a_quiesced_queue_goes_on_afterwards() {
    for device in ["null,irqmode=0", "null,irqmode=1", "null,irqmode=1,memory_backed=1,cache_size=1"] {
        for scheduler in ["none", "mq-deadline"] {
            let q = queue(device, scheduler);
            let mut submitter = q.submitter(&Client::new("one")).unwrap();
            let mut other = q.submitter(&Client::new("other")).unwrap();
            let quiesce = q.quiesce();
            for number in 0..4 {
                submitter.submit(Bio::write(number * 80, Buffer::zeroed(512))).unwrap();
            }
            submitter.submit(Bio::flush()).unwrap();
            submitter.flush_plug();
            assert!(!other.poll());
            assert_eq!(q.stats().issued, 0, "{device} {scheduler}");
            drop(quiesce);
            // Another thread looks first, and may find nothing to be left.
            other.poll();
            while submitter.nr_outstanding() > 0 {
                submitter.wait(None);
                while submitter.reap().is_some() {}
            }
            assert_balanced(&q);
        }
    }
}

/// Red, now and then, if a thread that saw the queue quiesced goes to sleep without a last look at whether it still is.
#[test]
fn sleepers_go_on_after_each_of_many_quiescences() {
    let random = Random::new(seed());
    for device in ["null,irqmode=1,hw_queue_depth=2", "null,irqmode=0,submit_queues=2,hw_queue_depth=1"] {
        for scheduler in ["none", "mq-deadline"] {
            let q = queue(device, scheduler);
            Load { sleeps: 100, ..Load::new(&q, operations(3_000)) }.run(&random, 3, quiesce);
        }
    }
}
