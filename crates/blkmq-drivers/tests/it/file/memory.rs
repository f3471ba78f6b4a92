//! Memory at odd addresses, and memory that the rings have registered.
#![expect(unsafe_code, reason = "memory at an odd address is handed in")]

use blkmq::{Bio, Buffer, Flags, Locking, RequestQueue, Status};

use super::{SECTOR, bases, disk_folder, file, folder, queue};
use crate::common::{read, run, status_of, submitter};

/// Red if memory at an odd address is refused, because direct I/O needs aligned memory.
#[test]
fn memory_may_lie_anywhere() {
    for base in bases() {
        let folder = folder(base);
        let q = queue(&format!("file,path={},size=1M", file(&folder, "a")), "mq-deadline", Locking::Combining);
        let mut submitter = submitter(&q);
        let block = q.limits().logical_block_size as usize;
        let mut memory = vec![5_u8; 2 * block + 1];
        let odd = std::ptr::NonNull::from(&mut memory[1..=block]).cast();
        // SAFETY: the memory lives until the write is over, and no thread touches it meanwhile.
        let buffer = unsafe { Buffer::borrowed(odd, block) };
        assert_eq!(status_of(&mut submitter, Bio::write(0, buffer)), Status::Ok);
        assert_eq!(read(&mut submitter, 0, block), vec![5; block]);
    }
}

/// Red if unaligned memory goes through the page cache while there are direct writes of neighbouring blocks: the kernel
/// then writes old neighbouring data back, and reports it at the flush.
#[test]
fn odd_memory_harms_no_neighbours() {
    let folder = disk_folder();
    let q = queue(&format!("file,path={},size=1M", file(&folder, "a")), "none", Locking::Single);
    let mut submitter = submitter(&q);
    let block = q.limits().logical_block_size as usize;
    let mut memory = vec![0_u8; block + 1];
    for round in 0..300_usize {
        let byte = round as u8;
        memory.fill(byte);
        let odd = std::ptr::NonNull::from(&mut memory[1..]).cast();
        // SAFETY: the memory lives until the write is over, and no thread touches it meanwhile.
        let first = Bio::write(0, unsafe { Buffer::borrowed(odd, block) });
        let others = Buffer::from(&vec![byte ^ 0x55; (1 << 20) - block][..]);
        let bios = [Bio::write((block / SECTOR) as u64, others), first, Bio::flush()];
        assert!(run(&mut submitter, bios).iter().all(|done| done.status.is_ok()), "round {round}");
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok, "round {round}");
        let data = read(&mut submitter, 0, 2 * block);
        assert!(data[..block].iter().all(|found| *found == byte), "round {round}");
        assert!(data[block..].iter().all(|found| *found == byte ^ 0x55), "round {round}");
        // Reads into unaligned memory arrive too.
        memory.fill(0);
        let odd = std::ptr::NonNull::from(&mut memory[1..]).cast();
        // SAFETY: as above.
        let back = Bio::read(0, unsafe { Buffer::borrowed(odd, block) });
        assert_eq!(status_of(&mut submitter, back), Status::Ok);
        assert!(memory[0] == 0 && memory[1..].iter().all(|found| *found == byte), "round {round}");
    }
}

/// Red if the slots of a ring's table are not given back, or if they name memory that no longer exists.
#[test]
fn registered_memory_is_known_to_every_ring_until_it_goes() {
    for base in bases() {
        let folder = folder(base);
        let spec = format!("file,path={},size=8M,submit_queues=1,poll_queues=1", file(&folder, "a"));
        let q = queue(&spec, "none", Locking::Single);
        let mut submitters = [submitter(&q), submitter(&q)];
        let count = |q: &RequestQueue, bytes: usize| {
            q.dump().lines().filter(|line| line.ends_with(&format!(": {bytes} bytes of memory registered"))).count()
        };
        let write = |sector, byte: u8, mut buffer: Buffer, flags| {
            buffer.fill(byte);
            Bio::write(sector, buffer).with_flags(flags)
        };
        let mut kept = q.register_buffers(4, 5000);
        assert!(count(&q, 4 * 8192) == 2 && kept.iter().all(|buffer| buffer.len() == 5000), "{}", q.dump());
        for round in 0..200_u8 {
            if round % 64 == 63 {
                // Rings that come later know the memory too.
                let topology =
                    blkmq::driver::Topology { default_queues: u16::from(round / 32), ..q.driver().topology() };
                q.change_topology(topology).expect("it is possible").wait().expect("nothing is in flight");
                assert_eq!(count(&q, 4 * 8192), usize::from(round / 32) + 1, "{}", q.dump());
            }
            let all = count(&q, 4 * 8192);
            let mut buffers = q.register_buffers(2, 65536);
            assert_eq!(count(&q, 4 * 8192 + 2 * 65536), all, "{}", q.dump());
            for (place, submitter) in (0..).zip(&mut submitters) {
                let polled = Flags { polled: round % 2 == 1, fua: round % 3 == 0, ..Flags::default() };
                let buffer = buffers.pop().expect("there are two");
                assert_eq!(status_of(submitter, write(place * 128, round, buffer, polled)), Status::Ok);
                let mut short = kept.remove(0);
                assert!(short.set_len(4096));
                let done = run(submitter, [Bio::read(place * 128 + 64, short).with_flags(polled)]).remove(0);
                assert_eq!(done.status, Status::Ok);
                let blkmq::Buffers::One(short) = done.bio.buffers else { panic!("it was one buffer") };
                assert!(short.iter().all(|found| *found == round), "round {round}");
                kept.push(short);
                assert_eq!(read(submitter, place * 128, 65536), vec![round; 65536]);
            }
            assert_eq!(count(&q, 4 * 8192), all, "they are gone with their operations");
        }
        drop((submitters, q));
        // Buffers outlive the device.
        let last = kept.iter().filter(|buffer| buffer.iter().all(|byte| *byte == 199));
        assert_eq!((last.count(), kept.len()), (2, 4));
    }
}
