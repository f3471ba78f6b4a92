//! Many worlds: one after the other on every core, until enough has happened or until a world breaks a promise.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::failure::Broken;
use super::history::Mix;
use super::play::{Outcome, play_apart};
use super::settings::Settings;

/// The most operations of one world. A run of more operations is a run of several worlds. A run of this many or fewer
/// is the one world of its seed, so a failing world can be repeated as a run of its own.
pub const WORLD_REQUESTS: u64 = 5000;

/// How much shall happen in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// This many operations, in worlds of [`WORLD_REQUESTS`]. The last world may be smaller.
    Requests(u64),
    /// Whole worlds. A new one begins until this time is over; at least one is played.
    Time(Duration),
}

/// A run: the worlds that follow from one seed. The result does not depend on the number of threads.
#[derive(Debug, Clone)]
pub struct Rig {
    /// The seed of the first world. The seeds of the other worlds follow from it.
    pub seed: u64,
    /// When the run ends.
    pub length: Length,
    /// What all worlds have in common.
    pub settings: Settings,
    /// How many worlds are played at a time.
    pub threads: NonZero<usize>,
}

/// How another thread watches and stops a run.
#[derive(Debug, Clone, Default)]
pub struct Control {
    /// Set to true to end the run. The worlds that have begun are still played to their end.
    pub stop: Arc<AtomicBool>,
    /// Operations of the worlds that have ended.
    pub requests: Arc<AtomicU64>,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Operations that were taken in clean worlds.
    pub requests: u64,
    /// Steps of all virtual CPUs in clean worlds.
    pub steps: u64,
    /// Clean worlds. If a world failed, the clean worlds before it.
    pub worlds: u64,
    /// The hash of the histories of the clean worlds.
    pub hash: u64,
    /// The clean world that took the most steps for each operation.
    pub heaviest: Option<Heaviest>,
    /// The first world that broke a promise, as it was played.
    pub failure: Option<Broken>,
}

/// The cost of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heaviest {
    /// The world's seed.
    pub seed: u64,
    /// Operations that were taken.
    pub requests: u64,
    /// Steps of all virtual CPUs.
    pub steps: u64,
}

impl Heaviest {
    /// Steps for each operation, on average.
    #[must_use]
    pub const fn steps_per_request(&self) -> u64 {
        self.steps / if self.requests > 0 { self.requests } else { 1 }
    }
}

impl Rig {
    /// Plays the worlds.
    #[must_use]
    pub fn run(&self, control: &Control) -> Tally {
        let until = match self.length {
            Length::Time(span) => Instant::now().checked_add(span),
            Length::Requests(_) => None,
        };
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        let (next, first_failed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let fold = Mutex::new(Fold::new(self.seed));
        let work = || {
            while !control.stop.load(Ordering::Relaxed) && (next.load(Ordering::Relaxed) == 0 || !is_late()) {
                let world = next.fetch_add(1, Ordering::Relaxed);
                let Some(requests) = self.requests_of(world) else { return };
                // Worlds are begun in order, so every world before the first that failed is played to its end.
                if world > first_failed.load(Ordering::Relaxed) {
                    return;
                }
                let outcome = play_apart(world_seed(self.seed, world), requests, &self.settings, None);
                if outcome.violation.is_some() {
                    first_failed.fetch_min(world, Ordering::Relaxed);
                }
                control.requests.fetch_add(outcome.requests, Ordering::Relaxed);
                fold.lock().unwrap_or_else(PoisonError::into_inner).take(world, outcome);
            }
        };
        thread::scope(|scope| (0..self.threads.get()).for_each(|_| _ = scope.spawn(work)));
        let fold = fold.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Fold { requests, steps, next: worlds, heaviest, mix, failed, .. } = fold;
        let failure = failed.map(|(world, outcome)| {
            let requests = self.requests_of(world).unwrap_or(WORLD_REQUESTS);
            Broken { seed: world_seed(self.seed, world), requests, outcome }
        });
        Tally { requests, steps, worlds, hash: mix.finish(), heaviest, failure }
    }

    /// The number of operations of a world. `None`: the run has no world of this number.
    fn requests_of(&self, world: u64) -> Option<u64> {
        let Length::Requests(all) = self.length else { return Some(WORLD_REQUESTS) };
        let before = world.saturating_mul(WORLD_REQUESTS);
        (before < all).then(|| (all - before).min(WORLD_REQUESTS))
    }
}

/// The seed of a world of a run. The first world has the seed of the run, so that each world can also be played as a
/// run of its own.
fn world_seed(seed: u64, world: u64) -> u64 {
    if world == 0 {
        return seed;
    }
    let mut mix = Mix::new();
    mix.write_u64(seed);
    mix.write_u64(world);
    mix.finish()
}

/// The results of the worlds, combined in the order of the worlds and not in the order in which they end.
struct Fold {
    /// The seed of the run.
    seed: u64,
    /// The number of the world that comes next.
    next: u64,
    waiting: BTreeMap<u64, Outcome>,
    requests: u64,
    steps: u64,
    heaviest: Option<Heaviest>,
    mix: Mix,
    /// The first world that failed. No world after it counts.
    failed: Option<(u64, Outcome)>,
}

impl Fold {
    fn new(seed: u64) -> Self {
        let waiting = BTreeMap::new();
        Self { seed, next: 0, waiting, requests: 0, steps: 0, heaviest: None, mix: Mix::new(), failed: None }
    }

