//! What a drive is told: flushes and durable writes when they are asked for, and no others.
//!
//! The program knows what it asked for. What arrived, the drive alone knows. So each group of operations is announced
//! with a line `DRIVE name: commands`, and begins with a read of a block that nothing else reads. [`told`](super::told)
//! finds these reads among the commands that the drive took, and compares the commands between them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use blkmq::{Bio, Buffer, Flags, Locking, RequestQueue, Status, Submitter};

use super::{BLOCK, BLOCK_SECTORS, SECTOR, ask, block, queue};
use crate::common::{read, run, status_of, submitter};

/// The sector whose read begins a group of operations.
pub(crate) const MARK: u64 = 65536;
/// The bytes of a transfer that the kernel hands to the drive as two commands.
const LARGE: usize = 1 << 20;

const FUA: Flags = Flags { fua: true, ..Flags::NONE };
const PREFLUSH: Flags = Flags { preflush: true, ..Flags::NONE };
const POLLED: Flags = Flags { polled: true, ..Flags::NONE };

/// A disk, opened once more, only to mark where groups begin.
struct Marker(File);

impl Marker {
    fn new(disk: &str) -> Self {
        Self(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(disk).expect("it is there"))
    }

    fn mark(&self) {
        self.0.read_exact_at(&mut Buffer::zeroed(BLOCK), MARK * SECTOR as u64).expect("the drive works");
    }

    /// Begins a group, of which the drive has to be told as `commands` says.
    fn begin(&self, name: &str, commands: &str) {
        self.mark();
        println!("DRIVE {name}: {commands}");
    }
}

/// Writes one block after the other, at places that no other group has.
fn write(submitter: &mut Submitter, count: u64, flags: Flags) {
    for number in 0..count {
        let bio = Bio::write(number * 2 * BLOCK_SECTORS, block(number as u8)).with_flags(flags);
        assert_eq!(status_of(submitter, bio), Status::Ok);
    }
}

fn check_polling(q: &RequestQueue) {
    for hctx in [4, 5] {
        assert!(q.dump().contains(&format!("\nhctx {hctx}: polls\n")), "{}", q.dump());
    }
}

/// Operations one after the other, so that the order of the commands is certain. Red, by [`told`](super::told), if a
/// write that is to be durable reaches the drive without FUA, and no flush follows; if a flush is missing, or comes
/// unasked; or if a polled operation comes by a queue with an interrupt.
pub(crate) fn check(disk: &str) {
    let marker = Marker::new(disk);
    let direct = |engine: &str| queue(&format!("file,path={disk},{engine}"), "none", Locking::Single);

    let q = direct("submit_queues=4,poll_queues=2,engine=io_uring");
    rings(&marker, &mut submitter(&q));
    polled(&marker, &mut submitter(&q));
    check_polling(&q);
    drop(q);

    let q = direct("engine=threads");
    marker.begin("writes by threads", "3 write");
    write(&mut submitter(&q), 3, Flags::NONE);
    // Linux adds a flush to each durable write for which a thread waits.
    marker.begin("writes with FUA by threads", "1 write,fua, 1 flush, 1 write,fua, 1 flush");
    write(&mut submitter(&q), 2, FUA);
    marker.begin("flushes by threads", "2 flush");
    (0..2).for_each(|_| assert_eq!(status_of(&mut submitter(&q), Bio::flush()), Status::Ok));
    drop(q);

    let q = direct("direct=0");
    marker.begin("a buffered write and a flush", "1 write, 1 flush");
    write(&mut submitter(&q), 1, Flags::NONE);
    assert_eq!(status_of(&mut submitter(&q), Bio::flush()), Status::Ok);
    marker.begin("buffered writes with FUA", "1 write, 1 flush, 1 write, 1 flush");
    write(&mut submitter(&q), 2, FUA);
    drop(q);

    marker.mark();
    ask("commands");
}

fn rings(marker: &Marker, submitter: &mut Submitter) {
    let mut done = |bio: Bio| assert_eq!(status_of(submitter, bio), Status::Ok);
    marker.begin("flushes", "3 flush");
    (0..3).for_each(|_| done(Bio::flush()));
    marker.begin("discards", "2 zeroes");
    (0..2).for_each(|number| done(Bio::discard(number * 64, 64)));
    marker.begin("zeroes", "2 zeroes");
    (0..2).for_each(|number| done(Bio::write_zeroes(number * 64, 64)));
    let nounmap = Flags { nounmap: true, ..Flags::NONE };
    marker.begin("zeroes that keep their room", "2 zeroes");
    (0..2).for_each(|number| done(Bio::write_zeroes(number * 64, 64).with_flags(nounmap)));
    marker.begin("zeroes and a discard with FUA", "1 zeroes, 1 flush, 1 zeroes, 1 flush");
    done(Bio::write_zeroes(0, 64).with_flags(FUA));
    done(Bio::discard(0, 64).with_flags(FUA));

    marker.begin("writes", "5 write");
    write(submitter, 5, Flags::NONE);
    marker.begin("writes with FUA", "5 write,fua");
    write(submitter, 5, FUA);
    marker.begin("a write with preflush", "1 flush, 1 write");
    write(submitter, 1, PREFLUSH);
    marker.begin("writes with both", "1 flush, 1 write,fua, 1 flush, 1 write,fua");
    write(submitter, 2, Flags { fua: true, ..PREFLUSH });
    marker.begin("a large write", "2 write");
    let large = || Bio::write(0, Buffer::from(&vec![5; LARGE][..]));
    assert_eq!(status_of(submitter, large()), Status::Ok);
    marker.begin("a large write with FUA", "2 write,fua");
    assert_eq!(status_of(submitter, large().with_flags(FUA)), Status::Ok);
    marker.begin("reads", "3 read");
    (0..3).for_each(|number| assert_eq!(read(submitter, number * BLOCK_SECTORS, BLOCK), [5; BLOCK]));
}

/// Operations on polled hardware queues. Their commands come by queues of the drive that have no interrupt.
fn polled(marker: &Marker, submitter: &mut Submitter) {
    marker.begin("polled writes", "4 write,polled");
    write(submitter, 4, POLLED);
    marker.begin("polled writes with FUA", "4 write,fua,polled");
    write(submitter, 4, Flags { fua: true, ..POLLED });
    marker.begin("polled reads, many at once", "64 read,polled");
    let reads = (0..64).map(|number| Bio::read(number * 2 * BLOCK_SECTORS, Buffer::zeroed(BLOCK)).with_flags(POLLED));
    assert!(run(submitter, reads).iter().all(|done| done.status.is_ok()));
    // These cannot be polled for.
    marker.begin("a polled flush, zeroes and a discard", "1 flush, 2 zeroes");
    for bio in [Bio::flush(), Bio::write_zeroes(0, 64), Bio::discard(0, 64)] {
        assert_eq!(status_of(submitter, bio.with_flags(POLLED)), Status::Ok);
    }
}
