//! Devices in memory when the system has no more of it.

use crate::counting::without_memory;
use crate::device::{join, open};
use blkmq::{Bio, Buffer, Flags, RequestQueue, Status};

/// Red (the process is aborted) if a page for which there is no memory is fatal; red if the write is acknowledged, if
/// something of it can be read, or if the device is of no use afterwards.
#[test]
fn a_write_for_which_there_is_no_memory_fails_alone() {
    for device in ["ram,size=1M", "null,size=1M,memory_backed=1", "ssd,size=1M,memory_backed=1"] {
        let q = RequestQueue::builder(open(device)).build().unwrap();
        let mut submitter = join(&q);
        let mut run = |bio: Bio| {
            assert!(submitter.submit(bio).is_ok());
            loop {
                submitter.wait(1, None);
                if let Some(completion) = submitter.reap() {
                    break completion;
                }
            }
        };
        let write = |sector, byte| Bio::write(sector, Buffer::from(&[byte; 4096][..]));
        let read = |sector| Bio::read(sector, Buffer::from(&[1; 4096][..]));
        let holds = |read: blkmq::Completion, byte: u8| {
            assert_eq!(read.status, Status::Ok, "{device}");
            read.bio.buffers.iter().all(|data| data.iter().all(|found| *found == byte))
        };
        assert_eq!(run(write(0, 7)).status, Status::Ok, "{device}");
        let durable = Flags { fua: true, ..Flags::NONE };
        for lost in [write(8, 8), write(8, 8).with_flags(durable)] {
            assert_eq!(without_memory(4096, || run(lost)).status, Status::NoSpace, "{device}");
            assert!(holds(run(read(8)), 0), "{device}");
        }
        let again = write(0, 9);
        assert_eq!(without_memory(4096, || run(again)).status, Status::Ok, "{device}: that page is there");
        assert!(holds(run(read(0)), 9), "{device}");
        assert_eq!(run(write(8, 8)).status, Status::Ok, "{device}");
    }
}
