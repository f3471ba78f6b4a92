//! What a limiter does when a volume's ceiling falls to a quarter, and when it comes back: on virtual time, in one
//! thread, with a queue and two submitters.

use std::sync::Arc;

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Buffers, Client, Clock, Op, QueueError, RequestQueue, Submitter, Time, VirtualClock};
use blkmq_workbench::report::{Axis, Line, Lines, Unit};
use serde::Serialize;

use super::jump::Jump;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// The ceilings in operations a second, and when each begins, in nanoseconds.
const CEILINGS: [u64; 2] = [275_000, 275_000 / 4];
const JUMPS: [(u64, usize); 3] = [(0, 0), (5 * SECOND, 1), (10 * SECOND, 0)];
const END: u64 = 15 * SECOND;

/// How long a point of a curve stands for.
const STRETCH: u64 = 100 * MS;

/// How close to the ceiling is close enough, and for how long the limiter must stay so close.
const CLOSE: f64 = 0.05;
const STAYS: u64 = SECOND;

const WRITES: usize = 128;
const READ_EACH: u64 = SECOND / 500;

/// What happened in a stretch of time.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Stretch {
    pub(super) writes: u64,
    pub(super) slowest_read_ns: u64,
    /// The ceiling for writes of 4 KiB that the limiter had found at the end; 0 if none.
    pub(super) ceiling: u64,
}

/// The ceiling was set, and found.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Step {
    pub(super) at_ns: u64,
    pub(super) ceiling: u64,
    /// How long it took until the limiter knew the ceiling, and kept to it for a second.
    pub(super) found_after_ns: Option<u64>,
    /// By how much the worst stretch of the last two seconds before the next step differs from their mean.
    pub(super) unsteadiness: f64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Steps {
    pub(super) steps: Vec<Step>,
    stretch_ns: u64,
    pub(super) stretches: Vec<Stretch>,
}

/// A reader, and a writer that keeps its writes outstanding.
struct Load {
    q: RequestQueue,
    clock: VirtualClock,
    reader: Submitter,
    writer: Submitter,
    next_read: u64,
    seed: u64,
    spare: Vec<Buffer>,
    present: Stretch,
}

pub(super) fn measure() -> Result<Steps, QueueError> {
    let model = |iops: &u64| spec::open(&format!("cloud,iops={iops}")).expect("the model has this parameter");
    let jump = Arc::new(Jump::new(CEILINGS.iter().map(model).collect()));
    let clock = VirtualClock::new();
    let device: Arc<dyn blkmq::driver::Driver> = Arc::<Jump>::clone(&jump);
    let q = RequestQueue::builder(device)
        .clock(Clock::Virtual(clock.clone()))
        .scheduler("mq-deadline")
        .wbt_lat_usec(-1)
        .build()?;
    let (reader, writer) = (q.submitter(&Client::new("reader"))?, q.submitter(&Client::new("writer"))?);
    let spare = (0..=2 * WRITES).map(|_| Buffer::zeroed(4096)).collect();
    let mut load = Load { q, clock, reader, writer, next_read: 0, seed: 1, spare, present: Stretch::default() };
    let (mut stretches, mut jumps) = (Vec::new(), JUMPS.iter().peekable());
    while stretches.len() < (END / STRETCH) as usize {
        let end = (stretches.len() as u64 + 1) * STRETCH;
        if let Some((_, model)) = jumps.next_if(|(at, _)| at + STRETCH == end) {
            jump.set(*model);
        }
        stretches.push(load.run(end));
    }
    load.end();
    Ok(Steps { steps: steps(&stretches), stretch_ns: STRETCH, stretches })
}

impl Load {
    /// Runs until then.
    fn run(&mut self, end: u64) -> Stretch {
        self.present = Stretch::default();
        loop {
            self.turn();
            let now = self.clock.now();
            if now.0 >= end {
                break;
            }
            let events = [self.reader.next_wakeup(), self.writer.next_wakeup(), Some(Time(self.next_read))];
            let next = events.into_iter().flatten().min().unwrap_or(now);
            self.clock.advance_to(next.max(now.after(1)).min(Time(end)));
        }
        let limiter = self.q.limiter();
        self.present.ceiling = limiter.and_then(|info| info.limiter.ceiling(Op::Write, 8)).unwrap_or(0);
        self.present
    }

    /// Does all that is to be done now.
    fn turn(&mut self) {
        let now = self.clock.now().0;
        if self.next_read <= now {
            self.next_read += READ_EACH;
            let bio = Bio::read(self.place(), self.buffer());
            // A reader whose reads are all outstanding waits for its next turn.
            let _ = self.reader.submit(bio);
            self.reader.flush_plug();
        }
        while self.writer.nr_outstanding() < WRITES {
            let bio = Bio::write(self.place(), self.buffer());
            if self.writer.submit(bio).is_err() {
                break;
            }
        }
        self.writer.flush_plug();
        for submitter in [&mut self.reader, &mut self.writer] {
            submitter.poll();
        }
        let Self { reader, writer, spare, present, .. } = self;
        reader.reap_all(|completion| {
            let took = completion.completed.since(completion.submitted);
            present.slowest_read_ns = present.slowest_read_ns.max(took);
            keep(completion.bio.buffers, spare);
        });
        writer.reap_all(|completion| {
            present.writes += 1;
            keep(completion.bio.buffers, spare);
        });
    }

