//! Jobs as fio runs them, on a virtual clock and in one thread. Each job keeps a number of operations outstanding, and
//! passes on each operation by itself.
#![allow(dead_code, reason = "each test uses some of it")]

use crate::device::{open, virtual_queue};
use blkmq::{Bio, Buffer, Builder, Client, RequestQueue, Submitter, Time, VirtualClock};

/// A job: what it asks for next, and how many operations it keeps outstanding.
pub(crate) struct Job {
    submitter: Submitter,
    next: Box<dyn FnMut(Buffer) -> Bio>,
    iodepth: usize,
    bytes: usize,
    spare: Vec<Buffer>,
    pub(crate) completed: u64,
    /// Nanoseconds from submission to completion, for operations that completed since the statistics began.
    pub(crate) latencies: Vec<u64>,
}

pub(crate) struct Rig {
    pub(crate) q: RequestQueue,
    clock: VirtualClock,
    /// Nanoseconds between two looks at the queue, at least.
    pub(crate) tick: u64,
    pub(crate) jobs: Vec<Job>,
}

impl Rig {
    pub(crate) fn new(device: &str, scheduler: &str) -> Self {
        Self::with(device, |q| q.scheduler(scheduler))
    }

    /// As `new`, with more settings of the queue.
    pub(crate) fn with(device: &str, say: impl FnOnce(Builder) -> Builder) -> Self {
        let (q, clock) = virtual_queue(open(device), say);
        Self { q, clock, tick: 1, jobs: Vec::new() }
    }

    /// Adds a job that keeps `iodepth` operations of `bytes` bytes outstanding.
    pub(crate) fn job(&mut self, iodepth: usize, bytes: usize, next: impl FnMut(Buffer) -> Bio + 'static) {
        let submitter =
            self.q.submitter(&Client::new(format!("job {}", self.jobs.len()))).expect("there is room for the jobs");
        let (spare, latencies) = (Vec::new(), Vec::new());
        self.jobs.push(Job { submitter, next: Box::new(next), iodepth, bytes, spare, completed: 0, latencies });
    }

    /// Adds the writers of `merge-64x32`: 64, each sequential in 1 GiB of its own, 2 GiB apart.
    pub(crate) fn sequential_writers(&mut self, iodepth: usize, bytes: u64) {
        const GIB: u64 = 1 << 30;
        for writer in 0..64 {
            let mut at = 0;
            self.job(iodepth, bytes as usize, move |buffer| {
                let sector = (writer * 2 * GIB + at) / 512;
                at = if at + 2 * bytes <= GIB { at + bytes } else { 0 };
                Bio::write(sector, buffer)
            });
        }
    }

    /// The operations of all jobs that completed since the statistics began.
    pub(crate) fn completed(&self) -> u64 {
        self.jobs.iter().map(|job| job.completed).sum()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Runs all jobs for `ns` nanoseconds, and forgets what was counted before.
    pub(crate) fn run(&mut self, ns: u64) {
        let end = self.now().after(ns);
        for job in &mut self.jobs {
            job.completed = 0;
            job.latencies.clear();
        }
        while self.now() < end {
            let mut moved = false;
            for job in &mut self.jobs {
                moved |= job.submit();
                job.submitter.poll();
                moved |= job.reap();
            }
            if !moved {
                let wakeups = self.jobs.iter().filter_map(|job| job.submitter.next_wakeup());
                let next = wakeups.min().expect("something is outstanding");
                assert!(next < Time(u64::MAX), "nothing will ever happen: {}", self.q.dump());
                self.clock.advance_to(next.max(self.now().after(self.tick)).min(end));
            }
        }
    }
}

impl Job {
    fn submit(&mut self) -> bool {
        let mut moved = false;
        while self.submitter.nr_outstanding() < self.iodepth {
            let buffer = self.spare.pop().unwrap_or_else(|| Buffer::zeroed(self.bytes));
            self.submitter.submit((self.next)(buffer)).expect("there are slots for the depth");
            self.submitter.flush_plug();
            moved = true;
        }
        moved
    }

    fn reap(&mut self) -> bool {
        let mut moved = false;
        while let Some(done) = self.submitter.reap() {
            assert!(done.status.is_ok(), "{:?}", done.status);
            self.completed += 1;
            self.latencies.push(done.completed.since(done.submitted));
            if let blkmq::Buffers::One(buffer) = done.bio.buffers {
                self.spare.push(buffer);
            }
            moved = true;
        }
        moved
    }

    /// The latency that `share` of a thousand operations do not exceed.
    pub(crate) fn per_mille(&mut self, share: usize) -> u64 {
        self.latencies.sort_unstable();
        self.latencies[(self.latencies.len() * share / 1000).min(self.latencies.len() - 1)]
    }
}
