//! What a client asks for.

use blkmq_sched::{Class, IoPriority, Op};
use blkmq_vcpu::Random;
use blkmq_virtual::{Bio, Buffers, Flags, Limits};

use super::buffers::{Spare, stamp};
use crate::claims::Claim;
use crate::pace::magnitude;
use crate::world::Share;

const SECTOR: usize = 512;

/// The weights and limits of what a client asks for. Many are zero, so that worlds differ.
#[derive(Debug, Clone)]
pub(super) struct Mix {
    /// Weights of reads, writes, discards, writes of zeroes, flushes.
    ops: [u64; 5],
    /// Weights of the ways to choose the next sectors.
    walks: [u64; 4],
    /// Sectors that the client works on: the first, and how many.
    area: (u64, u64),
    most_sectors: u64,
    /// Most pieces of an operation's data.
    most_pieces: u64,
    /// Percent of operations with each flag.
    flags: [u64; 10],
    /// Percent of the operations that have a priority of their own, of those that have any size, and of those that are
    /// invalid.
    priorities: u64,
    large: u64,
    bad: u64,
    /// The class of all priorities; `None`: any.
    class: Option<Class>,
    /// Where the client's own sequential streams have come to.
    forward: u64,
    backward: u64,
}

/// The ways to choose the next sectors.
#[derive(Debug, Clone, Copy)]
enum Walk {
    Random,
    Forward,
    Backward,
    /// Continues where the last client with this walk ended.
    Together,
}

/// What is wrong with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Empty,
    Misaligned,
    BeyondEnd,
    Buffers,
    Priority,
}

/// An operation that a client is about to submit, still without its buffers.
pub(super) struct Wish {
    pub(super) bio: Bio,
    pub(super) fault: Option<Fault>,
    pub(super) claim: Option<Claim>,
}

/// Any priority, or, with a class, any priority of this class.
pub(super) fn priority(random: &mut Random, class: Option<Class>) -> IoPriority {
    let drawn = *random.pick(&Class::ALL);
    IoPriority { class: class.unwrap_or(drawn), level: random.below(8) as u8 }
}

impl Mix {
    pub(super) fn draw(random: &mut Random, capacity: u64, class: Option<Class>) -> Self {
        let mut weight = |most| if random.one_in(2) { 0 } else { magnitude(random, most) };
        let (reads, writes) = (weight(32), weight(32));
        // If both were zero, hardly any operation would be drawn.
        let writes = if reads + writes == 0 { 1 } else { writes };
        let ops = [reads, writes, weight(4), weight(4), weight(4)];
        let walks = [1 + weight(16), weight(16), weight(16), weight(16)];
        let flags = [(); 10].map(|()| weight(50));
        let (priorities, large, bad) = (weight(100), weight(4), weight(4));
        let nr_sectors = magnitude(random, capacity).max(64).min(capacity);
        let first = random.below(capacity - nr_sectors + 1);
        Self {
            ops,
            walks,
            area: (first, nr_sectors),
            most_sectors: magnitude(random, 64),
            most_pieces: *random.pick(&[1, 1, 3]),
            flags,
            priorities,
            large,
            bad,
            class,
            forward: first,
            backward: first,
        }
    }

    /// Reads of one size, or of any size up to it, and some writes, of one class.
    pub(super) fn flood(random: &mut Random, capacity: u64) -> Self {
        let mut flags = [0; 10];
        flags[0] = random.below(101);
        Self {
            ops: [8, random.below(3), 0, 0, 0],
            walks: [1, random.below(3), 0, 0],
            area: (0, capacity),
            most_sectors: magnitude(random, 64),
            most_pieces: 1,
            flags,
            priorities: 0,
            large: 0,
            bad: 0,
            class: Some(Class::BestEffort),
            forward: 0,
            backward: 0,
        }
    }

    /// Small reads, and some writes that are waited for, where the last client went or anywhere.
    pub(super) fn joint(random: &mut Random, capacity: u64) -> Self {
        Self {
            ops: [8, random.within(1, 4), 0, 0, 0],
            walks: [random.within(1, 4), 0, 0, 1],
            most_sectors: magnitude(random, 8),
            flags: [100, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Self::flood(random, capacity)
        }
    }

    /// The next operation; `None` if its sectors are taken.
    pub(super) fn next(&mut self, random: &mut Random, limits: &Limits, share: &mut Share) -> Option<Wish> {
        let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush][weighted(random, &self.ops)];
        let op = if op != Op::Flush && limits.max_op_sectors(op) == 0 { Op::Read } else { op };
        let (mut sector, mut nr_sectors) = if op == Op::Flush { (0, 0) } else { self.place(random, limits, op, share) };
        let mut priority = (random.below(100) < self.priorities).then(|| priority(random, self.class));
        let fault = (random.below(100) < self.bad).then(|| {
            *random.pick(&[Fault::Empty, Fault::Misaligned, Fault::BeyondEnd, Fault::Buffers, Fault::Priority])
        });
        let fault = fault.filter(|fault| fault.fits(op, limits));
        match fault {
            Some(Fault::Empty) => nr_sectors = 0,
            Some(Fault::Misaligned) => sector += 1,
            Some(Fault::BeyondEnd) if random.one_in(2) => sector = limits.capacity_sectors,
            Some(Fault::BeyondEnd) => sector = block(limits).wrapping_neg(),
            Some(Fault::Priority) => priority = Some(IoPriority { class: Class::BestEffort, level: 8 }),
            Some(Fault::Buffers) | None => {}
        }
        let claim = if op == Op::Flush || fault.is_some() {
            None
        } else {
            Some(share.claims.take(sector, nr_sectors, op.is_read())?)
        };
        let bio =
            Bio { priority, ..Bio::new(op, sector, nr_sectors, Buffers::None).with_flags(self.flags(random, op)) };
        Some(Wish { bio, fault, claim })
    }

