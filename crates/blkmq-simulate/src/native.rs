//! What the machine that this runs on reaches with real threads, to hold the model against.
//!
//! The threads make the calls that those of the modelled load make (`load::Worker`), and go to the same sectors.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::driver::spec::open;
use blkmq::{Bio, Buffer, Buffers, Client, Flags, Locking, RequestQueue, Submitter};
use blkmq_virtual::Op;

use crate::load::{AccessPattern, LONGEST_NS};
use crate::pace::{InFlight, Pace, Paced};
use crate::point::Chance;
use crate::{Load, Way};

/// A load for this machine: the threads of a job that reads, on one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeLoad {
    /// The device, as a spec.
    pub device: String,
    /// The scheduler, and how threads come to it.
    pub way: Way,
    /// The threads.
    pub threads: usize,
    /// What each thread does.
    pub load: Load,
    /// The number from which the sectors follow, as in a [`Setting`](crate::Setting).
    pub seed: u64,
}

impl NativeLoad {
    /// Requests per second of all threads together. The measurement takes about `length`.
    ///
    /// # Errors
    /// The queue cannot be built, the load has operations that are no reads, the load does not fit the device, or the
    /// device fails an operation.
    pub fn measure(&self, length: Duration) -> Result<f64, String> {
        let Self { device, way, threads, load, .. } = self;
        if !load.only_reads() {
            return Err("a load that is measured has reads only".to_owned());
        }
        // The model's device of this spec has the same size, and takes the same operations.
        let limits = blkmq_virtual::driver::spec::open(device).map_err(|error| format!("device {device}: {error}"))?;
        load.fits(*threads, &limits.limits())?;
        let device = open(device).map_err(|error| format!("device {device}: {error}"))?;
        let locking: Locking = way.locking.parse().map_err(|error: blkmq::QueueError| error.to_string())?;
        let builder = RequestQueue::builder(device)
            .scheduler(&*way.scheduler)
            .locking(locking)
            .bypass(way.bypass)
            .slots(load.slots());
        let q = builder.build().map_err(|error| error.to_string())?;
        let patterns = self.patterns(q.limits().size_bytes());
        let join = |pattern| Ok((q.submitter(&Client::new("native"))?, pattern));
        let submitters: Result<Vec<_>, blkmq::QueueError> = patterns.map(join).collect();
        let submitters = submitters.map_err(|error| error.to_string())?;
        let (is_over, begins) = (AtomicBool::new(false), Barrier::new(threads + 1));
        let rates = thread::scope(|scope| {
            let spawn = |(submitter, pattern)| {
                let mut worker = Worker::new(load, submitter, pattern, &is_over);
                let begins = &begins;
                scope.spawn(move || worker.rate(begins))
            };
            let workers: Vec<_> = submitters.into_iter().map(spawn).collect();
            begins.wait();
            thread::sleep(length);
            // Publishes nothing: a thread that sees it late only goes round once more.
            is_over.store(true, Ordering::Relaxed);
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect::<Vec<_>>()
        });
        rates.into_iter().sum()
    }

    /// Where the operations of each thread go: as in a modelled run of this seed.
    fn patterns(&self, capacity: u64) -> impl Iterator<Item = AccessPattern> {
        let chances = Chance::of_threads(self.seed, self.threads, 1).enumerate();
        chances.map(move |(thread, Chance { mut by_device, .. })| {
            let mut pattern = self.load.pattern(thread as u64, capacity, by_device.remove(0));
            // The modelled thread draws this, and waits for so long.
            _ = pattern.lateness();
            pattern
        })
    }
}

/// A thread of a load.
struct Worker<'l> {
    load: &'l Load,
    submitter: Submitter,
    pattern: AccessPattern,
    is_over: &'l AtomicBool,
    buffers: Vec<Buffer>,
    in_flight: InFlight,
    done: u64,
    failed: Option<String>,
}

impl<'l> Worker<'l> {
    fn new(load: &'l Load, submitter: Submitter, pattern: AccessPattern, is_over: &'l AtomicBool) -> Self {
        let buffers = (0..load.pace.depth).map(|_| Buffer::zeroed(load.bytes())).collect();
        Self { load, submitter, pattern, is_over, buffers, in_flight: InFlight::default(), done: 0, failed: None }
    }

