//! What the fuzzer calls: the parts that read what a guest or a front-end has written, with any bytes.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::memory::{Area, Memory, RegionInfo};
use crate::protocol::message::{HEADER, Header, Message};
use crate::request::{Ask, Range, Request};
use crate::ring::{Chain, Layout, Ring};

/// What was found in some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Chains or messages that are right.
    pub right: usize,
    /// Requests with data, or messages with descriptors.
    pub full: usize,
    /// Ranges of discards and zeroes.
    pub ranges: usize,
    /// Faults; the first one ends it.
    pub wrong: usize,
}

/// Where the parts of the ring lie in the guest's memory, which has two regions in a row.
const DRIVER: u64 = 0x200;
const DEVICE: u64 = 0x300;
const SECOND: u64 = 0x1000;
const END: u64 = 0x2000;

/// The guest's memory, and all of it as two areas.
struct Guest {
    memory: Memory,
    parts: [Area; 2],
}

fn file(len: u64) -> Result<OwnedFd, rustix::io::Errno> {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len)?;
    Ok(file)
}

impl Guest {
    fn new() -> Self {
        let mut memory = Memory::default();
        for (guest, len) in [(0, SECOND), (SECOND, END - SECOND)] {
            let info = RegionInfo { guest, len, user: guest + (1 << 40), offset: 0 };
            memory.add(info, file(len).expect("a file in memory")).expect("a region of it");
        }
        let area = |at, len: u64| memory.area(at, len as usize, 8).expect("the region is there");
        let parts = [area(0, SECOND), area(SECOND, END - SECOND)];
        Self { memory, parts }
    }

    fn fill(&self, bytes: &[u8]) {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            word
        });
        let mut words = words.chain(std::iter::repeat([0; 8]));
        for part in &self.parts {
            (0..SECOND as usize).step_by(8).zip(&mut words).for_each(|(at, word)| part.write(at, word));
        }
    }
}

/// Takes all requests of a ring. The first byte says what ring it is, and the others are the guest's memory.
///
/// # Panics
/// More chains are taken than the ring has descriptors.
#[must_use]
pub fn chains(bytes: &[u8]) -> Found {
    thread_local! {
        static GUEST: RefCell<Guest> = RefCell::new(Guest::new());
    }
    let Some((&kind, image)) = bytes.split_first() else { return Found::default() };
    GUEST.with_borrow(|guest| {
        guest.fill(image);
        let layout = Layout {
            size: 1 << (kind >> 3 & 3),
            descriptors: 0,
            driver: DRIVER,
            device: DEVICE,
            is_packed: kind & 1 != 0,
            has_event_idx: kind & 2 != 0,
            has_indirect: kind & 4 == 0,
        };
        let mut found = Found::default();
        let Ok(mut ring) = Ring::new(&guest.memory, &layout, if layout.is_packed { 0x8000 } else { 0 }) else {
            return found;
        };
        let (mut chain, mut taken) = (Chain::default(), Vec::new());
        loop {
            match ring.take(&guest.memory, &mut chain) {
                Ok(true) => taken.push((chain.id, chain.nr_descriptors)),
                Ok(false) => break,
                Err(_) => {
                    found.wrong += 1;
                    break;
                }
            }
            assert!(taken.len() <= layout.size.into(), "no more than fit");
            match Request::parse(&guest.memory, &mut chain) {
                Ok(request) => {
                    found.right += 1;
                    let data = [&chain.readable, &chain.writable].map(|pieces| crate::request::len(pieces));
                    found.full += usize::from(data != [0, 0]);
                    if matches!(request.ask, Ask::Discard | Ask::WriteZeroes) {
                        found.ranges += Range::all(&guest.memory, &mut chain.readable).map_or(0, |all| all.len());
                    }
                    guest.memory.write(request.status, &[0]);
                }
                Err(_) => {
                    found.wrong += 1;
                    break;
                }
            }
        }
        for (id, nr_descriptors) in taken.into_iter().rev() {
            ring.put(id, nr_descriptors, 1);
        }
        let _ = (ring.publish(), ring.ask_for_kicks());
        ring.refuse_kicks();
        found
    })
}

/// Parses messages one behind the other. The first byte says how many descriptors come with each.
#[must_use]
pub fn messages(bytes: &[u8]) -> Found {
    let mut found = Found::default();
    let Some((&nr_files, mut rest)) = bytes.split_first() else { return found };
    while let Some((head, body)) = rest.split_first_chunk::<HEADER>() {
        let Some((header, body, after)) = Header::parse(head).ok().and_then(|header| {
            let (body, after) = body.split_at_checked(header.len)?;
            Some((header, body, after))
        }) else {
            found.wrong += 1;
            break;
        };
        match Message::parse(header.code, body, usize::from(nr_files % 9)) {
            Ok(message) => {
                found.right += 1;
                found.full += usize::from(nr_files % 9 > 0);
                if let Message::SetMemory(regions) = message {
                    found.ranges += regions.len();
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                found.wrong += 1;
            }
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the fuzzer's guest has no ring that works, so that it finds nothing.
    #[test]
    fn a_chain_and_a_message_are_found() {
        let mut image = vec![0; 0x600];
        let mut put = |at: usize, bytes: &[u8]| image[1 + at..1 + at + bytes.len()].copy_from_slice(bytes);
        let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
            [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
        };
        put(0, &descriptor(0x400, 16, 1, 1));
        put(16, &descriptor(0x500, 16, 1, 2));
        put(32, &descriptor(0x440, 1, 2, 0));
        put(0x202, &[1, 0]);
        put(0x400, &[11]);
        image[0] = 2 << 3;
        assert_eq!(chains(&image), Found { right: 1, full: 1, ranges: 1, wrong: 0 });
        image[0] = 0;
        assert_eq!(chains(&image), Found { wrong: 1, ..Found::default() }, "descriptor 1 of one");
        let get_features = [1_u32, 1, 0].map(u32::to_le_bytes);
        assert_eq!(messages(&[&[0], get_features.as_flattened()].concat()).right, 1);
        assert_eq!(messages(&[0; 13]).wrong, 1);
    }
}
