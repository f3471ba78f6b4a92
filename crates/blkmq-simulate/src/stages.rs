//! What a thread does by itself between its accesses to what is shared, stage by stage of a request's way.
//!
//! It was measured on one thread of a real machine (`scripts/stages`), where the accesses to what is shared were in
//! it. The model charges these by themselves. So [`Private::of`] lets one thread of the model pass requests through,
//! and takes from each measured stage what its accesses cost there.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use blkmq_sync_virtual::Stage;
use blkmq_vcpu::cache::{Costs, Distances, Picoseconds};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Accessed, Cores, Ended, OnStage, Options, Random, run};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Bio, Buffer, Client, Locking, RequestQueue};

/// The table that the crate brings along. Its first lines say where and when it was measured.
const MEASURED: &str = include_str!("stages/measured.txt");

/// The columns of a table, in its first line that is no comment.
const COLUMNS: [&str; 6] = ["scheduler", "locking", "bypass", "stage", "batch_ps", "request_ps"];

const NR_STAGES: usize = Stage::ALL.len();

/// The lengths of batches between which the cost of a stage is taken for a line.
const BATCHES: [usize; 2] = [1, 32];

/// Batches of a run that counts what accesses cost: a few to begin with, and then those that count.
const ROUNDS: usize = 8;

/// In the place of a locking: `combining` where a thread leaves all its requests, as if another thread were at the
/// scheduler, and takes them over itself when it polls. So one thread shows what that takes.
const LEAVING: &str = "leaving";

/// How requests go past a scheduler: its name, the locking, and whether requests may bypass it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The scheduler's name; `none` for none.
    pub scheduler: String,
    /// The locking, as [`Locking`] writes it. A table has `leaving` too: the locking `combining` where a thread leaves
    /// all its requests, and takes them over itself.
    pub locking: String,
    /// Whether requests may bypass the scheduler while nothing waits.
    pub bypass: bool,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheduler, locking, bypass } = self;
        write!(f, "{scheduler}, {locking}, bypass {}", if *bypass { "on" } else { "off" })
    }
}

/// What a stage takes, in picoseconds: for a batch, and for each request of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    batch: i64,
    request: i64,
}

impl Cost {
    /// The line through what batches of [`BATCHES`] take.
    fn through([one, many]: [Picoseconds; 2]) -> Self {
        let [few, most] = BATCHES.map(|batch| batch as i64);
        let request = (many as i64 - one as i64) / (most - few);
        Self { batch: one as i64 - request * few, request }
    }

    fn time(self, requests: usize) -> Picoseconds {
        (self.batch + self.request * requests as i64).max(0).unsigned_abs()
    }

    /// What is left of it. Neither a batch of one nor one of many takes less than nothing.
    fn without(self, other: Self) -> Self {
        Self::through(BATCHES.map(|batch| self.time(batch).saturating_sub(other.time(batch))))
    }
}

/// The stages of one way.
type OfWay = [Option<Cost>; NR_STAGES];

/// For each stage the way that its cost was measured on, and the cost. `None`: it was measured on no way.
type StageCosts<'s> = [Option<(&'s Way, Cost)>; NR_STAGES];

/// What stages take, by way, as measured on one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages(BTreeMap<Way, OfWay>);

impl Stages {
    /// What the crate brings along.
    ///
    /// # Panics
    /// Never: a test reads it.
    #[must_use]
    pub fn measured() -> Self {
        Self::parse(MEASURED).expect("the table of the crate is right")
    }

    /// Reads a table as `scripts/stages` prints it. Lines that begin with `#` say where it was measured.
    ///
    /// # Errors
    /// A line is none of such a table; the message says which.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ways = BTreeMap::<Way, OfWay>::new();
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (number, first) = lines.next().unwrap_or((1, ""));
        if !first.split_whitespace().eq(COLUMNS) {
            return Err(format!("line {number}: the first line must name the columns: {}", COLUMNS.join(" ")));
        }
        for (number, line) in lines {
            let (way, stage, cost) = parse_line(line).map_err(|what| format!("line {number}: {what}"))?;
            if ways.entry(way).or_default()[stage as usize].replace(cost).is_some() {
                return Err(format!("line {number}: {} of this way was said before", stage.name()));
            }
        }
        Ok(Self(ways))
    }

    /// The stages of a way. What was not measured of it is taken from the nearest way of which it was: a thread that
    /// finds another one at the scheduler does what no thread does alone. A way is nearer if it has the same scheduler,
    /// and of two such ways if requests may bypass on both or on neither.
    fn of(&self, way: &Way) -> StageCosts<'_> {
        let mut ways: Vec<_> = self.0.iter().collect();
        ways.sort_by_key(|(other, _)| {
            (*other != way, other.scheduler != way.scheduler, other.bypass != way.bypass, *other)
        });
        std::array::from_fn(|stage| ways.iter().find_map(|(way, costs)| Some((*way, costs[stage]?))))
    }
}

