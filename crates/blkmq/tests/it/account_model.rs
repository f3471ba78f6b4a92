//! The statistics against a naive count: every request that the device ended, with the operations in it.
//!
//! Operations are random, in triples that touch, so that they merge at the front, at the end and in the middle. Some
//! are split, fail, or are refused or given back by the device. Time moves by whole milliseconds, so every sum is
//! exact.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::front::Front;
use crate::device::{ONE_QUEUE, Random, Recorder, first_seed, virtual_queue};
use blkmq::driver::Topology;
use blkmq::{Accounting, Bio, Buffer, Client, DiskStats, Flags, Limits, Op, RequestQueue, RqId, SectorRange, Status};
use blkmq::{Submitter, Time, VirtualClock};

fn limits() -> Limits {
    Limits {
        capacity_sectors: 1 << 30,
        max_sectors: 64,
        max_segments: 64,
        max_segment_size: 1 << 20,
        max_discard_sectors: 128,
        max_write_zeroes_sectors: 256,
        write_cache: true,
        ..Limits::default()
    }
}

/// Three ranges with gaps, and sectors behind them that belong to none.
const RANGE: u64 = 1 << 24;
const AREAS: u64 = 4;

/// What the device ended: the op, the ranges of sectors, and when.
type Ended = (Op, Ranges, Time);
type Ranges = Vec<(u64, u32)>;

#[derive(Debug)]
struct Kept {
    random: Random,
    held: Vec<(RqId, Op, Ranges)>,
    finished: Vec<(RqId, Status)>,
    ended: Vec<Ended>,
}

/// A device that takes a request, refuses it, gives it back or finishes it at once, by chance.
type Moody = Front<Mutex<Kept>>;

fn moody(random: Random) -> Arc<Moody> {
    let kept = Kept { random, held: Vec::new(), finished: Vec::new(), ended: Vec::new() };
    // There are few tags, so that requests wait in the scheduler, where they can merge.
    let inner = Recorder::new(limits(), Topology { depth: 3, ..ONE_QUEUE });
    Arc::new(Front {
        queue_rqs: |front, _, batch, now| {
            let mut kept = front.kept();
            while let Some(rq) = batch.next_request() {
                let (op, ranges) = (rq.op(), rq.ranges().collect());
                match kept.random.below(10) {
                    0 => batch.refuse(rq),
                    1 => batch.requeue(rq),
                    2 => {
                        kept.ended.push((op, ranges, now));
                        batch.finish(rq, Status::Ok);
                    }
                    _ => {
                        let id = batch.start(rq);
                        kept.held.push((id, op, ranges));
                    }
                }
            }
        },
        poll: |front, _, done, _| {
            for (id, status) in front.kept().finished.drain(..) {
                done.complete(id, status).expect("each request finishes once");
            }
        },
        ..Front::new(inner, Mutex::new(kept))
    })
}

impl Moody {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().expect("no test goes on after a panic in the device")
    }

    /// Ends one of the requests that the device holds, if any. A poll at `now` finds it.
    fn finish_one(&self, random: &mut Random, now: Time) {
        let mut kept = self.kept();
        if !kept.held.is_empty() {
            let at = random.below(kept.held.len() as u64) as usize;
            let (id, op, ranges) = kept.held.remove(at);
            kept.finished.push((id, random.pick(&[Status::Ok, Status::Ok, Status::Ok, Status::Medium])));
            kept.ended.push((op, ranges, now));
        }
    }
}

/// The naive count of a queue or a range: per group the requests, parts, sectors and milliseconds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Count([[u64; 4]; 3]);

const fn group(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Discard => 2,
        _ => 1,
    }
}

impl Count {
    fn ended(&mut self, op: Op, sectors: u64, since: Time, now: Time) {
        let count = &mut self.0[group(op)];
        count[0] += 1;
        count[2] += sectors;
        count[3] += now.since(since) / 1_000_000;
    }

