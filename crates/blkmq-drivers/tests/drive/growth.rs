//! A disk that becomes larger while it is used.

use std::thread;
use std::time::Duration;

use blkmq::{Bio, Locking, RejectReason, Status};

use super::{BLOCK, BLOCK_SECTORS, ask, block, queue};
use crate::common::{read, status_of, submitter};

/// Red if operations reach the new part before the program has asked for the size, if they do not reach it afterwards,
/// or if what was there before is gone.
pub(crate) fn check(disk: &str) {
    let q = queue(&format!("file,path={disk}"), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    let before = q.limits().capacity_sectors;
    assert_eq!(status_of(&mut submitter, Bio::write(before - BLOCK_SECTORS, block(1))), Status::Ok);
    ask("grow");
    let rejected = submitter.submit(Bio::write(before, block(2))).expect_err("no thread has looked yet");
    assert_eq!(rejected.reason, RejectReason::Bad(Status::BeyondEnd));
    // The kernel hears of it in its own time.
    while q.revalidate() == Ok(before) {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(q.revalidate(), Ok(2 * before));
    let end = 2 * before - BLOCK_SECTORS;
    assert_eq!(status_of(&mut submitter, Bio::write(end, block(2))), Status::Ok);
    assert_eq!(read(&mut submitter, end, BLOCK), [2; BLOCK]);
    assert_eq!(read(&mut submitter, before - BLOCK_SECTORS, BLOCK), [1; BLOCK]);
    println!("PASS {disk} grows from {before} to {} sectors while it is used", 2 * before);
}
