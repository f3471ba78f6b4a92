//! Quiescing: the driver gets nothing, everything that was submitted meanwhile stays queued, and goes on afterwards.

mod common;

use blkmq::{Bio, Buffer, Client};
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