    /// The 17 fields. Fields that cannot be counted from ended requests are taken from `stat`.
    fn stat(&self, stat: &DiskStats) -> DiskStats {
        let [read, write, discard] = self.0.map(|[ios, parts, sectors, ms]| (ios, parts - ios, sectors, ms));
        DiskStats {
            read_ios: read.0,
            read_merges: read.1,
            read_sectors: read.2,
            read_ticks: read.3,
            write_ios: write.0,
            write_merges: write.1,
            write_sectors: write.2,
            write_ticks: write.3,
            in_flight: 0,
            io_ticks: stat.io_ticks,
            time_in_queue: read.3 + write.3 + discard.3 + stat.flush_ticks,
            discard_ios: discard.0,
            discard_merges: discard.1,
            discard_sectors: discard.2,
            discard_ticks: discard.3,
            flush_ios: stat.flush_ios,
            flush_ticks: stat.flush_ticks,
        }
    }
}

struct Rig {
    random: Random,
    clock: VirtualClock,
    device: Arc<Moody>,
    q: RequestQueue,
    submitters: Vec<Submitter>,
    /// The operations that the device will end, by their first sectors: end and time of submission.
    submitted: BTreeMap<u64, (u64, Time)>,
    /// Where the next triple goes, by area.
    next: [u64; AREAS as usize],
    /// The operations of the last triple that have not been submitted.
    triple: Vec<(u64, u64)>,
    op: Op,
    whole: Count,
    ranges: [Count; 3],
    flushes: u64,
    merges: bool,
}

fn range(at: u64) -> SectorRange {
    SectorRange { name: format!("p{at}"), first: at * RANGE, nr_sectors: RANGE - 1024 }
}

impl Rig {
    fn new(random: Random, scheduler: &str, accounting: Accounting, merges: bool) -> Self {
        let device = moody(random.clone());
        let (q, clock) = virtual_queue(device.clone(), |q| {
            q.scheduler(scheduler).accounting(accounting).ranges((0..3).map(range).collect()).io_timeout_ms(u32::MAX)
        });
        if scheduler != "none" {
            let mut change = q.change_knob("nr_requests", "256").expect("the number is in range");
            change.poll().expect("nothing is in flight").expect("there is a scheduler");
        }
        if !merges {
            q.set_knob("nomerges", "2").expect("the knob is there");
        }
        let submitter = || q.submitter(&Client::new("one")).expect("there is a place");
        let submitters = vec![submitter(), submitter()];
        Self {
            random,
            clock,
            device,
            submitters,
            q,
            submitted: BTreeMap::new(),
            next: [0, 1, 2, 3].map(|area| area * RANGE),
            triple: Vec::new(),
            op: Op::Read,
            whole: Count::default(),
            ranges: [Count::default(); 3],
            flushes: 0,
            merges,
        }
    }

    fn is_counted(&self) -> bool {
        self.q.knob("iostats").expect("the knob is there") == "1"
    }

    /// An operation on sectors that no operation was on before.
    fn bio(&mut self) -> Bio {
        if self.triple.is_empty() {
            let area = self.random.below(AREAS);
            let at = &mut self.next[area as usize];
            let lengths = [0; 3].map(|_| 1 + self.random.below(30) * if self.random.one_in(8) { 20 } else { 1 });
            for length in lengths {
                self.triple.push((*at, length));
                *at += length;
            }
            *at += 300;
            self.op = self.random.pick(&[Op::Read, Op::Read, Op::Write, Op::Discard, Op::WriteZeroes]);
        }
        let at = self.random.below(self.triple.len() as u64) as usize;
        let (sector, length) = self.triple.swap_remove(at);
        match self.op {
            Op::Read => Bio::read(sector, Buffer::zeroed(length as usize * 512)),
            Op::Write => Bio::write(sector, Buffer::zeroed(length as usize * 512)),
            Op::Discard => Bio::discard(sector, length),
            _ => Bio::write_zeroes(sector, length),
        }
    }

