//! Freezing: nothing new enters, what had entered drains, and whoever waited goes on afterwards.

mod common;

use blkmq::{Bio, Buffer, Client};
use common::{assert_balanced, queue};

/// Red if operations that merged in a plug count as entered before they leave it.
#[test]
fn a_frozen_queue_drains_although_operations_merged_in_a_plug() {
    for scheduler in ["none", "mq-deadline"] {
        let q = queue("null,irqmode=1", scheduler);
        let mut submitter = q.submitter(&Client::new("test")).unwrap();
        submitter.submit(Bio::write(0, Buffer::zeroed(512))).unwrap();
        submitter.submit(Bio::write(1, Buffer::zeroed(512))).unwrap();
        let mut freeze = q.freeze();
        submitter.poll();
        assert!(freeze.poll(), "nothing has entered: {:?}", q.stats());
        // Nor do they count as entered if they never leave it.
        assert_eq!(submitter.leave().len(), 2);
        drop(freeze);
        assert_balanced(&q);
    }
}
