//! A thread that uses a queue.

use blkmq::{Bio, Client, Completion, RequestQueue, Submitter};

pub(crate) fn submitter(q: &RequestQueue) -> Submitter {
    q.submitter(&Client::new("test")).expect("there is a place")
}

/// Submits, and sleeps until all operations are over. Returns them in the order in which they completed.
pub(crate) fn run(submitter: &mut Submitter, bios: impl IntoIterator<Item = Bio>) -> Vec<Completion> {
    let mut over = Vec::new();
    for bio in bios {
        submitter.submit(bio).expect("there is a slot");
    }
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        submitter.reap_all(|done| over.push(done));
    }
    over
}
