//! Block status: what a device knows of its allocation, as extents of the protocol.

use blkmq::driver::Extent;

use super::states;

/// The most extents of one reply. A client that wants to know more asks again from the end of the reply.
pub const MAX_EXTENTS: usize = 128;
/// Bytes of an extent: its length and its state.
pub const EXTENT_SIZE: usize = 8;

/// How often the device is asked at most, for each extent that there is room for. The device may be asked more than
/// once for an extent, because neighbours with the same state become one extent.
const MOST_LOOKS: usize = 4;

/// Writes what `look` knows of `bytes` bytes from byte `start` on to `to`, as extents, as many as fit. `bytes` is at
/// least 1. `look` is given a first byte and a length, and describes the first stretch of them. Returns the number of
/// bytes written: at least one extent.
///
/// Extents begin and end at multiples of `minimum`, which is a power of two, as the range does; an extent may also end
/// where the range ends. A block with data in some part counts as data.
pub fn describe(start: u64, bytes: u32, minimum: u32, to: &mut [u8], look: impl Fn(u64, u64) -> Extent) -> usize {
    let end = start.saturating_add(bytes.into());
    let (mut at, mut written) = (start, 0);
    // Where the last extent begins, and its state.
    let mut last = None;
    for _ in 0..MOST_LOOKS * to.len() / EXTENT_SIZE {
        if at == end {
            break;
        }
        let (until, state) = whole_blocks(at, end, minimum.into(), look(at, end - at));
        let from = match last {
            Some((from, same)) if same == state => from,
            _ if written + EXTENT_SIZE > to.len() => break,
            _ => {
                written += EXTENT_SIZE;
                last = Some((at, state));
                at
            }
        };
        let extent = &mut to[written - EXTENT_SIZE..written];
        // What was asked about has a length of 32 bits.
        extent[..4].copy_from_slice(&((until - from) as u32).to_be_bytes());
        extent[4..].copy_from_slice(&state.to_be_bytes());
        at = until;
    }
    written
}

/// Returns where a stretch from `at` on ends if no block is cut, and the stretch's state.
fn whole_blocks(at: u64, end: u64, minimum: u64, found: Extent) -> (u64, u32) {
    let hole = if found.is_hole { states::HOLE } else { 0 };
    let state = if found.is_zero { hole | states::ZERO } else { hole };
    let until = at.saturating_add(found.bytes.max(1)).min(end);
    let (down, up) = (until - until % minimum, until.next_multiple_of(minimum).min(end));
    match state {
        _ if until == end => (end, state),
        0 => (up, 0),
        _ if down > at => (down, state),
        _ => (up, 0),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn extents(start: u64, bytes: u32, minimum: u32, most: usize, map: &[bool]) -> Vec<(u32, u32)> {
        let look = |start: u64, bytes: u64| {
            let there = &map[start as usize..(start + bytes) as usize];
            let alike = there.iter().take_while(|is_data| **is_data == there[0]).count() as u64;
            if there[0] { Extent::data(alike) } else { Extent::hole(alike) }
        };
        let mut to = vec![0xff; most * EXTENT_SIZE];
        let written = describe(start, bytes, minimum, &mut to, look);
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("it has four bytes"));
        to[..written].chunks(EXTENT_SIZE).map(|extent| (word(&extent[..4]), word(&extent[4..]))).collect()
    }

    /// Red if the edges of a hole are rounded outwards, so that the hole contains a block with data; if neighbours with
    /// the same state are two extents; if an extent goes past the end of the question; or if there are more extents
    /// than were asked for.
    #[test]
    fn stretches_become_extents_in_whole_blocks() {
        // Data from 10 to 20 and from 32 to 64. The rest are holes.
        let map: Vec<bool> = (0..100).map(|at| (10..20).contains(&at) || (32..64).contains(&at)).collect();
        assert_eq!(extents(0, 100, 1, 9, &map), [(10, 3), (10, 0), (12, 3), (32, 0), (36, 3)]);
        assert_eq!(extents(0, 96, 8, 9, &map), [(8, 3), (16, 0), (8, 3), (32, 0), (32, 3)]);
        assert_eq!(extents(0, 96, 32, 9, &map), [(64, 0), (32, 3)], "no hole is a whole block");
        assert_eq!(extents(12, 4, 1, 9, &map), [(4, 0)], "an extent ends where the question does");
        assert_eq!(extents(0, 96, 8, 1, &map), [(8, 3)]);
        assert_eq!(extents(8, 88, 8, 2, &map), [(16, 0), (8, 3)]);
    }

    /// Red if the two bits of a state are swapped, if one of them is taken for the other, or if a number is not in
    /// network byte order.
    #[test]
    fn a_state_is_what_the_device_says() {
        for (is_hole, is_zero, state) in [(false, false, 0), (true, false, 1), (false, true, 2), (true, true, 3)] {
            let mut to = [0; EXTENT_SIZE];
            let extent = Extent { bytes: 512, is_hole, is_zero };
            assert_eq!(describe(0, 512, 512, &mut to, |_, _| extent), EXTENT_SIZE);
            assert_eq!(to, [0, 0, 2, 0, 0, 0, 0, state]);
        }
    }

    /// Red if data is reported as a hole, if an extent is empty or cut, or if a client that asks again and again does
    /// not reach the end.
    #[test]
    fn whatever_the_map_nothing_but_holes_is_a_hole() {
        let mut rng = SmallRng::seed_from_u64(3);
        for round in 0..2000 {
            let minimum = 1_u32 << rng.random_range(0..5);
            let len = minimum * rng.random_range(1..40);
            let mut map = vec![false; len as usize];
            for _ in 0..rng.random_range(0..12) {
                let from = rng.random_range(0..map.len());
                let until = rng.random_range(from..=map.len());
                map[from..until].fill(rng.random());
            }
            let most = rng.random_range(1..6);
            let mut at = 0;
            while at < len {
                let found = extents(at.into(), len - at, minimum, most, &map);
                assert!(!found.is_empty() && found.len() <= most, "round {round}: {found:?}");
                assert!(found.windows(2).all(|two| two[0].1 != two[1].1), "round {round}: {found:?}");
                for (bytes, state) in found {
                    assert!(bytes > 0 && bytes.is_multiple_of(minimum), "round {round}");
                    let part = &map[at as usize..(at + bytes) as usize];
                    assert!(state == 0 || part.iter().all(|is_data| !is_data), "round {round}");
                    let mut blocks = part.chunks(minimum as usize);
                    assert!(state != 0 || blocks.all(|block| block.contains(&true)), "round {round}");
                    at += bytes;
                }
            }
        }
    }
}
