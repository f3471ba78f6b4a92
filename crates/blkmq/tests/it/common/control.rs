//! Control operations at random, and a whole run: submitters, threads that disturb them, and the checks at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use blkmq::driver::Topology;
use blkmq::{Change, Locking, QueueError, RequestQueue, SectorRange, Status};

use super::assert_balanced;
use super::random::Random;
use super::watchdog::Watchdog;
use super::worker::{Counts, Load, Worker};

/// Begins a change of a random kind.
pub(crate) fn begin(q: &RequestQueue, random: &mut Random) -> Change {
    match random.below(6) {
        4 => q.change_knob("locking", random.pick(&Locking::ALL).name()),
        5 => q.change_knob("bypass", if random.one_in(2) { "1" } else { "0" }),
        0 => q.change_ranges(ranges(random)),
        1 => q.change_scheduler(random.pick(&blkmq::scheduler_names())),
        2 => {
            let most = random.pick(&[4, 64]);
            q.change_knob("nr_requests", &(1 + random.below(most)).to_string())
        }
        _ => q.change_topology(topology(random)),
    }
    .expect("the change is in range")
}

/// Up to three ranges, at the front of the device, where the load is.
fn ranges(random: &mut Random) -> Vec<SectorRange> {
    let mut first = random.below(100);
    let mut range = |name: &str| {
        first += random.below(300);
        let nr_sectors = 1 + random.below(1000);
        let range = SectorRange { name: name.to_owned(), first, nr_sectors };
        first += nr_sectors;
        range
    };
    let all = ["p1", "p2", "p3"].map(&mut range);
    let nr_ranges = random.below(4) as usize;
    all.into_iter().take(nr_ranges).collect()
}

pub(crate) fn topology(random: &mut Random) -> Topology {
    let mut number = |least, bound| (least + random.below(bound)) as u16;
    Topology { default_queues: number(1, 6), read_queues: number(0, 3), poll_queues: number(0, 3), depth: 1 }
}

/// Makes a change from a thread without a submitter. Without a scheduler `nr_requests` ends at the depth, and with
/// kyber the locking is not `staged`.
pub(crate) fn change(q: &RequestQueue, random: &mut Random) {
    match begin(q, random).wait() {
        Ok(()) => {}
        Err(QueueError::AboveDepth { nr_requests, depth }) => assert!(nr_requests > u32::from(depth)),
        Err(QueueError::OrdersWhole { locking, scheduler }) => {
            assert_eq!((locking, scheduler), ("staged", "kyber"));
        }
        Err(error) => panic!("{error}"),
    }
}

/// Freezes, and checks that the queue is drained: every tag is back, and everything that entered has completed.
pub(crate) fn freeze(q: &RequestQueue, random: &mut Random) {
    let mut freeze = q.freeze();
    if random.one_in(4) {
        // The freeze ends before the queue has drained.
        return drop(freeze);
    }
    freeze.wait();
    assert_balanced(q);
    pause(random);
    assert_balanced(q);
}

/// Quiesces, and checks that the driver gets nothing.
pub(crate) fn quiesce(q: &RequestQueue, random: &mut Random) {
    let quiesce = q.quiesce();
    let issued = q.counters().issued;
    pause(random);
    assert_eq!(q.counters().issued, issued, "the driver got requests of a quiesced queue");
    drop(quiesce);
}

