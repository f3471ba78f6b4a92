//! Bytes in memory that a part of a device has to hold, and random operations that change both.

use std::fmt::Display;

use blkmq::{Bio, Buffer, Completion, Flags, Op, Status, Submitter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::run;

const SECTOR: usize = 512;

/// What blocks of a device hold.
pub(crate) struct Model {
    /// The first block, and bytes of a block.
    first: usize,
    block: usize,
    pub(crate) bytes: Vec<u8>,
    rng: SmallRng,
}

impl Model {
    /// A model of so many blocks, which are full of zeroes.
    pub(crate) fn new(first: usize, blocks: usize, block: usize, seed: u64) -> Self {
        Self { first, block, bytes: vec![0; blocks * block], rng: SmallRng::seed_from_u64(seed) }
    }

    /// The next operations, of every kind, polled and not. Each has a part of the blocks to itself, because outstanding
    /// operations may pass one another.
    pub(crate) fn operations(&mut self, parts: usize) -> Vec<Bio> {
        let part = self.bytes.len() / self.block / parts;
        (0..parts).map(|number| self.operation(number * part, part)).collect()
    }

    fn operation(&mut self, start: usize, part: usize) -> Bio {
        let Self { first, block, bytes, rng } = self;
        let (at, len) = (start + rng.random_range(0..part / 2), rng.random_range(1..=part / 2));
        let sectors = (len * *block / SECTOR) as u64;
        let sector = ((*first + at) * *block / SECTOR) as u64;
        let bytes = &mut bytes[at * *block..(at + len) * *block];
        let flags = Flags { polled: rng.random(), ..Flags::NONE };
        match rng.random_range(0..10) {
            0..4 => Bio::read(sector, Buffer::zeroed(bytes.len())).with_flags(flags),
            kind @ (4 | 5) => {
                bytes.fill(0);
                let make = if kind == 4 { Bio::write_zeroes } else { Bio::discard };
                make(sector, sectors).with_flags(flags)
            }
            kind => {
                rng.fill(bytes);
                let flags = Flags { fua: kind == 9, preflush: kind == 8, ..flags };
                Bio::write(sector, Buffer::from(&bytes[..])).with_flags(flags)
            }
        }
    }

    /// Does rounds of operations, half of them by each submitter, and checks each.
    #[allow(dead_code, reason = "not every test program has two submitters")]
    pub(crate) fn change_by_two(&mut self, submitters: &mut [Submitter; 2], what: impl Display) {
        for round in 0..40 {
            let mut bios = self.operations(32);
            for submitter in &mut *submitters {
                let rest = bios.split_off(bios.len().min(16));
                let done = run(submitter, std::mem::replace(&mut bios, rest));
                self.check(&done, format_args!("{what} round {round}"));
            }
        }
    }

    /// Checks that these operations, the last that were made, were done, and that the reads found what the model has.
    pub(crate) fn check(&self, done: &[Completion], what: impl Display) {
        for done in done {
            assert_eq!(done.status, Status::Ok, "{what}: {:?}", done.bio.op);
            if let (Op::Read, Some(data)) = (done.bio.op, done.bio.buffers.iter().next()) {
                let start = done.bio.sector as usize * SECTOR - self.first * self.block;
                assert!(data[..] == self.bytes[start..start + data.len()], "{what}: sector {}", done.bio.sector);
            }
        }
    }
}
