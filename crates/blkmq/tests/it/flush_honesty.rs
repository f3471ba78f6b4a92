//! The power fails at a random moment: what a flush or FUA acknowledged is there afterwards.
//!
//! Each block holds the number of its latest version. The checker knows for each block the oldest version that may be
//! found: the latest version that was acknowledged as durable, by a FUA write, or by a flush that was submitted after
//! the write completed. Devices that lie show that the checker can fail: with each of them it reports a loss.
//!
//! Three omissions in `flush.rs` turn the test on honest devices red: the flush before the data, the flush after it,
//! and the list of requests that wait while a flush runs (they would share the running one).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::device::front::claiming;
use crate::device::{Random, first_seed};
use blkmq::VirtualClock;
use blkmq::driver::Driver;
use blkmq::driver::null::Null;
use blkmq::{Bio, Buffer, Client, Clock, Completion, Flags, Limits, RequestQueue, Status, Submitter};

/// Bytes of a block, which a power loss leaves whole.
const BLOCK: usize = 4096;
const SECTORS: u64 = 8;
/// Blocks that each submitter writes, and no other does.
const BLOCKS_EACH: u64 = 24;
const MAX_SUBMITTERS: u64 = 4;
const NR_BLOCKS: usize = (BLOCKS_EACH * MAX_SUBMITTERS) as usize;

/// The versions of a block: the latest one that was submitted, that completed, and that is durable.
#[derive(Default)]
struct Versions {
    submitted: AtomicU64,
    completed: AtomicU64,
    durable: AtomicU64,
}

/// All that was acknowledged.
struct Ledger(Vec<Versions>);

/// What an operation promises if it succeeds.
#[derive(Default)]
struct Promise {
    /// The version that the operation writes to these blocks.
    written: Option<(std::ops::Range<u64>, u64)>,
    is_fua: bool,
    /// What had completed when the flush was asked for.
    before: Option<Vec<u64>>,
}

impl Ledger {
    fn new() -> Self {
        Self((0..NR_BLOCKS).map(|_| Versions::default()).collect())
    }

    fn completed(&self) -> Vec<u64> {
        // Acquire pairs with the Release of `keep`: a completion seen here came before the flush that is about to go.
        self.0.iter().map(|known| known.completed.load(Ordering::Acquire)).collect()
    }

    fn keep(&self, promise: &Promise) {
        if let Some((blocks, version)) = &promise.written {
            for block in blocks.clone() {
                let known = &self.0[block as usize];
                if promise.is_fua {
                    known.durable.fetch_max(*version, Ordering::Relaxed);
                }
                known.completed.store(*version, Ordering::Release);
            }
        }
        for (known, before) in self.0.iter().zip(promise.before.iter().flatten()) {
            known.durable.fetch_max(*before, Ordering::Relaxed);
        }
    }

    /// The promises that the device's content breaks.
    fn broken(&self, found: &[u64]) -> Vec<String> {
        let blocks = self.0.iter().zip(found).enumerate();
        let broken = blocks.filter_map(|(block, (known, found))| {
            let (durable, submitted) = (known.durable.load(Ordering::Relaxed), known.submitted.load(Ordering::Relaxed));
            let kept = (durable..=submitted).contains(found);
            (!kept).then(|| format!("block {block}: version {found} found, {durable} to {submitted} possible"))
        });
        broken.collect()
    }
}

/// Which operations a workload has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    All,
    /// Writes, and flushes of their own.
    Flushes,
    /// Writes, some of which ask for a flush before them.
    Preflushes,
    /// Writes, some of which are FUA.
    Fua,
}

/// The stream of operations of one thread, or of one worker that takes turns.
struct Worker {
    submitter: Submitter,
    number: u64,
    random: Random,
    mix: Mix,
    versions: u64,
    promises: BTreeMap<u64, Promise>,
    next_operation: u64,
}

impl Worker {
    fn new(q: &RequestQueue, number: u64, seed: u64, mix: Mix) -> Self {
        let submitter = q.submitter(&Client::new(format!("worker {number}"))).expect("there is a place");
        let random = Random(seed.wrapping_mul(31).wrapping_add(number));
        Self { submitter, number, random, mix, versions: 0, promises: BTreeMap::new(), next_operation: 0 }
    }

