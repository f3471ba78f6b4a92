//! The number of hardware queues changes while I/O runs.

use crate::common::control::{self, topology};
use crate::common::random::{Random, operations, seed};
use crate::common::worker::Load;
use crate::common::{assert_balanced, queue};
use blkmq::driver::Topology;
use blkmq::{Bio, Buffer, Client, Flags, Op, Status};

/// As block/029 of blktests. Red if something is lost when the number of hardware queues changes under load.
#[test]
fn the_number_of_hardware_queues_changes_under_load() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        for device in ["irqmode=0", "irqmode=1,cache_size=1,fua=0", "irqmode=2,completion_nsec=2000"] {
            let q = queue(&format!("null,memory_backed=1,size=64M,hw_queue_depth=2,{device}"), scheduler);
            let load = Load { leaves: 300, ..Load::new(&q, operations(5_000)).with_data() };
            load.run(&random, 2, |q, random| q.change_topology(topology(random)).unwrap().wait().unwrap());
            assert_balanced(&q);
        }
    }
}

/// Red if something is lost when submitters join and leave, with operations outstanding or in the plug, while the queue
/// changes.
#[test]
fn submitters_join_and_leave_under_load() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        let q = queue("null,memory_backed=1,size=64M,submit_queues=3,hw_queue_depth=2", scheduler);
        let load = Load { leaves: 10, ..Load::new(&q, operations(10_000)).with_data() };
        let counts = load.run(&random, 1, control::disturb);
        assert!(counts.unsure_parts > 0, "no submitter left in a hurry: {counts:?}");
    }
}

/// Red without the look in `Dispatcher::start`: a refused operation then marks its software queue as if it waited
/// there, and after a change of the layout a request that really waits goes under the tag of another hardware queue.
#[test]
fn a_refused_operation_leaves_no_mark_behind() {
    let q = queue("null,irqmode=0,size=1M,hw_queue_depth=2", "none");
    let _first = q.submitter(&Client::new("test")).unwrap();
    let mut second = q.submitter(&Client::new("test")).unwrap();
    let quiesce = q.quiesce();
    second
        .submit(
            Bio::new(Op::Write, 0, 8, Buffer::zeroed(4096).into()).with_flags(Flags { nowait: true, ..Flags::NONE }),
        )
        .unwrap();
    second.flush_plug();
    assert_eq!(second.reap().map(|completion| completion.status), Some(Status::Again));

    let wider = Topology::new(4, 2);
    q.change_topology(wider).unwrap().wait().unwrap();
    second.submit(Bio::new(Op::Write, 0, 8, Buffer::zeroed(4096).into())).unwrap();
    second.flush_plug();
    drop(quiesce);
    assert!(second.wait(1, None).is_ready());
    assert_eq!(second.reap().map(|completion| completion.status), Some(Status::Ok));
    assert_balanced(&q);
}
