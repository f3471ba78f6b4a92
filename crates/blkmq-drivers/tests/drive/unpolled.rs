//! Polled operations on a disk that does not poll.

use blkmq::{Bio, Buffer, Flags, Locking};

use super::{BLOCK, BLOCK_SECTORS, block, queue};
use crate::common::{run, submitter};

/// Red if the device says that it polls, or if polled operations do not work. Older kernels, such as 6.1, take polled
/// operations for such a disk without a word, and a thread that waits for them would look again and again.
pub(crate) fn check(disk: &str) {
    let q = queue(&format!("file,path={disk},poll_queues=1"), "none", Locking::Single);
    let mut submitter = submitter(&q);
    let polled = Flags { polled: true, ..Flags::NONE };
    let writes = (0..16).map(|number| Bio::write(number * BLOCK_SECTORS, block(number as u8)).with_flags(polled));
    assert!(run(&mut submitter, writes).iter().all(|done| done.status.is_ok()));
    for number in 0..16 {
        let read = Bio::read(number * BLOCK_SECTORS, Buffer::zeroed(BLOCK)).with_flags(polled);
        let done = run(&mut submitter, [read]).remove(0);
        assert!(done.status.is_ok());
        assert!(done.bio.buffers.iter().all(|data| data[..] == [number as u8; BLOCK]), "block {number}");
    }
    assert!(q.dump().contains("\nhctx 1: the disk does not poll: goes by interrupts\n"), "{}", q.dump());
    println!("PASS polled operations go by interrupts on {disk}, which does not poll");
}