fn parse_line(line: &str) -> Result<(Way, Stage, Cost), String> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [scheduler, locking, bypass, stage, batch, request] = words[..] else {
        return Err(format!("{} words, where there are {}: {}", words.len(), COLUMNS.len(), COLUMNS.join(" ")));
    };
    let bypass = bypass.parse().map_err(|_| format!("bypass is true or false, not {bypass:?}"))?;
    let known = Stage::ALL.into_iter().find(|known| known.name() == stage);
    let stage = known
        .ok_or_else(|| format!("no stage is called {stage:?}; stages: {}", Stage::ALL.map(Stage::name).join(" ")))?;
    let number = |word: &str| {
        let value: Option<i64> = word.parse().ok();
        let value = value.filter(|value| value.unsigned_abs() < 1_000_000_000);
        value.ok_or_else(|| format!("{word:?} is no number of picoseconds below a millisecond"))
    };
    let cost = Cost { batch: number(batch)?, request: number(request)? };
    if cost.time(1) == 0 {
        return Err("a batch of one request takes nothing".to_owned());
    }
    let way = Way { scheduler: scheduler.to_owned(), locking: locking.to_owned(), bypass };
    Ok((way, stage, cost))
}

/// What the stages of one way take beside their accesses to what is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Private {
    costs: [Cost; NR_STAGES],
    /// How long private work takes on the modelled machine, in percent of what it took on the measured one.
    percent: u64,
}

impl Private {
    /// The private part of a way, if accesses cost `costs`. `percent`: how long private work takes on the modelled
    /// machine, in percent of what it took on the measured one.
    ///
    /// # Panics
    /// If the way is none that the block layer knows.
    #[must_use]
    pub fn of(stages: &Stages, way: &Way, costs: Costs, percent: u64) -> Self {
        let mut accesses = BTreeMap::new();
        let private = stages.of(way).map(|found| {
            let (way, cost) = found?;
            // What was measured on a way has that way's accesses in it.
            Some((cost, *accesses.entry(way).or_insert_with(|| accesses_of(way, costs))))
        });
        let private = |stage: usize| private[stage].map(|(cost, accesses)| cost.without(accesses[stage]));
        Self { costs: std::array::from_fn(|stage| private(stage).unwrap_or_default()), percent }
    }

    /// For [`Options::on_stage`].
    #[must_use]
    pub fn on_stage(self) -> Box<OnStage> {
        Box::new(move |_, stage, requests| self.costs[stage].time(requests) * self.percent / 100)
    }
}

/// What the accesses of each stage cost on one CPU, by way.
fn accesses_of(way: &Way, costs: Costs) -> [Cost; NR_STAGES] {
    let [one, many] = BATCHES.map(|batch| count_accesses(way, costs, batch));
    std::array::from_fn(|stage| Cost::through([one[stage], many[stage]]))
}

/// What a run has charged so far.
#[derive(Debug, Clone, Default)]
struct Charged {
    /// For accesses since the last stage ended, in picoseconds.
    since: Picoseconds,
    /// What the stage has taken since this was last cleared, and how many requests it was for.
    stages: [(Picoseconds, u64); NR_STAGES],
}

/// What accesses cost in each stage of a batch of so many requests, once all lines are the CPU's own.
fn count_accesses(way: &Way, costs: Costs, batch: usize) -> [Picoseconds; NR_STAGES] {
    let charged = Arc::new(Mutex::new(Charged::default()));
    let [told, ended, cleared] = [(); 3].map(|()| Arc::clone(&charged));
    let at = Mutex::new(0);
    let options = Options {
        cores: Some(Cores { costs, ..Cores::new(Distances::new(1, |_, _| 0)) }),
        on_access: Some(Box::new(move |Accessed { cost, .. }| {
            // There is one CPU, so that its clock was where its last access had ended.
            let mut at = at.lock().expect("one thread");
            let done = cost.map_or(*at, |cost| cost.done);
            told.lock().expect("one thread").since += done - std::mem::replace(&mut *at, done);
        })),
        on_stage: Some(Box::new(move |_, stage, requests| {
            let mut charged = ended.lock().expect("one thread");
            let (time, all) = &mut charged.stages[stage];
            *all += requests as u64;
            let time = std::mem::take(time);
            charged.stages[stage].0 = time + std::mem::take(&mut charged.since);
            0
        })),
        ..Options::default()
    };
    let way = way.clone();
    let main = move || {
        pass_through(&way, batch, |begins| {
            if begins {
                cleared.lock().expect("one thread").stages = Default::default();
            }
        });
    };
    assert_eq!(run(Box::new(Uniform::new(Random::new(1), 1)), options, main), Ended::Finished);
    let stages = charged.lock().expect("one thread").stages;
    let accesses = |stage: usize| {
        let (time, requests) = stages[stage];
        // A look is for one thing, however many requests a batch has.
        let things = if stage == Stage::Look as usize { 1 } else { batch as u64 };
        (time * things).checked_div(requests).unwrap_or(0)
    };
    std::array::from_fn(accesses)
}

