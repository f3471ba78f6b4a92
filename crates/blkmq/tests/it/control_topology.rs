//! The number of hardware queues changes while something waits.

use crate::common::{assert_balanced, queue};
use crate::device::{Drive, join};
use blkmq::driver::Topology;
use blkmq::{Bio, Buffer, Flags, Op, Status};

/// Red without the look in `Dispatcher::start`: a refused operation then marks its software queue as if it waited
/// there, and after a change of the layout a request that really waits goes under the tag of another hardware queue.
#[test]
fn a_refused_operation_leaves_no_mark_behind() {
    let q = queue("null,irqmode=0,size=1M,hw_queue_depth=2", "none");
    let _first = join(&q);
    let mut second = join(&q);
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
    second.submit_now(Bio::new(Op::Write, 0, 8, Buffer::zeroed(4096).into()));
    drop(quiesce);
    assert!(second.wait(1, None).is_ready());
    assert_eq!(second.reap().map(|completion| completion.status), Some(Status::Ok));
    assert_balanced(&q);
}
