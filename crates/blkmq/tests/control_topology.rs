//! The number of hardware queues changes while I/O runs.

mod common;

use common::control::{self, topology};
use common::random::{Random, operations, seed};
use common::worker::Load;
use common::{assert_balanced, queue};

/// The twin of blktests block/029.
#[test]
fn the_number_of_hardware_queues_changes_under_load() {
    let random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        for device in ["irqmode=0", "irqmode=1,cache_size=1,fua=0", "irqmode=2,completion_nsec=2000"] {
            let q = queue(&format!("null,memory_backed=1,size=64M,hw_queue_depth=2,{device}"), scheduler);
            let load = Load { leaves: 300, ..Load::new(&q, operations(5_000)).with_data() };
            load.run(&random, 2, |q, random| q.set_topology(topology(random)).unwrap().wait().unwrap());
            assert_balanced(&q);
        }
    }
}

/// Submitters join and leave, with operations outstanding or in the plug, while the queue changes.
#[test]
fn submitters_join_and_leave_under_load() {
    let random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        let q = queue("null,memory_backed=1,size=64M,submit_queues=3,hw_queue_depth=2", scheduler);
        let load = Load { leaves: 10, ..Load::new(&q, operations(10_000)).with_data() };
        let counts = load.run(&random, 1, control::disturb);
        assert!(counts.unsure_parts > 0, "nobody left in a hurry: {counts:?}");
    }
}
