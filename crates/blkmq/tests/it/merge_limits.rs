//! Random operations under random limits. Each request must keep the limits and have the right bytes, and each
//! operation must end with the status of its own sectors.

use std::collections::BTreeMap;

use crate::device::{ONE_QUEUE, Random, Recorder, Seen, first_seed, pattern, reap};
use blkmq::driver::Topology;
use blkmq::{
    Bio, Buffer, Client, Clock, Completion, Limits, Op, RejectReason, RequestQueue, Status, Submitter, VirtualClock,
};

fn random_limits(random: &mut Random) -> Limits {
    let block = random.pick(&[512, 512, 4096]);
    Limits {
        capacity_sectors: 1 << 20,
        logical_block_size: block,
        physical_block_size: block,
        max_sectors: random.pick(&[8, 20, 64, 256]),
        // A block in pieces of a sector each still fits.
        max_segments: if block == 512 { random.pick(&[1, 2, 5, 128]) } else { random.pick(&[8, 11, 128]) },
        max_segment_size: random.pick(&[4096, 5120, 65536]),
        boundary_sectors: random.pick(&[0, 0, 8, 24, 64]),
        max_discard_sectors: random.pick(&[8, 100, 1 << 16]),
        max_discard_segments: random.pick(&[1, 1, 2, 5]),
        max_write_zeroes_sectors: random.pick(&[8, 100, 1 << 16]),
        ..Limits::default()
    }
}