    /// Blocks of this worker that no outstanding write covers, so that the order of versions is known.
    fn idle_blocks(&mut self) -> Option<std::ops::Range<u64>> {
        let first = self.number * BLOCKS_EACH + self.random.below(BLOCKS_EACH);
        let most = (self.number + 1) * BLOCKS_EACH - first;
        let blocks = first..first + 1 + self.random.below(4).min(most - 1);
        let is_busy = |promise: &Promise| {
            let written = promise.written.as_ref();
            written.is_some_and(|(busy, _)| busy.start < blocks.end && blocks.start < busy.end)
        };
        (!self.promises.values().any(is_busy)).then_some(blocks)
    }

    fn submit(&mut self, ledger: &Ledger) {
        let mix = match self.mix {
            Mix::All => self.random.pick(&[Mix::Flushes, Mix::Preflushes, Mix::Fua]),
            mix => mix,
        };
        let mut promise = Promise::default();
        let bio = if mix == Mix::Flushes && self.random.one_in(5) {
            promise.before = Some(ledger.completed());
            Bio::flush()
        } else {
            let Some(blocks) = self.idle_blocks() else { return };
            self.versions += 1;
            let fua = mix == Mix::Fua && self.random.one_in(3);
            let preflush = mix == Mix::Preflushes && self.random.one_in(4) || fua && self.random.one_in(3);
            if preflush {
                promise.before = Some(ledger.completed());
            }
            for block in blocks.clone() {
                ledger.0[block as usize].submitted.store(self.versions, Ordering::Relaxed);
            }
            promise.is_fua = fua;
            promise.written = Some((blocks.clone(), self.versions));
            let bytes = self.versions.to_le_bytes().repeat((blocks.end - blocks.start) as usize * BLOCK / 8);
            let flags = Flags { fua, preflush, sync: self.random.one_in(2), ..Flags::default() };
            Bio::write(blocks.start * SECTORS, Buffer::from(&bytes[..])).with_flags(flags)
        };
        let operation = self.next_operation;
        if self.submitter.submit(bio.with_user_data(operation)).is_ok() {
            self.next_operation += 1;
            self.promises.insert(operation, promise);
        }
    }

    fn take(&mut self, ledger: &Ledger, completion: &Completion) {
        let promise = self.promises.remove(&completion.bio.user_data).expect("each operation completes once");
        if completion.status.is_ok() {
            ledger.keep(&promise);
        }
    }

    fn reap(&mut self, ledger: &Ledger) {
        while let Some(completion) = self.submitter.reap() {
            self.take(ledger, &completion);
        }
    }

    /// Does one thing.
    fn step(&mut self, ledger: &Ledger) {
        match self.random.below(10) {
            0..=6 => self.submit(ledger),
            7 => self.submitter.flush_plug(),
            _ => {
                self.submitter.poll();
                self.reap(ledger);
            }
        }
    }
}

/// What the device holds, read through the queue.
fn read_back(q: &RequestQueue) -> Vec<u64> {
    let mut submitter = q.submitter(&Client::new("reader")).expect("there is a place");
    let mut found = vec![0; NR_BLOCKS];
    for block in 0..NR_BLOCKS as u64 {
        submitter
            .submit(Bio::read(block * SECTORS, Buffer::zeroed(BLOCK)).with_user_data(block))
            .expect("there is a slot");
    }
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        while let Some(Completion { status, bio, .. }) = submitter.reap() {
            assert_eq!(status, Status::Ok);
            let bytes = bio.buffers.iter().next().expect("a read has a buffer");
            assert!(bytes.chunks(8).all(|chunk| chunk == &bytes[..8]), "block {} is torn", bio.user_data);
            found[bio.user_data as usize] = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes are eight"));
        }
    }
    found
}

/// Workers take turns on virtual time until the power fails.
fn run_in_turn(q: &RequestQueue, clock: &VirtualClock, power: &Null, seed: u64, mix: Mix) -> Vec<String> {
    let ledger = Ledger::new();
    let mut random = Random(seed);
    let mut workers: Vec<_> =
        (0..1 + random.below(MAX_SUBMITTERS)).map(|number| Worker::new(q, number, seed, mix)).collect();
    for _ in 0..50 + random.below(400) {
        let turn = random.below(workers.len() as u64) as usize;
        workers[turn].step(&ledger);
        if random.one_in(3) {
            clock.advance(random.below(20_000));
        }
    }
    power.lose_power();
    while workers.iter().any(|worker| worker.submitter.nr_outstanding() > 0) {
        for worker in &mut workers {
            worker.submitter.poll();
            worker.reap(&ledger);
        }
        clock.advance(10_000);
    }
    finish(q, power, &ledger)
}