    fn buffer(&mut self) -> Buffer {
        self.spare.pop().unwrap_or_else(|| Buffer::zeroed(4096))
    }

    /// A block anywhere.
    fn place(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % (1 << 24) * 8
    }

    /// Takes back what is outstanding.
    fn end(mut self) {
        while self.reader.nr_outstanding() + self.writer.nr_outstanding() > 0 {
            let events = [self.reader.next_wakeup(), self.writer.next_wakeup()];
            let now = self.clock.now();
            let next = events.into_iter().flatten().min().unwrap_or(now);
            self.clock.advance_to(next.max(now.after(1)));
            for submitter in [&mut self.reader, &mut self.writer] {
                submitter.poll();
                submitter.reap_all(drop);
            }
        }
    }
}

/// Keeps a buffer for later.
fn keep(buffers: Buffers, spare: &mut Vec<Buffer>) {
    if let Buffers::One(buffer) = buffers {
        spare.push(buffer);
    }
}

/// How long the limiter took to find each ceiling.
fn steps(stretches: &[Stretch]) -> Vec<Step> {
    let ends = JUMPS.iter().skip(1).map(|(at, _)| *at).chain([END]);
    let step = |((at_ns, model), end): (&(u64, usize), u64)| {
        let ceiling = CEILINGS[*model];
        let part = &stretches[(at_ns / STRETCH) as usize..(end / STRETCH) as usize];
        let is_close = |stretch: &Stretch| (stretch.ceiling as f64 / ceiling as f64 - 1.0).abs() < CLOSE;
        let stays = part.windows((STAYS / STRETCH) as usize).position(|some| some.iter().all(is_close));
        let found_after_ns = stays.map(|at| (at as u64 + 1) * STRETCH);
        let last = &part[part.len() - (2 * SECOND / STRETCH) as usize..];
        let mean = last.iter().map(|stretch| stretch.writes).sum::<u64>() as f64 / last.len() as f64;
        let differs = |stretch: &Stretch| (stretch.writes as f64 / mean - 1.0).abs();
        let unsteadiness = last.iter().map(differs).fold(0.0, f64::max);
        Step { at_ns: *at_ns, ceiling, found_after_ns, unsteadiness }
    };
    JUMPS.iter().zip(ends).map(step).collect()
}

impl Steps {
    pub(super) fn words(&self) -> String {
        let step = |step: &Step| {
            let found = match step.found_after_ns {
                Some(ns) => format!("found within {:.1} s", ns as f64 / 1e9),
                None => "not found".to_owned(),
            };
            let (at, percent) = (step.at_ns as f64 / 1e9, 100.0 * step.unsteadiness);
            format!(
                "{at:>3.0} s: {:>7} operations/s, {found}, then steady within {percent:.1} % by 100 ms",
                step.ceiling
            )
        };
        let all: Vec<_> = self.steps.iter().map(step).collect();
        format!("The ceiling falls to a quarter, and comes back (mq-deadline, the limiter):\n{}", all.join("\n"))
    }

    /// The curves, with their titles.
    pub(super) fn lines(&self) -> [(&'static str, Lines); 2] {
        let seconds = |at: usize| (at as f64 + 0.5) * self.stretch_ns as f64 / 1e9;
        let curve = |name: &str, value: &dyn Fn(&Stretch) -> f64| Line {
            name: name.to_owned(),
            points: self.stretches.iter().enumerate().map(|(at, stretch)| (seconds(at), value(stretch))).collect(),
        };
        let per_second = |writes: u64| writes as f64 * 1e9 / self.stretch_ns as f64 / 1e3;
        let x = || Axis::linear("seconds", Unit::Number);
        let rates = Lines {
            x: x(),
            y: Axis::linear("thousand writes/s", Unit::Number),
            lines: vec![
                curve("writes", &|stretch| per_second(stretch.writes)),
                curve("the ceiling that the limiter has found", &|stretch| stretch.ceiling as f64 / 1e3),
            ],
        };
        let reads = Lines {
            x: x(),
            y: Axis::linear("slowest read, us", Unit::Number),
            lines: vec![curve("slowest read of each 100 ms", &|stretch| stretch.slowest_read_ns as f64 / 1e3)],
        };
        [("The ceiling falls to a quarter, and comes back: writes", rates), ("The same: reads", reads)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a ceiling is not found, or later than after 2 s, or the rate swings; or if a step is taken for found that
    /// was not.
    #[test]
    fn a_ceiling_that_falls_and_comes_back_is_found_and_kept_to() {
        let found = measure().expect("the model is good");
        assert_eq!(found.steps.len(), JUMPS.len());
        for step in &found.steps {
            let after = step.found_after_ns.expect("the ceiling was found");
            assert!(after <= 2 * SECOND, "{step:?}");
            assert!(step.unsteadiness <= 0.05, "{step:?}");
        }
        let none = vec![Stretch { writes: 1, slowest_read_ns: 0, ceiling: 0 }; found.stretches.len()];
        assert!(steps(&none).iter().all(|step| step.found_after_ns.is_none()));
    }
}
