//! Hardware queues that belong to one submitter each.

use std::sync::Arc;

use crate::device::front::Front;
use crate::device::{open, read, reap};
use blkmq::driver::Topology;
use blkmq::{Client, QueueError, RequestQueue};

/// A queue in front of a device whose hardware queues are owned.
fn queue(spec: &str) -> RequestQueue {
    let device = Front { is_owned: true, is_concurrent: false, ..Front::new(open(spec), ()) };
    RequestQueue::builder(Arc::new(device)).build().expect("the device is good")
}

/// Red if there may be more submitters than hardware queues, or if a hardware queue is not free again when its owner
/// has left.
#[test]
fn there_are_as_many_submitters_as_hardware_queues() {
    let q = queue("null,irqmode=0,submit_queues=3,poll_queues=2");
    let client = Client::new("test");
    let mut owners: Vec<_> = (0..2).map(|_| q.submitter(&client).expect("there is a hardware queue")).collect();
    let error = q.submitter(&client).map(drop).expect_err("of the type poll there are two");
    assert_eq!(
        error.to_string(),
        "the device's hardware queues, 2 of a type, each belong to a submitter already: open it with more of them, or as one \
         whose hardware queues are shared"
    );
    assert!(matches!(error, QueueError::NoHardwareQueue(2)));
    owners.remove(0);
    owners.push(q.submitter(&client).expect("one is free again"));
    for (at, owner) in owners.iter_mut().enumerate() {
        owner.submit(read(at as u64 * 8, 1)).expect("there are slots");
        assert_eq!(reap(owner).len(), 1);
    }
}

#[test]
fn nobody_loses_a_hardware_queue_to_a_change() {
    let q = queue("null,irqmode=0,submit_queues=2,poll_queues=0");
    let client = Client::new("test");
    let owners: Vec<_> = (0..2).map(|_| q.submitter(&client).expect("there is a hardware queue")).collect();
    let change = |nr, read_queues| {
        let topology = Topology { default_queues: nr, read_queues, poll_queues: 0, depth: 64 };
        q.change_topology(topology).expect("the numbers make sense").wait()
    };
    for (nr, reads) in [(1, 0), (4, 1)] {
        let error = change(nr, reads).expect_err("the second submitter would have none");
        assert_eq!(
            error.to_string(),
            "submitters own hardware queues up to number 1 of each type, so there must be 2 of each"
        );
    }
    drop(owners);
    change(1, 0).expect("no submitter owns one");
    drop(q.submitter(&client).expect("there is one"));
    change(4, 0).expect("there may be more");
}

#[test]
fn nobody_else_polls_for_an_owner() {
    let q = queue("null,irqmode=0,submit_queues=2,poll_queues=0");
    let error = q.start_threads(1).map(drop).expect_err("they would poll");
    assert!(error.to_string().starts_with("no background threads: "), "{error}");
    drop(q.start_threads(0).expect("none is asked for"));
}