/// Workers run on threads of their own; the power fails when one of them says so.
fn run_in_threads(q: &RequestQueue, power: &Null, seed: u64, mix: Mix) -> Vec<String> {
    let ledger = Ledger::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (ledger, is_over) = (&ledger, &is_over);
            let mut worker = Worker::new(q, number, seed, mix);
            scope.spawn(move || {
                let steps = if number == 0 { 50 + worker.random.below(2000) } else { u64::MAX };
                for _ in 0..steps {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    worker.step(ledger);
                }
                if number == 0 {
                    power.lose_power();
                    is_over.store(true, Ordering::Relaxed);
                }
                while worker.submitter.nr_outstanding() > 0 {
                    worker.submitter.wait(1, None);
                    worker.reap(ledger);
                }
            });
        }
    });
    finish(q, power, &ledger)
}

fn finish(q: &RequestQueue, power: &Null, ledger: &Ledger) -> Vec<String> {
    assert_eq!((q.busy_tags(), q.counters().entered), (0, q.counters().completed));
    power.restore_power();
    ledger.broken(&read_back(q))
}

fn null(random: &mut Random, fua: u64) -> Arc<Null> {
    let config = format!(
        "memory_backed=1,size=16M,cache_size={},fua={fua},irqmode={},completion_nsec=10000,submit_queues={},\
         hw_queue_depth={},max_sectors={}",
        random.pick(&["1", "64"]),
        random.pick(&[0, 2]),
        random.pick(&[1, 1, 2, 3]),
        random.pick(&[2, 16]),
        random.pick(&[0, 8, 16]),
    );
    Arc::new(Null::new(config.parse().expect("the spec is good")))
}

/// One run. Returns the promises that are broken after it.
fn run(driver: Arc<dyn Driver>, power: &Null, seed: u64, mix: Mix, threads: bool) -> Vec<String> {
    let scheduler = ["none", "mq-deadline"][(seed / 2 % 2) as usize];
    let builder = RequestQueue::builder(driver).scheduler(scheduler);
    if threads {
        return run_in_threads(&builder.build().expect("the queue is good"), power, seed, mix);
    }
    let clock = VirtualClock::new();
    let q = builder.clock(Clock::Virtual(clock.clone())).build().expect("the queue is good");
    run_in_turn(&q, &clock, power, seed, mix)
}

#[test]
fn what_was_acknowledged_survives_power_loss() {
    let first = first_seed();
    for seed in first..first + 1000 {
        let device = null(&mut Random(seed), seed % 2);
        let broken = run(device.clone(), &device, seed, Mix::All, seed % 10 == 0);
        assert!(broken.is_empty(), "BLKMQ_SEED={seed}: {broken:#?}");
    }
}

/// How many of 40 runs break a promise.
fn nr_broken(mix: Mix, make: impl Fn(u64) -> (Arc<dyn Driver>, Arc<Null>)) -> usize {
    let first = first_seed();
    let broken = |seed: &u64| {
        let (driver, power) = make(*seed);
        !run(driver, &power, *seed, mix, false).is_empty()
    };
    (first..first + 40).filter(broken).count()
}

/// A null device that claims to be another.
fn liar(seed: u64, fua: u64, claim: impl Fn(Limits) -> Limits) -> (Arc<dyn Driver>, Arc<Null>) {
    let device = null(&mut Random(seed), fua);
    (claiming(claim(device.limits()), device.clone()), device)
}

/// Red if the check finds no loss on a device that claims to have FUA: the block layer then sends no flush after the
/// data, and the device ignores the flag.
#[test]
fn a_device_that_only_claims_fua_is_found_out() {
    let make = |seed| liar(seed, 0, |limits| Limits { fua: true, ..limits });
    assert!(nr_broken(Mix::Fua, make) > 10);
}

/// Red if the check finds no loss on a device that denies its cache: the block layer then sends no flush at all.
#[test]
fn a_device_that_denies_its_cache_is_found_out() {
    for mix in [Mix::Flushes, Mix::Preflushes, Mix::Fua] {
        let make = |seed| liar(seed, 1, |limits| Limits { write_cache: false, fua: false, ..limits });
        assert!(nr_broken(mix, make) > 10, "{mix:?}");
    }
}
