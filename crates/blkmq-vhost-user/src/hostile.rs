//! What the fuzzer calls: the parts that read what a guest or a front-end has written, with any bytes.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES};

use crate::memory::{Memory, Piece, RegionInfo};
use crate::protocol::message::{HEADER, Header, Message};
use crate::request::{self, Range, Request};
use crate::ring::{Chain, Layout};
use crate::virtqueue::Virtqueue;

/// Where the parts of the ring lie in the guest's memory, which has two regions in a row.
const DRIVER: u64 = 0x200;
const DEVICE: u64 = 0x300;
const REGION: usize = 0x1000;

fn memory() -> Memory {
    let mut memory = Memory::default();
    for guest in [0, REGION as u64] {
        let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, REGION as u64).expect("the file grows");
        let info = RegionInfo { guest, len: REGION as u64, user: guest + (1 << 40), offset: 0 };
        memory.add(info, file).expect("a region of it");
    }
    memory
}

/// Takes all requests of a ring. The first byte says what ring it is, and the others are the guest's memory. Calls
/// `reach` with what was found, and how often.
///
/// # Panics
/// More chains are taken than the ring has descriptors.
pub fn chains(bytes: &[u8], mut reach: impl FnMut(&'static str, usize)) {
    thread_local! {
        static MEMORY: Memory = memory();
    }
    let Some((&kind, image)) = bytes.split_first() else { return };
    let mut image = image[..image.len().min(2 * REGION)].to_vec();
    image.resize(2 * REGION, 0);
    MEMORY.with(|memory| {
        let mut rest = &image[..];
        let fill = |piece: Piece| memory.write(piece, rest.split_off(..piece.len as usize).expect("as long as both"));
        memory.pieces(0, 2 * REGION as u32, fill).expect("the regions are there");
        let layout = Layout {
            size: 1 << (kind >> 3 & 3),
            descriptors: 0,
            driver: DRIVER,
            device: DEVICE,
            is_packed: kind & 1 != 0,
            has_event_idx: kind & 2 != 0,
            has_indirect: kind & 4 == 0,
        };
        let base = if layout.is_packed { 0x8000 } else { 0 };
        let Ok(mut virtqueue) = Virtqueue::new(0, memory, &layout, base, None) else { return };
        let (mut chain, mut all) = (Chain::default(), Vec::new());
        loop {
            let request = match virtqueue.take(memory, &mut chain) {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    all.push(taken);
                    assert!(all.len() <= layout.size.into(), "no more than fit");
                    Request::parse(memory, &mut chain)
                }
                Err(fault) => Err(fault),
            };
            let Ok(request) = request else {
                reach("faults", 1);
                break;
            };
            reach("requests", 1);
            let has_data = [&chain.readable, &chain.writable].iter().any(|pieces| request::len(pieces) > 0);
            reach("with data", has_data.into());
            if matches!(request.kind, VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) {
                reach("ranges", Range::all(memory, &mut chain.readable).map_or(0, |all| all.len()));
            }
            memory.write(request.status, &[0]);
        }
        all.into_iter().rev().for_each(|taken| virtqueue.put(taken, 1));
        let _ = (virtqueue.publish(), virtqueue.ask_for_kicks());
        virtqueue.refuse_kicks();
    });
}

/// Parses messages one behind the other. The first byte says how many descriptors come with each. Calls `reach` with
/// what was found, and how often.
pub fn messages(bytes: &[u8], mut reach: impl FnMut(&'static str, usize)) {
    let Some((&nr_files, mut rest)) = bytes.split_first() else { return };
    let nr_files = usize::from(nr_files % 9);
    while let Some((head, body)) = rest.split_first_chunk::<HEADER>() {
        let header = Header::parse(head).ok();
        let Some((header, (body, after))) =
            header.and_then(|header| Some((header, body.split_at_checked(header.len)?)))
        else {
            return reach("refused", 1);
        };
        match Message::parse(header.code, body, nr_files) {
            Ok(message) => {
                reach("messages", 1);
                reach("with files", usize::from(nr_files > 0));
                if let Message::SetMemory(regions) = message {
                    reach("regions", regions.len());
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                reach("refused", 1);
            }
        }
        rest = after;
    }
}
