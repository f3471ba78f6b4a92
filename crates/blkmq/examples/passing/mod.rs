//! Batches of reads that pass through a queue, for the examples that count or measure what that takes.

use std::collections::VecDeque;

use blkmq::{Bio, Buffer, Submitter};

/// Sectors between requests: far enough apart that none merge.
const STRIDE: u64 = 64;

/// A batch of so many reads.
pub(crate) fn reads(batch: usize) -> VecDeque<Bio> {
    (0..batch as u64).map(|at| Bio::read(at * STRIDE, Buffer::zeroed(4096))).collect()
}

/// Submits everything in `bios`, and puts the operations back there as they complete.
pub(crate) fn pass_through(submitter: &mut Submitter, bios: &mut VecDeque<Bio>) {
    submitter.submit_batch(bios).expect("the reads are good");
    assert!(bios.is_empty(), "there is a slot for each");
    loop {
        submitter.reap_all(|completion| {
            assert!(completion.status.is_ok(), "{}", completion.status);
            bios.push_back(completion.bio);
        });
        if submitter.nr_outstanding() == 0 {
            return;
        }
        submitter.poll();
    }
}
