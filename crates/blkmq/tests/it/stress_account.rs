//! Many threads and one set of counts. Once all threads have ended, every number is exactly what was submitted. While
//! the load runs, no number decreases, nothing is in flight that was not submitted, and the queue was never busy for
//! longer than the time that has passed.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common::random::{Random, operations, seed};
use crate::common::watchdog::{Progress, Watchdog};
use blkmq::driver::spec;
use blkmq::{Accounting, Bio, Buffer, Client, DiskStats, RequestQueue, SectorRange, Submitter};

const THREADS: u64 = 4;
const SLOTS: u16 = 64;
/// Sectors of each thread. A range covers the sectors of one thread.
const OWN: u64 = 1 << 20;

/// Reads, writes and discards with their merges, and their sectors.
type Sums = [[u64; 2]; 3];

const fn sums_of(stat: &DiskStats) -> Sums {
    [
        [stat.read_ios + stat.read_merges, stat.read_sectors],
        [stat.write_ios + stat.write_merges, stat.write_sectors],
        [stat.discard_ios + stat.discard_merges, stat.discard_sectors],
    ]
}

/// Submits in runs that merge, and returns what it submitted.
fn work(submitter: &mut Submitter, thread: u64, mut random: Random, operations: u64, progress: &Progress) -> Sums {
    let mut sums = Sums::default();
    let mut sector = 0;
    let mut left = operations;
    while left > 0 {
        let length = 1 + random.below(16);
        sector = if random.one_in(3) { random.below(OWN - 64) } else { (sector + length) % (OWN - 64) };
        let at = thread * OWN + sector;
        let data = || Buffer::zeroed(length as usize * 512);
        let (group, bio) = match random.below(5) {
            0..=2 => (0, Bio::read(at, data())),
            3 => (1, Bio::write(at, data())),
            _ => (2, Bio::discard(at, length)),
        };
        if submitter.submit(bio).is_ok() {
            left -= 1;
            sums[group][0] += 1;
            sums[group][1] += length;
        } else {
            submitter.wait(1, None);
        }
        while submitter.reap().is_some() {
            progress.note();
        }
        if random.one_in(8) {
            submitter.poll();
        }
    }
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        while submitter.reap().is_some() {
            progress.note();
        }
    }
    sums
}

/// Looks at the numbers until the work is over.
fn look(q: &RequestQueue, began: Instant, is_over: &AtomicBool) {
    let mut last = DiskStats::default();
    while !is_over.load(Ordering::Relaxed) {
        let completed = q.counters().completed;
        let stat = q.disk_stats();
        let passed = began.elapsed().as_millis() as u64;
        // A request that came and went between the two sums of a look also counts as in flight, and a batch may be
        // counted as gone before it is counted as completed.
        let moved = q.counters().completed - completed;
        let most = 2 * THREADS * u64::from(SLOTS) + moved;
        assert!(stat.io_ticks <= passed + 1, "busy for longer than {passed} ms: {stat}");
        assert!(stat.in_flight <= most, "more than {most} in flight: {stat}");
        let mut grown = stat.fields().into_iter().zip(last.fields()).enumerate();
        assert!(grown.all(|(at, (now, before))| at == 8 || now >= before), "{last}\n{stat}");
        assert!(q.inflight().iter().sum::<u32>() <= (THREADS * u64::from(SLOTS)) as u32);
        last = stat;
        std::thread::yield_now();
    }
}

fn run(device: &str, scheduler: &str, accounting: Accounting, background: u16, random: &Random) {
    let what = format!("{device} {scheduler} {accounting:?} background {background}");
    eprintln!("{what}");
    let began = Instant::now();
    let range = |thread| SectorRange { name: format!("t{thread}"), first: thread * OWN, nr_sectors: OWN };
    let q: RequestQueue = RequestQueue::builder(spec::open(device).expect("the spec is good"))
        .scheduler(scheduler)
        .slots(SLOTS)
        .io_timeout_ms(u32::MAX)
        .accounting(accounting)
        .ranges((0..THREADS).map(range).collect())
        .build()
        .expect("the queue is good");
    let watchdog = Watchdog::new(&q);
    let threads = (background > 0).then(|| q.start_threads(background).expect("there are places"));
    let is_over = AtomicBool::new(false);
    let mut submitted = Vec::new();
    let progress = watchdog.progress();
    std::thread::scope(|scope| {
        let (q, is_over, progress) = (&q, &is_over, &progress);
        let workers = (0..THREADS).map(|thread| {
            let random = random.fork(thread);
            scope.spawn(move || {
                let mut submitter = q.submitter(&Client::new("one")).expect("there is a place");
                let sums = work(&mut submitter, thread, random, operations(20_000), progress);
                // A thread that has all its completions finds them counted, even if other threads completed them.
                let (_, stat) = &q.range_stats()[thread as usize];
                assert_eq!((sums_of(stat), stat.in_flight), (sums, 0), "thread {thread}: {stat}");
                sums
            })
        });
        let workers: Vec<_> = workers.collect();
        scope.spawn(move || look(q, began, is_over));
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        submitted
            .extend(results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))));
    });
    drop(threads);
    let mut whole = Sums::default();
    for sums in &submitted {
        whole.iter_mut().flatten().zip(sums.as_flattened()).for_each(|(whole, sum)| *whole += sum);
    }
    let stat = q.disk_stats();
    assert_eq!((sums_of(&stat), stat.in_flight), (whole, 0), "{what}: {stat}");
    assert_eq!(stat.write_sectors, q.range_stats().iter().map(|(_, stat)| stat.write_sectors).sum::<u64>(), "{what}");
    assert!(stat.read_merges > 0, "{what}: {stat}");
}

/// Red if two threads write one thread's sums, or if requests are counted only after they were handed to other threads.
#[test]
fn at_quiet_the_numbers_are_those_of_what_was_submitted() {
    let random = Random::new(seed());
    for device in [
        "null,irqmode=0,memory_backed=1,discard=1,size=4G",
        "null,irqmode=1,memory_backed=1,discard=1,size=4G,hw_queue_depth=8",
        "null,irqmode=2,completion_nsec=2000,memory_backed=1,discard=1,size=4G,submit_queues=2,hw_queue_depth=4",
    ] {
        for scheduler in blkmq::scheduler_names() {
            run(device, scheduler, Accounting::PerThread, 0, &random);
            run(device, scheduler, Accounting::Shared, 2, &random);
            run(device, scheduler, Accounting::PerThread, 2, &random);
        }
    }
}