    /// Goes round until it is over. Returns requests per second.
    fn rate(&mut self, begins: &Barrier) -> Result<f64, String> {
        self.go_round(|| ());
        begins.wait();
        let (begun, before) = (Instant::now(), self.done);
        while !self.is_over.load(Ordering::Relaxed) {
            self.go_round(|| ());
        }
        let (done, elapsed) = (self.done - before, begun.elapsed());
        self.take_all();
        self.failed.take().map_or(Ok(done as f64 / elapsed.as_secs_f64()), Err)
    }
}

impl Paced for Worker<'_> {
    fn pace(&self) -> Pace {
        self.load.pace
    }

    fn in_flight(&mut self) -> &mut InFlight {
        &mut self.in_flight
    }

    fn submit_one(&mut self) {
        let (op, sector) = self.pattern.next();
        assert_eq!(op, Op::Read, "the load has reads only");
        let buffer = self.buffers.pop().expect("there is one for each operation");
        let flags = Flags { polled: self.load.is_polled(), ..Flags::NONE };
        let bio = Bio { flags, ..Bio::read(sector, buffer) };
        self.submitter.submit(bio).expect("there are slots, and the device takes such operations");
    }

    fn flush_plug(&mut self) {
        self.submitter.flush_plug();
    }

    fn reap(&mut self) -> bool {
        let Some(done) = self.submitter.reap() else { return false };
        self.done += 1;
        if !done.status.is_ok() {
            _ = self.failed.get_or_insert_with(|| format!("an operation of the load failed: {}", done.status));
        }
        if let Buffers::One(buffer) = done.bio.buffers {
            self.buffers.push(buffer);
        }
        true
    }

    fn poll(&mut self) -> bool {
        self.submitter.poll()
    }

    fn wait(&mut self, for_all: bool) {
        let until = self.submitter.queue().clock().now().after(LONGEST_NS);
        self.submitter.wait(if for_all { usize::MAX } else { 1 }, Some(until));
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(operations: &str) -> NativeLoad {
        let way = Way { scheduler: "mq-deadline".to_owned(), locking: "combining".to_owned(), bypass: false };
        let device = "null,irqmode=0,poll_queues=0,submit_queues=2".to_owned();
        NativeLoad { device, way, threads: 2, load: Load::closed_loop(operations, 4, 4), seed: 1 }
    }

    /// Red if two threads go to the same sectors, as if a job of random reads were none, or if another seed does not
    /// lead elsewhere.
    #[test]
    fn each_thread_goes_to_sectors_of_its_own_by_chance() {
        let some = |load: &NativeLoad| {
            let patterns = load.patterns(1 << 30);
            patterns.map(|mut pattern| std::array::from_fn(|_| pattern.next().1)).collect::<Vec<[u64; 8]>>()
        };
        let load = load("rw=randread\nbs=4k");
        let [first, second] = some(&load).try_into().expect("there are two threads");
        assert!(first != second && first.is_sorted() == second.is_sorted() && !first.is_sorted());
        assert_eq!(some(&load), [first, second]);
        assert_ne!(some(&NativeLoad { seed: 2, ..load }), [first, second]);
    }

    /// Red if nothing is done, or if what cannot be measured panics or gets a rate.
    #[test]
    fn a_load_is_measured_or_refused() {
        let length = Duration::from_millis(10);
        let rate = load("rw=randread\nbs=4k").measure(length).expect("it can be run");
        assert!(rate > 100.0, "{rate}");
        let refused = |load: NativeLoad| load.measure(length).expect_err("it cannot be run");
        assert!(refused(load("rw=randwrite\nbs=4k")).contains("reads only"));
        let bad = "null,irqmode=0,badblocks=0-999999999".to_owned();
        let said = refused(NativeLoad { device: bad, ..load("rw=randread\nbs=4k") });
        assert!(said.contains("an operation of the load failed"), "{said}");
        let far = load("rw=randread\nbs=4k\noffset_increment=300g");
        assert!(refused(far).contains("the area of thread 2"));
    }
}
