//! A program that brings a scheduler of its own to the bench, and judges it against mq-deadline on the model of a hard
//! disk, in virtual time: `cargo run --release -p blkmq-workbench --example own_scheduler`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq::sched::{DispatchContext, Info, InsertAt, RqId, Scheduler, Time};
use blkmq_workbench::bench::{Bench, ClockKind, SchedulerSource, Setup};
use blkmq_workbench::compare::{self, Variant};
use blkmq_workbench::{JobFile, Mode, System};

/// The request that is nearest to where the last one ended, wherever that is: the most requests a second, and no
/// promise to the one that is far away.
#[derive(Debug, Default)]
pub(crate) struct ShortestSeek {
    /// What waits, by first sector.
    waiting: Vec<(u64, RqId, u64)>,
    /// What goes before everything else, the next one last.
    ahead: Vec<RqId>,
    /// The sector behind the request that was chosen last.
    head: u64,
}

impl Scheduler for ShortestSeek {
    fn name(&self) -> &'static str {
        "shortest-seek"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
        self.ahead.reserve(capacity.saturating_sub(self.ahead.len()));
    }

    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, _now: Time) {
        match at {
            InsertAt::Head => self.ahead.push(rq),
            // This moves what is behind the place, which is quick for some hundred requests. For more, take a tree.
            InsertAt::Sorted => {
                let place = self.waiting.partition_point(|(sector, ..)| *sector <= info.sector);
                self.waiting.insert(place, (info.sector, rq, info.end()));
            }
        }
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        if let Some(rq) = self.ahead.pop() {
            return Some(rq);
        }
        let above = self.waiting.partition_point(|(sector, ..)| *sector < self.head);
        let distance = |at: usize| self.waiting.get(at).map(|(sector, ..)| sector.abs_diff(self.head));
        let below = above.checked_sub(1);
        let at = match (below.and_then(distance), distance(above)) {
            (Some(down), Some(up)) if down < up => above - 1,
            (Some(_), None) => above - 1,
            (_, Some(_)) => above,
            (None, None) => return None,
        };
        let (_, rq, end) = self.waiting.remove(at);
        self.head = end;
        Some(rq)
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.ahead.len()
    }
}

/// Reads at random places of the disk, 128 at a time.
const JOB: &str = "[reader]\nrw=randread\nbs=4k\nsize=100%\nioengine=libaio\niodepth=128\n";

/// A disk that does one request at a time, so that it leaves the order to the scheduler.
const DEVICE: &str = "hdd,hw_queue_depth=1";

/// What a scheduler makes of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Judged {
    /// Reads a second.
    pub(crate) rate: f64,
    /// The latency that 99 of 100 reads did not exceed, in nanoseconds.
    pub(crate) p99_ns: f64,
}

/// Runs the load once with each scheduler, for a minute of virtual time. Every run gives the same numbers.
pub(crate) fn judge(schedulers: [SchedulerSource; 2]) -> Result<[Judged; 2], Box<dyn std::error::Error>> {
    let jobs = JobFile::parse("reader", JOB, &[], Mode::Strict, &System)?.jobs;
    let mut variants = Vec::new();
    for scheduler in schedulers {
        let setup = Setup { scheduler: Some(scheduler), clock: ClockKind::Virtual, ..Setup::new(DEVICE) };
        let bench = Bench::new(&jobs, &setup)?;
        variants.push(Variant::new(bench.queue().scheduler(), &jobs, bench));
    }
    compare::once(&mut variants, Duration::from_secs(60), &Arc::new(AtomicBool::new(false)), &mut || ())?;
    let judged = [0, 1].map(|at| {
        let [reader] = variants[at].jobs() else { panic!("the file has one job") };
        Judged { rate: reader.rates[0], p99_ns: reader.p99_ns[0] }
    });
    Ok(judged)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = SchedulerSource::own(|| Box::new(ShortestSeek::default()));
    let [linux, own] = judge(["mq-deadline".into(), own])?;
    for (name, Judged { rate, p99_ns }) in [("mq-deadline", linux), ("shortest-seek", own)] {
        println!("{name:<14} {rate:>6.1} reads/s   p99 {:>8.1} ms", p99_ns / 1e6);
    }
    println!("The shortest seek does {:.2} times as many reads.", own.rate / linux.rate);
    assert!(own.rate > linux.rate, "the shortest seek is what this order is for");
    Ok(())
}
