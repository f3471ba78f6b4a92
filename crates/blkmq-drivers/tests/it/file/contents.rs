//! What a file holds, beside a model in memory.

use std::fs;

use blkmq::{Bio, Locking, Status};

use super::{SECTOR, bases, file, folder, queue};
use crate::common::{status_of, submitter};
use crate::model::Model;

/// Red if random operations of every kind, many at once, do not leave what bytes in memory have, in the device and in
/// the file itself.
#[test]
fn a_file_holds_what_was_written_under_every_scheduler_and_locking() {
    const SECTORS: usize = 4096;
    for base in bases() {
        let folder = folder(base);
        for (direct, owned) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            for (scheduler, locking) in
                [("none", Locking::Single)].into_iter().chain(Locking::ALL.map(|locking| ("mq-deadline", locking)))
            {
                let path = file(&folder, &format!("{scheduler}-{locking}-{direct}-{owned}"));
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
    let mut model = Model::new(0, blocks, block, 7);
    model.change_by_two(&mut submitters, format_args!("{spec} {scheduler} {locking}"));
    assert_eq!(status_of(&mut submitters[0], Bio::flush()), Status::Ok);
    assert_eq!(q.busy_tags(), 0);
    drop((submitters, q));
    assert!(fs::read(path).expect("the file is there") == model.bytes, "{spec} {scheduler} {locking}");
}
