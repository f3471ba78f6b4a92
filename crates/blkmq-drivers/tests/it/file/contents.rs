//! What a file holds, beside a model in memory.

use std::fs;

use blkmq::{Bio, Buffer, Flags, Locking, Status};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Folder, SECTOR, bases, queue, status_of};
use crate::common::{run, submitter};

/// Red if random operations of every kind, many at once, do not leave what bytes in memory have, in the device and in
/// the file itself.
#[test]
fn a_file_holds_what_was_written_under_every_scheduler_and_locking() {
    const SECTORS: usize = 4096;
    for base in bases() {
        let folder = Folder::new(base, "model");
        for (direct, owned) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            for (scheduler, locking) in
                [("none", Locking::Single)].into_iter().chain(Locking::ALL.map(|locking| ("mq-deadline", locking)))
            {
                let path = folder.file(&format!("{scheduler}-{locking}-{direct}-{owned}"));
                // With owned hardware queues, each submitter needs one of its own of each type that exists.
                let poll_queues = direct * (1 + owned);
                let spec = format!(
                    "file,path={path},size={},direct={direct},submit_queues=2,poll_queues={poll_queues},hw_queue_depth=8,\
                     owned={owned}",
                    SECTORS * SECTOR
                );
                check_against_model(&spec, &path, scheduler, locking);
                if owned == 0 {
                    let path = format!("{path}-threads");
                    let spec = format!(
                        "file,path={path},size={},direct={direct},submit_queues=2,hw_queue_depth=8,engine=threads",
                        SECTORS * SECTOR
                    );
                    check_against_model(&spec, &path, scheduler, locking);
                }
            }
        }
    }
}

fn check_against_model(spec: &str, path: &str, scheduler: &str, locking: Locking) {
    let q = queue(spec, scheduler, locking);
    let block = q.limits().logical_block_size as usize;
    let blocks = q.limits().capacity_sectors as usize * SECTOR / block;
    let mut submitters = [submitter(&q), submitter(&q)];
    let mut model = vec![0_u8; blocks * block];
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..40 {
        // Each operation of a round has its own part of the file, because outstanding operations may pass one another.
        let mut bios: [Vec<Bio>; 2] = Default::default();
        let part = blocks / 32;
        for place in 0..32 {
            let first = place * part + rng.random_range(0..part / 2);
            let len = rng.random_range(1..=part / 2);
            let (sector, bytes) = ((first * block / SECTOR) as u64, first * block..(first + len) * block);
            let flags = Flags { polled: rng.random(), ..Flags::default() };
            let bio = match rng.random_range(0..10) {
                0..4 => Bio::read(sector, Buffer::zeroed(len * block)).with_flags(flags),
                4 => {
                    model[bytes].fill(0);
                    Bio::write_zeroes(sector, (len * block / SECTOR) as u64).with_flags(flags)
                }
                5 => {
                    model[bytes].fill(0);
                    Bio::discard(sector, (len * block / SECTOR) as u64).with_flags(flags)
                }
                kind => {
                    let data: Vec<u8> = (0..len * block).map(|_| rng.random()).collect();
                    model[bytes].copy_from_slice(&data);
                    let bio = Bio::write(sector, Buffer::from(&data[..]));
                    bio.with_flags(Flags { fua: kind == 9, preflush: kind == 8, ..flags })
                }
            };
            bios[place % 2].push(bio);
        }
        for (submitter, bios) in submitters.iter_mut().zip(bios) {
            for done in run(submitter, bios) {
                assert_eq!(done.status, Status::Ok, "{spec} {scheduler} {locking} round {round}: {:?}", done.bio);
                if let (blkmq::Op::Read, Some(data)) = (done.bio.op, done.bio.buffers.iter().next()) {
                    let start = done.bio.sector as usize * SECTOR;
                    assert!(data[..] == model[start..start + data.len()], "{spec} {scheduler} {locking} round {round}");
                }
            }
        }
    }
    assert_eq!(status_of(&mut submitters[0], Bio::flush()), Status::Ok);
    assert_eq!(q.busy_tags(), 0);
    drop((submitters, q));
    assert!(fs::read(path).expect("the file is there") == model, "{spec} {scheduler} {locking}");
}