    fn submit(&mut self) {
        // So the scheduler is never full, and nothing stays in a plug while time moves.
        if self.submitters.iter().map(Submitter::nr_outstanding).sum::<usize>() > 60 {
            return;
        }
        let now = self.clock.now();
        let who = self.random.below(2) as usize;
        if self.random.one_in(12) {
            // These go through the flush machine, which merges nothing, and are counted when they are reaped.
            let at = 3 * RANGE + (1 << 23) + self.next[3];
            self.next[3] += 300;
            let flags = self.random.pick(&[
                Flags { fua: true, ..Flags::NONE },
                Flags { preflush: true, ..Flags::NONE },
                Flags { preflush: true, fua: true, ..Flags::NONE },
            ]);
            let write = Bio::write(at, Buffer::zeroed(512)).with_flags(flags).with_user_data(1);
            let bio = if self.random.one_in(2) { Bio::flush().with_user_data(1) } else { write };
            let _ = self.submitters[who].submit(bio);
            return;
        }
        let bio = self.bio();
        let (op, sector, length) = (bio.op, bio.sector, bio.nr_sectors);
        if self.submitters[who].submit(bio).is_ok() {
            let most = limits().max_op_sectors(op);
            self.submitted.insert(sector, (sector + length, now));
            if self.is_counted() {
                let parts = length.div_ceil(most.into());
                self.whole.0[group(op)][1] += parts;
                if let Some(range) = self.ranges.get_mut((sector / RANGE) as usize) {
                    range.0[group(op)][1] += parts;
                }
            } else {
                self.submitted.remove(&sector);
            }
        }
    }

    /// Lets the queue do what it can, and counts what ended.
    fn look(&mut self) {
        // All submitters poll before any of them reaps, so that what the second one finishes for the first is found in
        // this look.
        for submitter in &mut self.submitters {
            submitter.poll();
        }
        for submitter in &mut self.submitters {
            while let Some(over) = submitter.reap() {
                if over.bio.user_data == 1 {
                    let count = &mut self.whole.0[1];
                    count[0] += 1;
                    count[1] += 1;
                    count[2] += over.bio.nr_sectors;
                    count[3] += self.clock.now().since(over.submitted) / 1_000_000;
                }
            }
        }
        for (op, ranges, now) in std::mem::take(&mut self.device.kept().ended) {
            if op == Op::Flush {
                self.flushes += 1;
                continue;
            }
            let first = ranges[0].0;
            if first >= 3 * RANGE + (1 << 23) {
                continue;
            }
            let sectors = ranges.iter().map(|range| u64::from(range.1)).sum();
            let end = ranges.iter().map(|(first, length)| first + u64::from(*length)).max().unwrap_or(0);
            let known = self.submitted.range(..end).rev().take_while(|(_, (end, _))| *end > first);
            let Some(since) = known.map(|(_, (_, time))| *time).min() else { continue };
            self.whole.ended(op, sectors, since, now);
            if let Some(range) = self.ranges.get_mut((first / RANGE) as usize) {
                range.ended(op, sectors, since, now);
            }
        }
    }

    /// Moves the clock when all plugs are empty, so that an operation's time is that of its submission.
    fn pass_time(&mut self) {
        self.look();
        self.clock.advance(self.random.below(20) * 1_000_000);
    }

    /// What must hold at any time.
    fn check(&self) {
        let (reads, all) = {
            let kept = self.device.kept();
            assert!(kept.finished.is_empty(), "every look polls");
            (kept.held.iter().filter(|held| held.1 == Op::Read).count() as u32, kept.held.len() as u32)
        };
        assert_eq!(self.q.inflight(), [reads, all - reads]);
        let stat = self.q.disk_stats();
        assert!(stat.io_ticks <= self.clock.now().0 / 1_000_000, "{stat:?}");
        assert_eq!(stat.time_in_queue, stat.read_ticks + stat.write_ticks + stat.discard_ticks + stat.flush_ticks);
    }

