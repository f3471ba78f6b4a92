//! Freezing: nothing new enters, what had entered drains, and afterwards the threads that waited go on.

use crate::common::random::{Random, operations, seed};
use crate::common::rounds::rounds;
use crate::common::{assert_balanced, queue};
use crate::device::join;
use blkmq::{Bio, Buffer, RequestQueue};

/// Red if operations that merged in a plug count as entered before they leave it.
#[test]
fn a_frozen_queue_drains_although_operations_merged_in_a_plug() {
    for scheduler in blkmq::scheduler_names() {
        let q = queue("null,irqmode=1", scheduler);
        let mut submitter = join(&q);
        submitter.submit(Bio::write(0, Buffer::zeroed(512))).unwrap();
        submitter.submit(Bio::write(1, Buffer::zeroed(512))).unwrap();
        let mut freeze = q.freeze();
        submitter.poll();
        assert!(freeze.poll(), "nothing has entered: {:?}", q.counters());
        // Operations that never leave the plug do not count as entered either.
        assert_eq!(submitter.leave().len(), 2);
        drop(freeze);
        assert_balanced(&q);
    }
}

/// Red if the end of a freeze wakes no thread. Red too if a thread whose plug was held back goes to sleep without a
/// last look at the mark that the end of the freeze removes.
#[test]
fn sleepers_go_on_when_the_freeze_ends() {
    let mut random = Random(seed());
    for (device, scheduler) in
        [("null,irqmode=1", "none"), ("null,irqmode=1", "mq-deadline"), ("null,irqmode=0", "none")]
    {
        let q = queue(device, scheduler);
        for nr_threads in [1, 2] {
            rounds(&q, nr_threads, operations(5_000), &mut random, RequestQueue::freeze, |thread, submitter| {
                submitter.submit(Bio::write(thread * 80, Buffer::zeroed(512))).unwrap();
            });
        }
        assert_balanced(&q);
    }
}
