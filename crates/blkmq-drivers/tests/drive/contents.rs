//! What a disk holds, beside a model in memory: written by several threads, each on a processor of its own, so that the
//! kernel uses every hardware queue of the disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use blkmq::{Bio, Locking, RequestQueue, Status};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{BLOCK, BLOCK_SECTORS, queue};
use crate::common::{run, status_of, submitter};
use crate::model::Model;

const THREADS: usize = 4;
/// Blocks of a thread, and how many parts they have: outstanding operations may pass one another, so each has a part.
const BLOCKS: usize = 512;
const PARTS: usize = 16;
const ROUNDS: usize = 12;

/// Red if random operations of every kind, polled and not, do not leave on the disk what bytes in memory have.
pub(crate) fn check(path: &str, disk: &str) {
    for (scheduler, locking, rings) in [
        ("none", Locking::Single, "submit_queues=4,poll_queues=2"),
        ("mq-deadline", Locking::Combining, "submit_queues=4,poll_queues=2"),
        ("mq-deadline", Locking::Combining, "submit_queues=1"),
        // With owned hardware queues, each submitter needs one of its own of each type that exists.
        ("none", Locking::Single, "submit_queues=4,poll_queues=4,owned=1"),
        ("none", Locking::Single, "submit_queues=2,engine=threads"),
    ] {
        let q = queue(&format!("file,{path},{rings}"), scheduler, locking);
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let q = q.clone();
                thread::spawn(move || change(&q, number))
            })
            .collect();
        let models: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it came to its end")).collect();
        assert_eq!(status_of(&mut submitter(&q), Bio::flush()), Status::Ok);
        assert_eq!(q.busy_tags(), 0);
        drop(q);
        let file = File::open(disk).expect("it is there");
        for (number, model) in models.iter().enumerate() {
            let mut found = vec![0; BLOCKS * BLOCK];
            file.read_exact_at(&mut found, (number * BLOCKS * BLOCK) as u64).expect("it can be read");
            assert!(found == *model, "{scheduler} {rings}: thread {number}");
        }
        println!("PASS {disk} holds what {THREADS} threads wrote with {scheduler}, {rings}");
    }
}

/// Does random operations in this thread's part of the disk. Returns what the part has to hold afterwards.
fn change(q: &RequestQueue, number: usize) -> Vec<u8> {
    let mut processor = CpuSet::new();
    processor.set(number);
    // Where there are fewer processors, threads share them.
    let _ = sched_setaffinity(None, &processor);
    let mut submitter = submitter(q);
    let mut model = Model::new(number * BLOCKS, BLOCKS, BLOCK, number as u64);
    let sector = (number * BLOCKS) as u64 * BLOCK_SECTORS;
    let zeroes = Bio::write_zeroes(sector, BLOCKS as u64 * BLOCK_SECTORS);
    assert_eq!(status_of(&mut submitter, zeroes), Status::Ok);
    for round in 0..ROUNDS {
        let done = run(&mut submitter, model.operations(PARTS));
        model.check(&done, format_args!("thread {number}, round {round}"));
    }
    model.bytes
}
