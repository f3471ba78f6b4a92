//! What the machine that this runs on reaches with real threads, to hold the model against.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::driver::spec::open;
use blkmq::{Bio, Buffer, Client, Locking, RequestQueue, Submitter};

use crate::Way;

/// Sectors between requests: far enough apart that none merge.
const STRIDE: u64 = 64;

/// A load for this machine: threads that pass batches of reads through one queue, each when the one before is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeLoad {
    /// The device, as a spec.
    pub device: String,
    /// The scheduler, and how threads come to it.
    pub way: Way,
    /// The threads.
    pub threads: usize,
    /// Requests of a batch.
    pub batch: usize,
}

impl NativeLoad {
    /// Requests per second of all threads, over about so long.
    ///
    /// # Errors
    /// The queue cannot be built.
    pub fn measure(&self, length: Duration) -> Result<f64, String> {
        let Self { device, way, threads, batch } = self;
        let device = open(device).map_err(|error| format!("device {device}: {error}"))?;
        let locking: Locking = way.locking.parse().map_err(|error: blkmq::QueueError| error.to_string())?;
        let builder = RequestQueue::builder(device).scheduler(&*way.scheduler).locking(locking).bypass(way.bypass);
        let q = builder.build().map_err(|error| error.to_string())?;
        let submitters: Result<Vec<_>, _> = (0..*threads).map(|_| q.submitter(&Client::new("native"))).collect();
        let submitters = submitters.map_err(|error| error.to_string())?;
        let (is_over, begins) = (AtomicBool::new(false), Barrier::new(threads + 1));
        let rates = thread::scope(|scope| {
            let spawn = |submitter| scope.spawn(|| rate(submitter, *batch, &begins, &is_over));
            let workers: Vec<_> = submitters.into_iter().map(spawn).collect();
            begins.wait();
            thread::sleep(length);
            // Publishes nothing: a thread that sees it late only passes another batch.
            is_over.store(true, Ordering::Relaxed);
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect::<Vec<_>>()
        });
        Ok(rates.into_iter().sum())
    }
}

/// Passes batches through until it is over. Returns requests per second.
fn rate(mut submitter: Submitter, batch: usize, begins: &Barrier, is_over: &AtomicBool) -> f64 {
    let mut bios: VecDeque<_> = (0..batch as u64).map(|at| Bio::read(at * STRIDE, Buffer::zeroed(4096))).collect();
    pass_through(&mut submitter, &mut bios);
    begins.wait();
    let (begun, mut batches) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        pass_through(&mut submitter, &mut bios);
        batches += 1;
    }
    (batches * batch) as f64 / begun.elapsed().as_secs_f64()
}

/// Submits everything in `bios`, and puts the operations back there as they complete. A thread that finds nothing to do
/// sleeps, as those of the modelled load.
fn pass_through(submitter: &mut Submitter, bios: &mut VecDeque<Bio>) {
    let (_, rejected) = submitter.submit_batch(bios);
    assert!(rejected.is_none(), "{rejected:?}");
    loop {
        submitter.reap_all(|completion| {
            assert!(completion.status.is_ok(), "{}", completion.status);
            bios.push_back(completion.bio);
        });
        if submitter.nr_outstanding() == 0 {
            return;
        }
        if !submitter.poll() {
            submitter.wait();
        }
    }
}
