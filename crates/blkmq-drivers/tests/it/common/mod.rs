//! A thread that uses a queue.
#![allow(dead_code, reason = "not every test program uses all of it")]

use blkmq::{Bio, Buffer, Client, Completion, RequestQueue, Status, Submitter};

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

/// Does one operation to its end.
pub(crate) fn status_of(submitter: &mut Submitter, bio: Bio) -> Status {
    run(submitter, [bio]).remove(0).status
}

/// Reads so many bytes.
pub(crate) fn read(submitter: &mut Submitter, sector: u64, len: usize) -> Vec<u8> {
    let done = run(submitter, [Bio::read(sector, Buffer::zeroed(len))]).remove(0);
    assert_eq!(done.status, Status::Ok, "at sector {sector}");
    done.bio.buffers.iter().next().expect("a read has a buffer").to_vec()
}