/// Switches the statistics, or sets a knob of the present scheduler, if there is one.
pub(crate) fn set_knob(q: &RequestQueue, random: &mut Random) {
    if random.one_in(2) {
        let value = if random.one_in(2) { "0" } else { "1" };
        return q.set_knob("iostats", value).expect("the knob is there");
    }
    let (name, value) = random.pick(&[
        ("read_expire", 0),
        ("read_expire", 500),
        ("write_expire", 0),
        ("write_expire", 5000),
        ("writes_starved", 0),
        ("writes_starved", 7),
        ("front_merges", 0),
        ("front_merges", 1),
        ("async_depth", 1),
        ("async_depth", 3),
        ("async_depth", 1000),
        ("fifo_batch", 0),
        ("fifo_batch", 16),
        ("prio_aging_expire", 0),
        ("prio_aging_expire", 1),
        ("prio_aging_expire", 10000),
        ("read_lat_nsec", 1),
        ("read_lat_nsec", 2_000_000),
        ("write_lat_nsec", 1),
        ("write_lat_nsec", 10_000_000),
    ]);
    match q.set_knob(&format!("iosched/{name}"), &value.to_string()) {
        Ok(()) | Err(QueueError::UnknownKnob { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn pause(random: &mut Random) {
    match random.below(4) {
        0 => {}
        1 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(random.below(300))),
    }
}

/// One random control operation.
pub(crate) fn disturb(q: &RequestQueue, random: &mut Random) {
    match random.below(8) {
        0 | 1 => change(q, random),
        2 => freeze(q, random),
        3 | 4 => quiesce(q, random),
        5 => set_knob(q, random),
        6 => {
            // Nested, and ended in another order than the nesting.
            let outer = q.freeze();
            let inner = begin(q, random);
            drop(outer);
            pause(random);
            drop(inner);
        }
        _ => {
            let _ = (q.counters(), q.busy_tags(), q.scheduler(), q.disk_stats(), q.range_stats(), q.inflight());
        }
    }
}

/// How a run is disturbed.
pub(crate) type Disturb = fn(&RequestQueue, &mut Random);

impl Load {
    /// Submitters of a usual mixture on a device without data or faults.
    pub(crate) fn new(q: &RequestQueue, operations: u64) -> Self {
        Self {
            q: q.clone(),
            nr_threads: 8,
            budget: AtomicU64::new(operations),
            has_data: false,
            failures: Vec::new(),
            most_sectors: 40,
            leaves: 0,
            changes: 0,
            sleeps: 50,
        }
    }

    pub(crate) fn with_failures(self, failures: &[Status]) -> Self {
        Self { failures: failures.to_vec(), ..self }
    }

    /// Runs the load beside `nr_disturbers` threads that call `disturb` again and again. Checks that everything came
    /// back and the counts balance.
    pub(crate) fn run(self, random: &Random, nr_disturbers: u64, disturb: Disturb) -> Counts {
        let load = Arc::new(self);
        let watchdog = Watchdog::new(&load.q);
        let is_over = AtomicBool::new(false);
        let mut counts = Counts::default();
        std::thread::scope(|scope| {
            let workers = (0..load.nr_threads).map(|thread| {
                let worker = Worker::new(Arc::clone(&load), thread, random.fork(thread), watchdog.progress());
                scope.spawn(move || worker.run())
            });
            let workers: Vec<_> = workers.collect();
            for number in 0..nr_disturbers {
                let mut random = random.fork(1000 + number);
                let (q, is_over) = (&load.q, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        disturb(q, &mut random);
                        pause(&mut random);
                    }
                });
            }
            let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::Relaxed);
            for result in results {
                counts.add(&result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
        load.check(&counts);
        counts
    }

    fn check(&self, counts: &Counts) {
        assert_balanced(&self.q);
        let stats = self.q.counters();
        let possible = counts.parts..=counts.parts + counts.unsure_parts;
        assert!(possible.contains(&stats.entered), "{} entered, not {possible:?}: {stats:?}", stats.entered);
        assert!(stats.errors >= counts.failed(), "{counts:?} {stats:?}");
        if counts.unsure_parts == 0 && counts.split == 0 {
            assert_eq!(stats.errors, counts.failed(), "{counts:?} {stats:?}");
        }
        let completed: u64 = counts.by_status.values().sum();
        assert!(completed + counts.gone <= counts.submitted);
        if self.leaves == 0 {
            assert_eq!(completed, counts.submitted);
        }
    }
}
