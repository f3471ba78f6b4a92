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
    use blkmq::{Client, RequestQueue};
    use blkmq_sync::{Stage, take_stages};

    use crate::passing::{pass_through, reads};

    /// Requests of a run. A run is shorter than the time for which another program has the processor.
    const REQUESTS: usize = 4096;
    /// Runs.
    const RUNS: usize = 400;
    /// The part of the runs that may be faster than what is printed. Where nothing else runs, it makes no difference;
    /// elsewhere most runs are disturbed, and a run that is not disturbed is among the fastest.
    const FASTER: f64 = 0.1;
    /// The lengths of batches from which the two parts of a cost are found.
    const BATCHES: [usize; 2] = [1, 32];
    /// The locking `combining` where a thread leaves all its requests, as if another thread were at the scheduler, and
    /// takes them over itself when it polls.
    const LEAVING: &str = "leaving";

    /// Every way past a scheduler that one thread can take. The holder of a combining lock hands requests through, so
    /// that only a batch is put in and chosen together.
    fn ways() -> Vec<(&'static str, &'static str, bool)> {
        let mut ways = vec![("none", "single", false)];
        for scheduler in blkmq::scheduler_names().into_iter().skip(1) {
            // A scheduler of which each hardware queue has its own has no buckets.
            let is_per_hctx = blkmq::sched::Description::named(scheduler).is_some_and(|known| known.is_per_hctx());
            let staged = (!is_per_hctx).then_some("staged");
            for locking in ["single", "batch", "combining"].into_iter().chain(staged) {
                ways.extend([false, true].map(|bypass| (scheduler, locking, bypass)));
            }
            ways.push((scheduler, LEAVING, false));
        }
        ways
    }

    /// What reading the clock takes, in picoseconds: each stage has one reading in it.
    fn clock_ps() -> f64 {
        let mut readings: Vec<f64> = (0..RUNS)
            .map(|_| {
                let begun = Instant::now();
                (0..100_000).for_each(|_| _ = black_box(Instant::now()));
                begun.elapsed().as_nanos() as f64 / 100.0
            })
            .collect();
        quantile(&mut readings, FASTER)
    }

    /// The value than which a part of the values is less.
    fn quantile(values: &mut [f64], part: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        values[((values.len() - 1) as f64 * part) as usize]
    }

    /// For each stage that a way has: the time of a batch of so many requests, in picoseconds.
    fn measure(way: (&str, &str, bool), batch: usize, clock: f64) -> BTreeMap<Stage, f64> {
        let (scheduler, locking, bypass) = way;
        let driver = spec::open("null,irqmode=0,poll_queues=0").expect("it is a device");
        let leaves = locking == LEAVING;
        let locking = if leaves { "combining" } else { locking };
        let locking = locking.parse().expect("it is a locking");
        let builder = RequestQueue::builder(driver).scheduler(scheduler).locking(locking).bypass(bypass);
        let builder = if leaves { builder.stage_all() } else { builder };
        let q = builder.build().expect("it is a queue");
        let mut submitter = q.submitter(&Client::new("stages")).expect("there is a place");
        let mut bios = reads(batch);
        let mut pass = |requests: usize| {
            for _ in 0..requests / batch {
                pass_through(&mut submitter, &mut bios);
                submitter.poll();
            }
        };
        pass(REQUESTS / 4);
        let _ = take_stages();
        pass(REQUESTS);
        let mut times = BTreeMap::new();
        for (stage, (time, batches, requests)) in Stage::ALL.into_iter().zip(take_stages()) {
            // What a few requests did at the start is no stage of this way. A look is for one thing, not for a request.
            let (least, many) = if stage == Stage::Look { (REQUESTS / batch / 2, 1) } else { (REQUESTS / 2, batch) };
            if requests > least as u64 {
                let took = time.as_nanos() as f64 * 1000.0 - clock * batches as f64;
                times.insert(stage, took / requests as f64 * many as f64);
            }
        }
        times
    }

    pub(super) fn print() {
        let clock = clock_ps();
        eprintln!("reading the clock takes {:.1} ns", clock / 1000.0);
        let ways = ways();
        // In turns, so that what disturbs the machine for a while disturbs a few runs of each way.
        let mut found: BTreeMap<(usize, Stage), [Vec<f64>; 2]> = BTreeMap::new();
        for _ in 0..RUNS {
            for (number, way) in ways.iter().enumerate() {
                for (at, batch) in BATCHES.into_iter().enumerate() {
                    for (stage, took) in measure(*way, batch, clock) {
                        found.entry((number, stage)).or_default()[at].push(took);
                    }
                }
            }
        }
        println!("scheduler locking bypass stage batch_ps request_ps");
        let mut spreads = Vec::new();
        for ((number, stage), [mut one, mut many]) in found {
            if stage == Stage::Look {
                // A look costs the same whatever comes before it.
                one.append(&mut many);
            }
            if one.is_empty() {
                // Requests are in this stage only if there are several.
                continue;
            }
            let took = quantile(&mut one, FASTER);
            spreads.push(quantile(&mut one, 0.5) / took - 1.0);
            let many = if many.is_empty() { took } else { quantile(&mut many, FASTER) };
            let request = (many - took) / (BATCHES[1] - BATCHES[0]) as f64;
            let (scheduler, locking, bypass) = ways[number];
            println!("{scheduler} {locking} {bypass} {} {:.0} {request:.0}", stage.name(), took - request);
        }
        let [half, most] = [0.5, 1.0].map(|part| 100.0 * quantile(&mut spreads, part));
        println!(
            "# For one request the median of the runs is above what is printed by {half:.0} % in the median of the \
             stages, and by {most:.0} % at most."
        );
    }
}