/// Operations that touch but never overlap, in random order.
fn random_bios(random: &mut Random, block: u64) -> Vec<Bio> {
    let mut sector = random.below(8) * block;
    let mut op = Op::Write;
    let mut bios = Vec::new();
    for number in 0..random.below(60) + 1 {
        if random.one_in(5) {
            sector += random.below(20) * block;
            op = random.pick(&[Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes]);
        }
        let nr_sectors = block * (1 + if random.one_in(6) { random.below(50) } else { random.below(3) });
        let has_data = matches!(op, Op::Read | Op::Write);
        let buffers = if has_data { random_buffers(random, sector, nr_sectors).into() } else { blkmq::Buffers::None };
        bios.push(Bio::new(op, sector, nr_sectors, buffers).with_user_data(number));
        sector += nr_sectors;
    }
    for at in (1..bios.len()).rev() {
        if !random.one_in(3) {
            bios.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
    bios
}

/// The pattern in pieces of whole sectors.
fn random_buffers(random: &mut Random, sector: u64, nr_sectors: u64) -> Vec<Buffer> {
    let data = pattern(sector, nr_sectors);
    let mut rest = &data[..];
    let mut buffers = Vec::new();
    while !rest.is_empty() {
        let sectors = if random.one_in(2) { rest.len() / 512 } else { 1 + random.below(12) as usize };
        let (piece, behind) = rest.split_at(rest.len().min(sectors * 512));
        buffers.push(Buffer::from(piece));
        rest = behind;
    }
    buffers
}

fn check_against(limits: &Limits, seen: &Seen) {
    let within = |sector: u64, nr_sectors: u64| {
        let boundary = u64::from(limits.boundary_sectors);
        let block = u64::from(limits.logical_block_size / 512);
        assert!(nr_sectors > 0 && sector.is_multiple_of(block) && nr_sectors.is_multiple_of(block), "{seen:?}");
        assert!(boundary == 0 || sector / boundary == (sector + nr_sectors - 1) / boundary, "{seen:?}");
    };
    seen.ranges.iter().for_each(|(sector, nr_sectors)| within(*sector, u64::from(*nr_sectors)));
    assert_eq!(seen.ranges.iter().map(|range| range.1).sum::<u32>(), seen.nr_sectors);
    match seen.op {
        Op::Read | Op::Write => {
            let segments = seen.segments.iter().map(|len| len.div_ceil(limits.max_segment_size as usize));
            assert!(segments.sum::<usize>() <= usize::from(limits.max_segments), "{seen:?}");
            assert!(seen.nr_sectors <= limits.max_sectors, "{seen:?}");
            assert_eq!(seen.segments.iter().sum::<usize>(), seen.nr_sectors as usize * 512);
            assert_eq!(seen.ranges, [(seen.sector, seen.nr_sectors)]);
            assert!(seen.op == Op::Read || seen.data == pattern(seen.sector, seen.nr_sectors.into()), "{seen:?}");
        }
        Op::Discard => {
            assert!(seen.ranges.len() <= usize::from(limits.max_discard_segments), "{seen:?}");
            assert!(seen.nr_sectors <= limits.max_discard_sectors, "{seen:?}");
        }
        _ => {
            assert_eq!(seen.ranges, [(seen.sector, seen.nr_sectors)]);
            assert!(seen.nr_sectors <= limits.max_write_zeroes_sectors, "{seen:?}");
        }
    }
}

/// The outcome of each sector.
#[derive(Default)]
struct Fates(BTreeMap<u64, (Op, Status)>);

impl Fates {
    fn note(&mut self, seen: &Seen, status: Status) {
        for (sector, nr_sectors) in &seen.ranges {
            for sector in *sector..*sector + u64::from(*nr_sectors) {
                assert!(self.0.insert(sector, (seen.op, status)).is_none(), "sector {sector} came twice");
            }
        }
    }

    fn check(&self, Completion { status, bio, .. }: &Completion) {
        let sectors = bio.sector..bio.sector + bio.nr_sectors;
        let fates: Vec<_> = sectors.map(|sector| *self.0.get(&sector).expect("every sector came")).collect();
        assert!(fates.iter().all(|fate| fate.0 == bio.op));
        let expected = fates.iter().any(|fate| fate.1 == *status) && fates.iter().all(|fate| fate.1.is_ok())
            || !status.is_ok() && fates.iter().any(|fate| fate.1 == *status);
        assert!(expected, "{status:?} for {bio:?}, of whose sectors became {fates:?}");
        if bio.op == Op::Read && status.is_ok() {
            let data: Vec<u8> = bio.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
            assert!(data == pattern(bio.sector, bio.nr_sectors), "{bio:?}");
        }
    }
}

/// Finishes some of the device's requests, and takes the operations that are over by that.
fn finish_some(
    random: &mut Random,
    device: &Recorder,
    limits: &Limits,
    held: &mut Vec<Seen>,
    fates: &mut Fates,
    submitters: &mut [Submitter],
) -> usize {
    held.extend(device.take_seen().into_iter().inspect(|seen| check_against(limits, seen)));
    for _ in 0..random.below(4) {
        if held.is_empty() {
            break;
        }
        let seen = held.swap_remove(random.below(held.len() as u64) as usize);
        let status = if random.one_in(8) { random.pick(&[Status::Medium, Status::IoError]) } else { Status::Ok };
        fates.note(&seen, status);
        device.finish(&seen, status);
    }
    let done: Vec<_> = submitters.iter_mut().flat_map(reap).collect();
    done.iter().for_each(|completion| fates.check(completion));
    done.len()
}

fn run(seed: u64) -> u64 {
    let random = &mut Random(seed);
    let limits = random_limits(random);
    let topology = Topology { default_queues: random.pick(&[1, 1, 2]), depth: random.pick(&[1, 2, 8]), ..ONE_QUEUE };
    let device = Recorder::new(limits, topology);
    let builder = RequestQueue::builder(device.clone()).clock(Clock::Virtual(VirtualClock::new()));
    let q = builder.scheduler(random.pick(&["none", "mq-deadline", "mq-deadline"])).build().expect("the queue is good");
    q.set_knob("nomerges", random.pick(&["0", "0", "0", "1", "2"])).expect("the knob takes this");
    let mut submitters: Vec<_> =
        (0..random.pick(&[1, 1, 2])).map(|_| q.submitter(&Client::new("test")).expect("there is a place")).collect();
    let mut bios = random_bios(random, u64::from(limits.logical_block_size / 512));
    let (mut held, mut fates, mut left) = (Vec::new(), Fates::default(), bios.len());
    while left > 0 {
        let at = random.below(submitters.len() as u64) as usize;
        match bios.pop() {
            Some(bio) => match submitters[at].submit(bio) {
                Ok(_) => (),
                Err(rejected) => {
                    assert_eq!(rejected.reason, RejectReason::Full);
                    bios.push(rejected.bio);
                    left -= finish_some(random, &device, &limits, &mut held, &mut fates, &mut submitters);
                }
            },
            None => left -= finish_some(random, &device, &limits, &mut held, &mut fates, &mut submitters),
        }
        if random.one_in(4) {
            submitters[at].flush_plug();
        }
        if random.one_in(20) {
            left -= finish_some(random, &device, &limits, &mut held, &mut fates, &mut submitters);
        }
    }
    assert!(submitters.iter().all(|submitter| submitter.nr_outstanding() == 0));
    assert_eq!((q.busy_tags(), q.counters().entered), (0, q.counters().completed));
    q.counters().merges_insert
}

#[test]
fn requests_keep_to_the_limits_and_operations_to_their_sectors() {
    let first = first_seed();
    let mut merges = 0;
    for seed in first..first + 2000 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        merges += outcome.unwrap_or_else(|panic| {
            println!("failed with BLKMQ_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
    }
    assert!(merges > 500, "{merges} merges in the scheduler");
}
