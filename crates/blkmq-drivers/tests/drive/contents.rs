//! What a disk holds, beside a model in memory: written by several threads, each on a processor of its own, so that the
//! kernel uses every hardware queue of the disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use blkmq::{Bio, Buffer, Flags, Locking, Op, RequestQueue, Status};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{BLOCK, BLOCK_SECTORS, queue, status_of};
use crate::common::{run, submitter};

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
    let first = number * BLOCKS;
    let mut model = vec![0; BLOCKS * BLOCK];
    let zeroes = Bio::write_zeroes(first as u64 * BLOCK_SECTORS, BLOCKS as u64 * BLOCK_SECTORS);
    assert_eq!(status_of(&mut submitter, zeroes), Status::Ok);
    let mut rng = SmallRng::seed_from_u64(number as u64);
    for round in 0..ROUNDS {
        let bios: Vec<_> = (0..PARTS)
            .map(|part| {
                let len = rng.random_range(1..=BLOCKS / PARTS / 2);
                let at = part * (BLOCKS / PARTS) + rng.random_range(0..BLOCKS / PARTS / 2);
                let (sector, sectors) = ((first + at) as u64 * BLOCK_SECTORS, len as u64 * BLOCK_SECTORS);
                let bytes = &mut model[at * BLOCK..(at + len) * BLOCK];
                let flags = Flags { polled: rng.random(), ..Flags::NONE };
                match rng.random_range(0..10) {
                    0..3 => Bio::read(sector, Buffer::zeroed(len * BLOCK)).with_flags(flags),
                    kind @ (3 | 4) => {
                        bytes.fill(0);
                        let make = if kind == 3 { Bio::write_zeroes } else { Bio::discard };
                        make(sector, sectors).with_flags(flags)
                    }
                    kind => {
                        rng.fill(bytes);
                        let flags = Flags { fua: kind == 9, preflush: kind == 8, ..flags };
                        Bio::write(sector, Buffer::from(&bytes[..])).with_flags(flags)
                    }
                }
            })
            .collect();
        for done in run(&mut submitter, bios) {
            assert_eq!(done.status, Status::Ok, "thread {number}, round {round}: {:?}", done.bio.op);
            if let (Op::Read, Some(data)) = (done.bio.op, done.bio.buffers.iter().next()) {
                let start = (done.bio.sector / BLOCK_SECTORS) as usize * BLOCK - first * BLOCK;
                assert!(data[..] == model[start..start + data.len()], "thread {number}, round {round}");
            }
        }
    }
    model
}
