//! How long a comparison takes: its slices and rounds, and what the user is told of that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkmq_program::{notice, progress};
use blkmq_workbench::{Job, MIN_ROUNDS, TextError};
use indicatif::ProgressBar;

use super::super::{Bench, SLICE};
use crate::target::Time;

/// How often it is told on a pipe how long it can still take.
const EVERY: Duration = Duration::from_secs(10);

/// The slices of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) slice: Duration,
    /// The most rounds of four slices.
    pub(super) rounds: usize,
    /// How long a slice takes in all: each stage of its jobs, with its ramp.
    whole: Duration,
    /// When the comparison ends at the latest, from its beginning.
    limit: Option<Duration>,
    is_real: bool,
}

impl Plan {
    /// The plan that the options ask for.
    pub(super) fn new(options: &Bench, jobs: &[Job]) -> Result<Self, TextError> {
        let stages = 1 + jobs.iter().skip(1).filter(|job| job.stonewall).count() as u32;
        let ramp = jobs.iter().map(|job| job.ramp_time).max().unwrap_or_default();
        let is_real = options.clock == Time::Real;
        let whole = |slice: Duration| (slice + ramp) * stages;
        let given = options.runtime.unwrap_or(SLICE);
        let Some(limit) = options.limit else {
            return Ok(Self {
                slice: given,
                rounds: options.rounds as usize,
                whole: whole(given),
                limit: None,
                is_real,
            });
        };
        // So many slices give an interval that counts.
        let fitting = (limit / (4 * MIN_ROUNDS as u32 * stages)).saturating_sub(ramp).max(LEAST);
        let slice = options.runtime.unwrap_or(SLICE.min(fitting));
        let round = 4 * whole(slice);
        let rounds = (limit.as_nanos() / round.as_nanos()).min(MOST_ROUNDS) as usize;
        let plan = Self { slice, rounds, whole: whole(slice), limit: Some(limit), is_real };
        if rounds < 2 { Err(plan.too_short()) } else { Ok(plan) }
    }

    /// The shortest and the longest time that the rounds take.
    fn span(&self) -> [Duration; 2] {
        let of = |rounds: usize| self.whole * 4 * rounds as u32;
        [of(self.rounds.min(MIN_ROUNDS)), of(self.rounds)]
    }

    /// What gives a comparison more rounds.
    pub(super) fn how_to_get_more_rounds(&self) -> &'static str {
        if self.limit.is_some() { "give --for a longer time" } else { "give more --rounds" }
    }

    /// Two rounds do not fit.
    pub(super) fn too_short(&self) -> TextError {
        let what =
            format!("two rounds of four slices take {}; give --for more, or --runtime less", words(8 * self.whole));
        TextError { place: format!("--for {}", words(self.limit.unwrap_or_default())), what }
    }
}

/// The shortest slice that is chosen: the threads have to start first.
const LEAST: Duration = Duration::from_millis(20);
/// The most rounds that are chosen. Such a comparison is resolved long before.
const MOST_ROUNDS: u128 = 10_000;

/// Tells how long a comparison can still take, while it runs.
pub(super) struct Watch {
    plan: Plan,
    bar: ProgressBar,
    title: String,
    began: Instant,
    last_notice: Instant,
    done: u64,
    is_over: bool,
}

impl Watch {
    /// Says how long it can take.
    pub(super) fn new(plan: &Plan, title: &str) -> Self {
        let [least, most] = plan.span();
        // Nobody wonders about less.
        if plan.is_real && most >= EVERY {
            let (rounds, most) = (plan.rounds, words(most));
            let least = if rounds > MIN_ROUNDS {
                format!("{} if it is soon clear", words(least))
            } else {
                "no less".to_owned()
            };
            let limit = if plan.limit.is_some() { "" } else { "; --for TIME sets a limit" };
            notice(&format!("{title}, {rounds} rounds of four, take up to {most}, {least}{limit}"));
        }
        let bar = progress::bar(4 * plan.rounds as u64);
        bar.set_message(title.to_owned());
        let now = Instant::now();
        Self { plan: *plan, bar, title: title.to_owned(), began: now, last_notice: now, done: 0, is_over: false }
    }

    /// A slice is over. Sets `stop` if the time is.
    pub(super) fn tell(&mut self, stop: &AtomicBool) {
        self.done += 1;
        self.bar.inc(1);
        if self.plan.limit.is_some_and(|limit| self.began.elapsed() >= limit) {
            self.is_over = true;
            stop.store(true, Ordering::Relaxed);
        }
        if !self.plan.is_real {
            return;
        }
        let left = format!("at most {} left", words(self.left()));
        self.bar.set_message(format!("{left}, {}", self.title));
        if self.bar.is_hidden() && self.last_notice.elapsed() >= EVERY {
            self.last_notice = Instant::now();
            notice(&format!("{} of {} slices, {left}", self.done, 4 * self.plan.rounds));
        }
    }

    /// The longest time that is left, by what the slices took so far.
    fn left(&self) -> Duration {
        let slices = (4 * self.plan.rounds as u64).saturating_sub(self.done);
        let left = self.began.elapsed().mul_f64(slices as f64 / self.done.max(1) as f64);
        self.plan.limit.map_or(left, |limit| left.min(limit.saturating_sub(self.began.elapsed())))
    }

    /// Whether the time was over before the rounds were.
    pub(super) fn end(self) -> bool {
        self.bar.finish_and_clear();
        self.is_over
    }
}

/// A time as people say it: `21 min 20 s`, `4 h 26 min`, `6.4 s`.
fn words(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match span.as_secs() {
        0..60 => format!("{} s", (seconds * 10.0).round() / 10.0),
        60..3600 => format!("{} min {} s", span.as_secs() / 60, span.as_secs() % 60),
        _ => format!("{} h {} min", span.as_secs() / 3600, span.as_secs() % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn plan(options: &str) -> Result<Plan, TextError> {
        let words = ["bench", "job.fio", "--ab", "scheduler=none,bfq"].into_iter().chain(options.split_whitespace());
        Plan::new(&Line::try_parse_from(words).expect("the options are good").bench, &[Job::new("a")])
    }

    /// Red if it is told wrongly how long a comparison takes, or if `--for` chooses rounds that take longer.
    #[test]
    fn a_comparison_is_planned_for_the_time_that_it_may_take() {
        let span = |options: &str| plan(options).expect("it fits").span().map(words);
        assert_eq!(span("--runtime 20s"), ["21 min 20 s", "4 h 26 min"]);
        assert_eq!(span(""), ["6.4 s", "1 min 20 s"]);
        assert_eq!(span("--for 60s"), ["6.4 s", "1 min 0 s"]);
        assert_eq!(span("--for 60s --runtime 1s"), ["1 min 0 s", "1 min 0 s"]);
        assert_eq!(plan("--for 3200ms").expect("it fits").slice, Duration::from_millis(50));
        let error = plan("--for 60s --runtime 20s").expect_err("it does not fit").to_string();
        assert_eq!(
            error,
            "--for 1 min 0 s: two rounds of four slices take 2 min 40 s; give --for more, or --runtime less"
        );
    }
}