/// Passes batches through a queue, twice as many as count, with an empty poll after each. `mark` is called when those
/// begin that count, with true, and when they have ended, with false.
fn pass_through(way: &Way, batch: usize, mut mark: impl FnMut(bool)) {
    let device = open("null,irqmode=0,poll_queues=0").expect("it is a device");
    let leaves = way.locking == LEAVING;
    let locking = if leaves { Ok(Locking::Combining) } else { way.locking.parse() };
    let locking = locking.expect("the caller names a locking");
    let builder = RequestQueue::builder(device).scheduler(&way.scheduler).locking(locking).bypass(way.bypass);
    let builder = if leaves { builder.stage_all() } else { builder };
    let q = builder.build().expect("the caller names a scheduler");
    let mut submitter = q.submitter(&Client::new("stages")).expect("there is a place");
    let mut bios: VecDeque<_> = (0..batch as u64).map(|at| Bio::read(at * 64, Buffer::zeroed(4096))).collect();
    for round in 0..2 * ROUNDS {
        if round == ROUNDS {
            mark(true);
        }
        submitter.submit_batch(&mut bios).expect("the reads are good");
        assert!(bios.is_empty(), "there is a slot for each");
        while bios.len() < batch {
            submitter.reap_all(|completion| bios.push_back(completion.bio));
            if submitter.nr_outstanding() > 0 {
                submitter.poll();
            }
        }
        submitter.poll();
    }
    mark(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(scheduler: &str, locking: &str, bypass: bool) -> Way {
        Way { scheduler: scheduler.to_owned(), locking: locking.to_owned(), bypass }
    }

    /// What one thread takes for a batch, by the table.
    fn measured(way: &Way, batch: usize) -> Picoseconds {
        let own = Stages::measured().0[way];
        own.into_iter().flatten().map(|cost| cost.time(batch)).sum()
    }

    /// What one thread takes for a batch in the model.
    fn modelled(way: &Way, batch: usize) -> Picoseconds {
        let costs = Costs::default();
        let on_stage = Private::of(&Stages::measured(), way, costs, 100).on_stage();
        let options = Options {
            cores: Some(Cores { costs, ..Cores::new(Distances::new(1, |_, _| 0)) }),
            on_stage: Some(on_stage),
            ..Options::default()
        };
        let took = Arc::new(Mutex::new(0));
        let theirs = Arc::clone(&took);
        let way = way.clone();
        let main = move || {
            let mut begun = 0;
            pass_through(&way, batch, |begins| {
                let now = blkmq_vcpu::time::now();
                if begins {
                    begun = now;
                } else {
                    *theirs.lock().expect("one thread") = (now - begun) * 1000 / ROUNDS as u64;
                }
            });
        };
        assert_eq!(run(Box::new(Uniform::new(Random::new(1), 1)), options, main), Ended::Finished);
        *took.lock().expect("one thread")
    }

    /// Red if the model charges what the table has no stage for, or charges accesses twice.
    #[test]
    fn one_thread_of_the_model_takes_what_was_measured() {
        for (scheduler, locking, bypass) in [
            ("none", "single", false),
            ("mq-deadline", "single", false),
            ("mq-deadline", "batch", false),
            ("mq-deadline", "combining", false),
            ("mq-deadline", "combining", true),
            ("mq-deadline", "staged", false),
            ("mq-deadline", "batch", true),
            ("mq-deadline", "leaving", false),
            ("bfq", "combining", false),
            ("bfq", "leaving", false),
            ("kyber", "combining", false),
        ] {
            let way = way(scheduler, locking, bypass);
            for batch in BATCHES {
                let (modelled, measured) = (modelled(&way, batch), measured(&way, batch));
                let ratio = modelled as f64 / measured as f64;
                assert!((0.9..1.1).contains(&ratio), "{way}: {modelled} ps for {batch}, measured {measured} ps");
            }
        }
    }

    /// Red if another scheduler is nearer than another locking, or a way on which requests bypass otherwise is nearer
    /// than one on which they do so as well.
    #[test]
    fn what_a_way_has_no_stage_for_comes_from_the_nearest_way() {
        let text = "scheduler locking bypass stage batch_ps request_ps\n\
            a single false insert 10 1\n a single false choose 20 1\n a batch false choose 30 1\n\
            a single true choose 50 1\n a combining false start 60 1\n a single true start 70 1\n\
            b single false leave 40 1\n";
        let stages = Stages::parse(text).expect("it is a table");
        let of = |scheduler, bypass, stage: Stage| {
            stages.of(&way(scheduler, "batch", bypass))[stage as usize].map_or(0, |(_, cost)| cost.batch)
        };
        let found = [Stage::Insert, Stage::Choose, Stage::Leave, Stage::Start].map(|stage| of("a", false, stage));
        assert_eq!(found, [10, 30, 40, 60]);
        let found = [Stage::Insert, Stage::Choose, Stage::Start].map(|stage| of("a", true, stage));
        assert_eq!(found, [10, 50, 70]);
        assert_eq!([Stage::Insert, Stage::Reap].map(|stage| of("b", false, stage)), [10, 0]);
    }

    /// Red if the accesses of a stage that was measured on another way are not taken from it: the model then charges
    /// them twice. One thread under `combining` hands its requests through, and puts none into the scheduler.
    #[test]
    fn a_stage_of_another_way_is_without_that_ways_accesses() {
        let (stages, costs) = (Stages::measured(), Costs::default());
        let way = way("mq-deadline", "combining", false);
        let private = Private::of(&stages, &way, costs, 100).costs;
        for stage in [Stage::Insert, Stage::Choose, Stage::Leave] {
            let (from, measured) = stages.of(&way)[stage as usize].expect("it was measured on some way");
            assert_ne!(*from, way, "{}", stage.name());
            let accesses = accesses_of(from, costs)[stage as usize];
            let [private, measured, accesses] = [private[stage as usize], measured, accesses].map(|cost| cost.time(32));
            assert!(accesses > 0, "{}: nothing shared is touched", stage.name());
            // All of them are divided by 31 for the line, and multiplied again.
            assert!(private.abs_diff(measured.saturating_sub(accesses)) < 100, "{}: {private}", stage.name());
        }
    }

    /// Red if a way that a queue can have was not measured, so that its stages are another locking's; or if no way was
    /// measured on which requests are left, or polls are empty.
    #[test]
    fn every_way_was_measured() {
        let stages = Stages::measured();
        for scheduler in blkmq_virtual::scheduler_names().into_iter().skip(1) {
            for locking in Locking::ALL.map(|locking| locking.to_string()) {
                let is_per_hctx = blkmq::sched::Description::named(scheduler).is_some_and(|known| known.is_per_hctx());
                if is_per_hctx && locking == "staged" {
                    // No such queue can be built.
                    continue;
                }
                for bypass in [false, true] {
                    let way = way(scheduler, &locking, bypass);
                    let found = stages.of(&way);
                    for stage in [Stage::Submit, Stage::Issue, Stage::Complete, Stage::Reap, Stage::Look] {
                        let from = found[stage as usize].map(|(from, _)| from);
                        assert_eq!(from, Some(&way), "{}", stage.name());
                    }
                    assert!(found[Stage::Leave as usize].is_some_and(|(from, _)| from.scheduler == scheduler));
                }
            }
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let head = "# where\nscheduler locking bypass stage batch_ps request_ps\n";
        let good = "none single false reap 1 2\n";
        for (text, line, what) in [
            ("", 1, "must name the columns: scheduler locking"),
            ("none single false reap 1 2\n", 1, "must name the columns"),
            ("none single false reap 1\n", 3, "5 words, where there are 6"),
            ("none single no reap 1 2\n", 3, "true or false, not \"no\""),
            ("none single false sleep 1 2\n", 3, "no stage is called \"sleep\"; stages: submit start"),
            ("none single false reap 1 2ns\n", 3, "\"2ns\" is no number of picoseconds"),
            ("none single false reap 1 1000000000\n", 3, "below a millisecond"),
            ("none single false reap -9 2\n", 3, "takes nothing"),
            (&format!("{good}{good}"), 4, "reap of this way was said before"),
        ] {
            let text = if line == 1 { text.to_owned() } else { format!("{head}{text}") };
            let error = Stages::parse(&text).expect_err(&text);
            assert!(error.starts_with(&format!("line {line}: ")) && error.contains(what), "{text}: {error}");
        }
    }
}
