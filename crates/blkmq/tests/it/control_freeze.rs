//! Freezing: nothing new enters, and what had entered drains.

use crate::common::{assert_balanced, queue};
use crate::device::join;
use blkmq::{Bio, Buffer};

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
