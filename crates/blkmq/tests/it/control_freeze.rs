//! Freezing: nothing new enters, what had entered drains, and afterwards the threads that waited go on.

use crate::common::control::freeze;
use crate::common::random::{Random, operations, seed};
use crate::common::rounds::rounds;
use crate::common::worker::Load;
use crate::common::{assert_balanced, queue};
use blkmq::{Bio, Buffer, Client, RequestQueue};

/// Red if operations that merged in a plug count as entered before they leave it.
#[test]
fn a_frozen_queue_drains_although_operations_merged_in_a_plug() {
    for scheduler in blkmq::scheduler_names() {
        let q = queue("null,irqmode=1", scheduler);
        let mut submitter = q.submitter(&Client::new("test")).unwrap();
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
    let mut random = Random::new(seed());
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

/// As block/022 of blktests. Red if something is lost when freezes begin and end under load.
#[test]
fn freezing_and_unfreezing_under_load_loses_nothing() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        let q = queue("null,memory_backed=1,size=64M,submit_queues=2,hw_queue_depth=4", scheduler);
        let load = Load { leaves: 100, ..Load::new(&q, operations(5_000)).with_data() };
        load.run(&random, 3, freeze);
    }
}