    fn run(&mut self, steps: u64, flips: bool) {
        let mut last = DiskStats::default();
        for _ in 0..steps {
            match self.random.below(8) {
                0..=2 => self.submit(),
                3 => {
                    let who = self.random.below(2) as usize;
                    self.submitters[who].flush_plug();
                }
                4 | 5 => {
                    self.device.finish_one(&mut self.random, self.clock.now());
                    self.look();
                }
                6 => self.pass_time(),
                _ if flips && self.random.one_in(4) => {
                    // Whether plugged operations are counted is decided when they leave the plug.
                    self.look();
                    let on = if self.is_counted() { "0" } else { "1" };
                    self.q.set_knob("iostats", on).expect("the knob is there");
                }
                _ => self.check(),
            }
            let stat = self.q.disk_stats();
            let mut grown = stat.fields().into_iter().zip(last.fields()).enumerate();
            assert!(grown.all(|(at, (now, before))| at == 8 || now >= before), "{last:?}\n{stat:?}");
            last = stat;
        }
        while self.submitters.iter().any(|submitter| submitter.nr_outstanding() > 0) {
            self.device.finish_one(&mut self.random, self.clock.now());
            self.pass_time();
        }
        assert_eq!(self.q.inflight(), [0, 0]);
    }

    fn check_sums(&self, what: &str) {
        let stat = self.q.disk_stats();
        assert_eq!(stat, self.whole.stat(&stat), "{what}");
        assert_eq!(stat.flush_ios, self.flushes, "{what}");
        let ranges = self.q.range_stats();
        assert_eq!(ranges.len(), 3);
        for ((range, stat), count) in ranges.iter().zip(&self.ranges) {
            assert_eq!(*stat, DiskStats { flush_ios: 0, flush_ticks: 0, ..count.stat(stat) }, "{what} {}", range.name);
        }
        let merges = stat.read_merges + stat.write_merges + stat.discard_merges;
        assert_eq!(self.merges, merges > 0, "{what}: {stat}");
        let stats = self.q.counters();
        assert_eq!(self.merges && self.q.scheduler() != "none", stats.merges_insert > 0, "{what}: {stats:?}");
        assert!(stat.flush_ios > 0 && ranges.iter().all(|(_, stat)| stat.read_ios > 0), "{what}: {stat}");
    }
}

/// Red if a merge, an end, the time of a joined request, or a range is not counted, or counted twice.
#[test]
fn the_sums_are_those_of_a_naive_count() {
    let seed = first_seed();
    for case in 0..8 {
        for (scheduler, accounting, merges) in [
            ("mq-deadline", Accounting::PerThread, true),
            ("mq-deadline", Accounting::Shared, true),
            ("none", Accounting::PerThread, true),
            ("none", Accounting::Shared, false),
        ] {
            let what = format!("seed {seed} case {case}: {scheduler} {accounting:?} merges {merges}");
            let mut rig = Rig::new(Random(seed << 8 | case), scheduler, accounting, merges);
            rig.run(3000, false);
            rig.check_sums(&what);
        }
    }
}

/// Red if the end of a request asks the knob, and not the request, whether it was counted when it entered.
#[test]
fn a_switch_under_load_leaves_nothing_behind() {
    let seed = first_seed();
    for case in 0..8 {
        for accounting in [Accounting::PerThread, Accounting::Shared] {
            for merges in [false, true] {
                let mut rig = Rig::new(Random(seed << 8 | case), "mq-deadline", accounting, merges);
                rig.run(3000, true);
                let stat = rig.q.disk_stats();
                assert_eq!(stat.in_flight, 0, "seed {seed} case {case} {accounting:?} merges {merges}: {stat}");
                for (range, stat) in rig.q.range_stats() {
                    assert_eq!(stat.in_flight, 0, "seed {seed} case {case} {accounting:?}: {} {stat}", range.name);
                }
                if !merges {
                    // Reads and discards never go through the flush machine, so the count knows which were counted.
                    let count = rig.whole.stat(&stat);
                    assert_eq!((stat.read_ios, stat.read_sectors), (count.read_ios, count.read_sectors));
                    assert_eq!((stat.discard_ios, stat.discard_ticks), (count.discard_ios, count.discard_ticks));
                    assert!(stat.read_ios > 0 && stat.read_ios < rig.q.counters().completed);
                }
            }
        }
    }
}
