//! What each stage of a request's way takes on this machine, on one thread, beside a device that does nothing. Built
//! with `--cfg stages`; `scripts/stages` does that. Prints a line for each scheduler and stage: picoseconds for a
//! batch, and for each request of it.

#[cfg(stages)]
mod passing;

fn main() {
    #[cfg(not(stages))]
    println!("stages: this build measures nothing; scripts/stages makes and runs one that does, with --cfg stages");
    #[cfg(stages)]
    measured::print();
}

#[cfg(stages)]
mod measured {
    use std::collections::BTreeMap;
    use std::hint::black_box;
    use std::time::Instant;

    use blkmq::driver::spec;
    use blkmq::{Client, Locking, RequestQueue};
    use blkmq_sync::{Stage, take_stages};

    use crate::passing::{pass_through, reads};

    /// Requests of a run.
    const REQUESTS: usize = 200_000;
    /// Runs, of which the median counts.
    const RUNS: usize = 15;
    /// The lengths of batches from which the two parts of a cost are found.
    const BATCHES: [usize; 2] = [1, 32];
    /// Every way past a scheduler that one thread can take. The holder of a combining lock hands requests through, so
    /// that only a batch is put in and chosen together.
    fn ways() -> Vec<(&'static str, &'static str, bool)> {
        let mut ways = vec![("none", "single", false)];
        for scheduler in ["mq-deadline", "bfq", "kyber"] {
            ways.extend(
                [("single", false), ("batch", false), ("combining", false), ("combining", true)]
                    .map(|(locking, bypass)| (scheduler, locking, bypass)),
            );
        }
        ways
    }

    /// A median of what reading the clock takes, in picoseconds: each stage has one reading in it.
    fn clock_ps() -> f64 {
        let mut readings: Vec<f64> = (0..RUNS)
            .map(|_| {
                let begun = Instant::now();
                (0..100_000).for_each(|_| _ = black_box(Instant::now()));
                begun.elapsed().as_nanos() as f64 / 100.0
            })
            .collect();
        median(&mut readings)
    }

    fn median(values: &mut [f64]) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    /// For each stage that a way has: the time of a batch of so many requests, in picoseconds.
    fn measure(way: (&str, &str, bool), batch: usize, clock: f64) -> BTreeMap<Stage, Vec<f64>> {
        let (scheduler, locking, bypass) = way;
        let driver = spec::open("null,irqmode=0,poll_queues=0").expect("it is a device");
        let locking: Locking = locking.parse().expect("it is a locking");
        let builder = RequestQueue::builder(driver).scheduler(scheduler).locking(locking).bypass(bypass);
        let q = builder.build().expect("it is a queue");
        let mut submitter = q.submitter(&Client::new("stages")).expect("there is a place");
        let mut bios = reads(batch);
        let _ = take_stages();
        for _ in 0..REQUESTS / batch {
            pass_through(&mut submitter, &mut bios);
        }
        let mut times = BTreeMap::new();
        for (stage, (time, batches, requests)) in Stage::ALL.into_iter().zip(take_stages()) {
            // What a few requests did at the start is no stage of this way.
            if requests > REQUESTS as u64 / 2 {
                let took = time.as_nanos() as f64 * 1000.0 - clock * batches as f64;
                times.entry(stage).or_insert_with(Vec::new).push(took / requests as f64 * batch as f64);
            }
        }
        times
    }

    pub(super) fn print() {
        let clock = clock_ps();
        eprintln!("reading the clock takes {:.1} ns", clock / 1000.0);
        println!("scheduler locking bypass stage batch_ps request_ps");
        for way in ways() {
            let mut times = [BTreeMap::new(), BTreeMap::new()];
            for _ in 0..RUNS {
                for (times, batch) in times.iter_mut().zip(BATCHES) {
                    for (stage, mut took) in measure(way, batch, clock) {
                        times.entry(stage).or_insert_with(Vec::new).append(&mut took);
                    }
                }
            }
            let [one, many] = times;
            for (stage, mut one) in one {
                let one = median(&mut one);
                let many = many.get(&stage).cloned().map_or(one, |mut many| median(&mut many));
                let request = (many - one) / (BATCHES[1] - BATCHES[0]) as f64;
                let (scheduler, locking, bypass) = way;
                println!("{scheduler} {locking} {bypass} {} {:.0} {request:.0}", stage.name(), one - request);
            }
        }
    }
}
