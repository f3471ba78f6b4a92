//! Flush honesty: what a flush or a FUA write acknowledged is there after a power loss.
//!
//! `BLKMQ_SEED` sets the first of the seeds, `BLKMQ_CASES` how many are tried.

use std::fmt;
use std::sync::Arc;

use blkmq::driver::null::{Config, Null};
use blkmq::driver::{Batch, Done, Driver, TimeoutAction, Topology};
use blkmq::{Bio, Buffer, Client, Clock, Flags, Limits, Op, RequestQueue, RqId, Status, Submitter, Time, VirtualClock};

/// Blocks that the test writes. They lie a megabyte apart, in few sets of the cache, so the cache fills too.
const BLOCKS: usize = 24;
const STRIDE: u64 = 2048;
const BLOCK_SIZE: usize = 4096;

/// A small reproducible generator (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }
}

/// A null device that keeps its cache secret, so the block layer drops every flush: the omission that must be found.
#[derive(Debug)]
struct SecretCache(Arc<Null>);

impl Driver for SecretCache {
    fn limits(&self) -> Limits {
        Limits { write_cache: false, fua: false, ..self.0.limits() }
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn topology(&self) -> Topology {
        self.0.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), String> {
        self.0.set_topology(topology)
    }

    fn is_concurrent(&self) -> bool {
        self.0.is_concurrent()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.0.queue_rqs(hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.0.poll(hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> Option<Time> {
        self.0.next_event(hctx)
    }

    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        self.0.timeout(hctx, id, now)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.0.show(out)
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Default)]
struct Known {
    submitted: u64,
    acknowledged: u64,
    /// A write is outstanding; a second one would race with it.
    busy: bool,
    /// At least this version must survive.
    durable: u64,
}

/// An application and what it was told.
struct Application {
    submitter: Submitter,
    blocks: [Known; BLOCKS],
    /// The versions that each flush and pre-flush covers, by the number in the upper half of the bio's user data, from 1.
    flushes: Vec<[u64; BLOCKS]>,
}

impl Application {
    fn new(q: &Arc<RequestQueue>) -> Self {
        let submitter = q.submitter(&Client::new("application")).expect("there is room for one");
        Self { submitter, blocks: [Known::default(); BLOCKS], flushes: Vec::new() }
    }

    fn write(&mut self, block: usize, flags: Flags) {
        let known = &mut self.blocks[block];
        known.submitted += 1;
        known.busy = true;
        let mut data = Buffer::zeroed(BLOCK_SIZE);
        data.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&known.submitted.to_le_bytes()));
        let user_data = block as u64 | if flags.preflush { self.cover() } else { 0 };
        let bio = Bio::write(block as u64 * STRIDE, data).with_flags(flags).with_user_data(user_data);
        self.submitter.submit(bio).expect("the pool is larger than what is outstanding");
    }

    /// Remembers what a flush submitted now covers; returns its number, in the upper half.
    fn cover(&mut self) -> u64 {
        self.flushes.push(self.blocks.map(|block| block.acknowledged));
        (self.flushes.len() as u64) << 32
    }

    fn flush(&mut self) {
        let user_data = self.cover();
        self.submitter.submit(Bio::flush().with_user_data(user_data)).expect("the pool is large enough");
    }

    fn reap(&mut self) {
        while let Some(completion) = self.submitter.reap() {
            let bio = &completion.bio;
            let (flush, block) = ((bio.user_data >> 32) as usize, bio.user_data as u32 as usize);
            let done = completion.status == Status::Ok;
            if bio.op == Op::Write {
                let known = &mut self.blocks[block];
                known.busy = false;
                if done {
                    known.acknowledged = known.submitted;
                    if bio.flags.fua {
                        known.durable = known.submitted;
                    }
                }
            }
            if done && flush > 0 {
                let covered = self.flushes[flush - 1];
                for (known, version) in self.blocks.iter_mut().zip(covered) {
                    known.durable = known.durable.max(version);
                }
            }
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(10) {
            0..6 => {
                let block = random.below(BLOCKS as u64) as usize;
                if !self.blocks[block].busy {
                    let (preflush, fua) = (random.below(8) == 0, random.below(8) == 0);
                    self.write(block, Flags { preflush, fua, sync: random.below(2) == 0, ..Flags::default() });
                }
            }
            6 => self.flush(),
            _ => {
                self.submitter.poll();
            }
        }
        self.reap();
    }

    fn finish(&mut self) {
        while self.submitter.nr_outstanding() > 0 {
            self.submitter.wait(None);
            self.reap();
        }
    }

    /// Reads everything back; the first block that holds less than was promised, or more than was ever written.
    fn broken_promise(&mut self) -> Option<String> {
        for block in 0..BLOCKS {
            self.submitter.submit(Bio::read(block as u64 * STRIDE, Buffer::zeroed(BLOCK_SIZE))).expect("there is room");
            let completion = loop {
                self.submitter.wait(None);
                if let Some(completion) = self.submitter.reap() {
                    break completion;
                }
            };
            assert_eq!(completion.status, Status::Ok);
            let data = completion.bio.buffers.iter().next().expect("a read has a buffer");
            let words: Vec<_> =
                data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
            let Known { submitted, durable, .. } = self.blocks[block];
            if words.iter().any(|word| *word != words[0]) || !(durable..=submitted).contains(&words[0]) {
                return Some(format!("block {block} holds {}, of {durable}..={submitted}", words[0]));
            }
        }
        None
    }
}

/// Random I/O, a power loss at a random moment, and a look at what is left.
fn run(seed: u64, hide_cache: bool) -> Option<String> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (fua, irqmode) = (random.below(2), random.below(3));
    let spec = format!("memory_backed=1,cache_size=1,fua={fua},irqmode={irqmode},size=64M,hw_queue_depth=4");
    let null = Arc::new(Null::new(spec.parse::<Config>().expect("the parameters are good")));
    let driver: Arc<dyn Driver> = if hide_cache { Arc::new(SecretCache(Arc::clone(&null))) } else { null.clone() };
    let scheduler = ["none", "mq-deadline"][random.below(2) as usize];
    let clock = Clock::Virtual(VirtualClock::new());
    let q = RequestQueue::builder(driver).scheduler(scheduler).clock(clock).build().expect("the queue is good");
    let mut application = Application::new(&q);
    let (before, after) = (random.below(150), random.below(20));
    (0..before).for_each(|_| application.step(&mut random));
    null.lose_power();
    // Whatever is acknowledged from now on must be true as well.
    (0..after).for_each(|_| application.step(&mut random));
    application.finish();
    null.restore_power();
    application.broken_promise().map(|broken| format!("seed {seed}, {spec}, {scheduler}: {broken}"))
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (first, count) = (number("BLKMQ_SEED", 1u64), number("BLKMQ_CASES", 1000u64));
    println!("BLKMQ_SEED={first} BLKMQ_CASES={count}");
    first..first + count
}

#[test]
fn every_byte_acknowledged_by_a_flush_or_fua_survives_a_power_loss() {
    for seed in seeds() {
        assert_eq!(run(seed, false), None);
    }
}

/// The counterpart: the check above is worth something, since it finds a layer that drops flushes.
#[test]
fn a_layer_that_drops_flushes_is_found_out() {
    let found = seeds().filter_map(|seed| run(seed, true)).count();
    println!("{found} seeds show it");
    assert!(found > 0);
}