    fn flags(&self, random: &mut Random, op: Op) -> Flags {
        let [sync, preflush, fua, readahead, meta, nowait, polled, at_head, nomerge, nounmap] =
            self.flags.map(|percent| random.below(100) < percent);
        let changes = !matches!(op, Op::Read | Op::Flush);
        let (preflush, fua) = (preflush && changes, fua && changes);
        let nounmap = nounmap && op == Op::WriteZeroes;
        Flags { sync, preflush, fua, readahead, meta, nowait, polled, at_head, nomerge, nounmap }
    }

    /// First sector and length, in whole blocks and within the device.
    fn place(&mut self, random: &mut Random, limits: &Limits, op: Op, share: &mut Share) -> (u64, u64) {
        let block = block(limits);
        let is_large = random.below(100) < self.large;
        let most = match op {
            _ if !is_large => self.most_sectors,
            Op::Read | Op::Write => 4 * u64::from(limits.max_sectors).min(256),
            _ => limits.capacity_sectors,
        };
        let (first, nr_sectors) = self.area;
        let most = most.clamp(block, nr_sectors.max(block));
        // Every second operation has the full length, because neighbours of equal length are the ones that merge.
        let length = if random.one_in(2) { most } else { magnitude(random, most) };
        let length = length.next_multiple_of(block).min(limits.capacity_sectors / block * block);
        let last = (first + nr_sectors).saturating_sub(length).max(first);
        let walk = [Walk::Random, Walk::Forward, Walk::Backward, Walk::Together][weighted(random, &self.walks)];
        let sector = match walk {
            Walk::Random => random.within(first, last),
            Walk::Forward => {
                let here = if self.forward > last { first } else { self.forward };
                self.forward = here + length;
                here
            }
            Walk::Backward => {
                let end = if self.backward < first + length { first + nr_sectors } else { self.backward };
                self.backward = end.saturating_sub(length).max(first);
                self.backward
            }
            Walk::Together => share.go_on(length, limits.capacity_sectors),
        };
        let last = limits.capacity_sectors - length;
        (sector.min(last) / block * block, length)
    }

    /// The buffers of an operation. With a fault they do not fit the operation.
    pub(super) fn buffers(&self, random: &mut Random, bio: &Bio, fault: Option<Fault>, spare: &mut Spare) -> Buffers {
        let has_data = matches!(bio.op, Op::Read | Op::Write);
        if fault == Some(Fault::Buffers) {
            // An operation with buffers where it must have none, or without where it needs some, is wrong too.
            return if has_data { Buffers::None } else { Buffers::One(spare.take(SECTOR)) };
        }
        if !has_data {
            return Buffers::None;
        }
        let mut left = bio.nr_sectors as usize;
        let nr_pieces = random.within(1, self.most_pieces.min(left.max(1) as u64));
        let mut pieces = Vec::new();
        for _ in 1..nr_pieces {
            let taken = random.within(1, (left / 2).max(1) as u64) as usize;
            pieces.push(spare.take(taken * SECTOR));
            left -= taken;
            if left < 2 {
                break;
            }
        }
        let last = spare.take(left * SECTOR);
        let mut buffers = if pieces.is_empty() {
            Buffers::One(last)
        } else {
            pieces.push(last);
            Buffers::Many(pieces)
        };
        stamp(&mut buffers, (bio.op == Op::Write).then_some(bio.user_data));
        buffers
    }
}

impl Fault {
    /// Whether this fault makes an operation of this kind one that the queue must reject.
    fn fits(self, op: Op, limits: &Limits) -> bool {
        match self {
            Self::Empty | Self::BeyondEnd => op != Op::Flush,
            Self::Misaligned => op != Op::Flush && block(limits) > 1,
            Self::Buffers | Self::Priority => true,
        }
    }
}

fn block(limits: &Limits) -> u64 {
    u64::from(limits.logical_block_size) / SECTOR as u64
}

/// Draws an index into `weights`. Not all weights are zero.
fn weighted(random: &mut Random, weights: &[u64]) -> usize {
    let mut drawn = random.below(weights.iter().sum());
    let at = weights.iter().position(|weight| {
        let is_it = drawn < *weight;
        drawn = drawn.wrapping_sub(*weight);
        is_it
    });
    at.expect("a number below the sum falls on a weight")
}