    fn take(&mut self, world: u64, outcome: Outcome) {
        self.waiting.insert(world, outcome);
        while self.failed.is_none()
            && let Some(outcome) = self.waiting.remove(&self.next)
        {
            if outcome.violation.is_some() {
                self.failed = Some((self.next, outcome));
                return;
            }
            self.requests += outcome.requests;
            self.steps += outcome.steps;
            let seed = world_seed(self.seed, self.next);
            let this = Heaviest { seed, requests: outcome.requests, steps: outcome.steps };
            if self.heaviest.is_none_or(|most| this.steps_per_request() > most.steps_per_request()) {
                self.heaviest = Some(this);
            }
            self.mix.write_u64(outcome.hash);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Violation;
    use super::super::event::Stamp;
    use super::super::settings::MOST_CPUS;
    use super::*;

    fn rig(seed: u64, requests: u64, threads: usize) -> Rig {
        let settings = Settings { cpus: 3, scheduler: None, locking: None, mutant: None, live: None };
        Rig { seed, length: Length::Requests(requests), settings, threads: NonZero::new(threads).unwrap() }
    }

    fn outcome(hash: u64, is_clean: bool) -> Outcome {
        let at = Stamp { step: 0, time: blkmq_sched::Time(0), cpu: 0 };
        let violation = (!is_clean).then(|| (at, Violation::new("rig", String::new())));
        Outcome { requests: 10, steps: 100, hash, violation }
    }

    #[test]
    fn worlds_count_in_their_order_up_to_the_first_that_failed() {
        let fold = |worlds: &[(u64, u64, bool)]| {
            let mut fold = Fold::new(7);
            worlds.iter().for_each(|(world, hash, is_clean)| fold.take(*world, outcome(*hash, *is_clean)));
            (fold.next, fold.requests, fold.mix.finish(), fold.failed.map(|(world, _)| world))
        };
        let all = fold(&[(0, 5, true), (1, 6, true), (2, 7, true)]);
        assert_eq!((all.0, all.1, all.3), (3, 30, None));
        assert_eq!(fold(&[(2, 7, true), (0, 5, true), (1, 6, true)]), all);
        assert_ne!(fold(&[(0, 6, true), (1, 5, true), (2, 7, true)]), all);
        let failed = fold(&[(2, 7, false), (0, 5, true), (3, 7, true), (1, 6, false)]);
        assert_eq!((failed.0, failed.1, failed.3), (1, 10, Some(1)));
    }

    #[test]
    fn what_is_played_does_not_depend_on_the_threads() {
        let run = |threads| rig(11, WORLD_REQUESTS + 300, threads).run(&Control::default());
        let alone = run(1);
        assert_eq!((alone.requests, alone.worlds, &alone.failure), (WORLD_REQUESTS + 300, 2, &None));
        assert_eq!(run(3), alone);
    }

    #[test]
    fn settings_that_no_world_has_are_said_to_be_wrong() {
        let said = |change: fn(&mut Settings)| {
            let mut rig = rig(1, 10, 1);
            change(&mut rig.settings);
            let failure = rig.run(&Control::default()).failure.expect("no world is played");
            (failure.rule(), failure.what().to_owned())
        };
        let (rule, what) = said(|settings| settings.scheduler = Some("cfq".to_owned()));
        assert_eq!(rule, "rig");
        assert!(what.contains("'cfq'") && what.contains("mq-deadline"), "{what}");
        assert!(said(|settings| settings.cpus = 0).1.contains("1 to 64"));
        assert!(said(|settings| settings.cpus = MOST_CPUS + 1).1.contains("65"));
    }
}
