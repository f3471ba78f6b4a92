//! A world that broke a promise: as short as it can be made, and what happened in it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_sched::RqId;

use super::check::Violation;
use super::event::{Event, Stamp};
use super::history::Entry;
use super::play::{Outcome, play_apart};
use super::settings::Settings;

/// Lines of history to keep about the operations and requests concerned.
const CONCERNED: usize = 1000;
/// Lines of history to keep about changes to the whole world.
const ABOUT_ALL: usize = 100;
/// Lines of history to keep of the very end, whatever they are about, and as many CPU switches among its last steps.
const LATEST: usize = 60;
const LAST: usize = 30;
const LAST_STEPS: u64 = 1_000_000;

/// Steps that the search for the shortest prefix may take. The last try may exceed this number. A world of the usual
/// length needs about 4 million steps. A world that never ends takes 40 million steps before the rig sees that.
const SEARCH_STEPS: u64 = 200_000_000;

/// A world that broke a promise, as it was played. A run with the same seed and the same number of requests plays this
/// world again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The world's seed.
    pub seed: u64,
    /// Operations that the world was to have.
    pub requests: u64,
    pub(super) outcome: Outcome,
}

impl Broken {
    /// The name of the checker that found the broken promise.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        self.outcome.violation.as_ref().map_or("none", |(_, violation)| violation.rule)
    }

    /// What happened, and what should have happened.
    #[must_use]
    pub fn what(&self) -> &str {
        self.outcome.violation.as_ref().map_or(NOTHING, |(_, violation)| &violation.what)
    }

    /// Searches for a prefix of the world that fails, such that none of the shorter prefixes that were tried fails, and
    /// tells what happens in it. `stop` ends the search early, and so does a limit of steps. The result is then the
    /// shortest failing prefix that was found so far.
    #[must_use]
    pub fn explain(self, settings: &Settings, stop: &AtomicBool) -> Failure {
        Failure::shortest(self, settings, &Budget { stop, steps: Cell::new(SEARCH_STEPS) })
    }

    /// Tells what happens in the world as it is. A shorter prefix may fail too.
    #[must_use]
    pub fn tell(self, settings: &Settings) -> Failure {
        let Self { seed, requests, outcome } = self;
        Failure { is_shortest: false, ..Failure::read(seed, requests, &outcome, settings) }
    }
}

/// How long to search.
struct Budget<'a> {
    stop: &'a AtomicBool,
    /// Steps that are left.
    steps: Cell<u64>,
}

impl Budget<'_> {
    fn is_spent(&self) -> bool {
        self.steps.get() == 0 || self.stop.load(Ordering::Relaxed)
    }

    fn spend(&self, steps: u64) {
        self.steps.set(self.steps.get().saturating_sub(steps));
    }
}

/// A world that broke a promise, shortened. A run with this seed and this number of requests plays exactly this world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The world's seed.
    pub seed: u64,
    /// The world fails with this number of operations. No smaller number that was tried fails.
    pub requests: u64,
    /// The name of the checker that found the broken promise.
    pub rule: &'static str,
    /// What happened, and what should have happened.
    pub what: String,
    /// Steps until the promise was broken.
    pub step: u64,
    /// Virtual time until the promise was broken, in ns.
    pub time_ns: u64,
    /// The virtual CPU that was running when the promise was broken.
    pub cpu: u16,
    /// What happened to the operations and requests concerned, what changed the whole world, and everything at the end,
    /// in order.
    pub history: Vec<String>,
    /// Number of earlier lines about them that are left out.
    pub left_out: u64,
    /// Whether the search for a shorter prefix was completed.
    pub is_shortest: bool,
    /// Whether each play went the same way. If not, the rig itself is broken: a world must follow from its seed.
    pub is_repeatable: bool,
}

impl Failure {
    /// A prefix of a world that fails. None of the shorter prefixes that were tried fails.
    fn shortest(broken: Broken, settings: &Settings, budget: &Budget<'_>) -> Self {
        let Broken { seed, requests, outcome } = broken;
        let mut shortest = (requests, outcome);
        // A prefix whose length lies between one that passes and one that fails may pass or fail. So the search ends
        // only at a prefix from which a new search would not find a shorter one. Then the command that repeats a
        // failure finds the same prefix.
        loop {
            let before = shortest.0;
            shortest = Self::shorter(seed, shortest, settings, budget);
            if shortest.0 == before || budget.is_spent() {
                let is_shortest = !budget.is_spent();
                return Self { is_shortest, ..Self::read(seed, shortest.0, &shortest.1, settings) };
            }
        }
    }

    /// Searches for a shorter prefix that fails: first doubles the length each time, and then searches between the last
    /// prefix that passed and the one that failed.
    fn shorter(seed: u64, mut shortest: (u64, Outcome), settings: &Settings, budget: &Budget<'_>) -> (u64, Outcome) {
        let (mut passes, mut tried) = (0, 1);
        while passes + 1 < shortest.0 && !budget.is_spent() {
            let outcome = play_apart(seed, tried, settings, None);
            budget.spend(outcome.steps);
            if outcome.violation.is_some() {
                shortest = (tried, outcome);
            } else {
                passes = tried;
            }
            let double = 2 * passes;
            tried = if (passes + 1..shortest.0).contains(&double) { double } else { passes.midpoint(shortest.0) };
        }
        shortest
    }

    /// Plays a failing world again, until it is known what to tell, and tells what happened.
    fn read(seed: u64, requests: u64, outcome: &Outcome, settings: &Settings) -> Self {
        let (stamp, violation) = outcome.violation.clone().unwrap_or_else(nothing);
        let mut is_repeatable = true;
        let mut again = |read: fn(&mut Story, &Entry<'_>), story: Story| {
            let story = Arc::new(Mutex::new(story));
            let shared = Arc::clone(&story);
            let reader = move |entry: Entry<'_>| {
                let mut story = shared.lock().unwrap_or_else(PoisonError::into_inner);
                read(&mut story, &entry);
            };
            is_repeatable &= play_apart(seed, requests, settings, Some(Box::new(reader))) == *outcome;
            std::mem::take(&mut *story.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let mut story = Story { end: stamp.step, ..Story::of(&violation) };
        // A world that goes on forever names nothing, and takes long.
        if !(story.bios.is_empty() && story.requests.is_empty()) {
            story = again(Story::note_names, story);
            story = again(Story::note_neighbours, story);
        }
        let (history, left_out) = again(Story::keep, story).lines();
        let Violation { rule, what, .. } = violation;
        let Stamp { step, time, cpu } = stamp;
        Self {
            seed,
            requests,
            rule,
            what,
            step,
            time_ns: time.0,
            cpu,
            history,
            left_out,
            is_shortest: true,
            is_repeatable,
        }
    }
}

const NOTHING: &str = "nothing is wrong with this world";

/// The result if nothing is wrong when the world is played again.
fn nothing() -> (Stamp, Violation) {
    (Stamp { step: 0, time: blkmq_sched::Time(0), cpu: 0 }, Violation::new("none", NOTHING.to_owned()))
}

/// What is gathered while a world is played again.
#[derive(Debug, Default)]
struct Story {
    bios: BTreeSet<u64>,
    requests: BTreeSet<RqId>,
    /// Operations concerned that are not over, with their sectors: the first one, and the one after the last.
    open: BTreeMap<u64, (u64, u64)>,
    /// The step at which the world ended.
    end: u64,
    /// Entries that were kept so far, also such as were left out later.
    seen: u64,
    concerned: Kept,
    about_all: Kept,
    latest: Kept,
    last: Kept,
}

impl Story {
    fn of(violation: &Violation) -> Self {
        let Violation { bios, requests, .. } = violation;
        Self { bios: bios.iter().copied().collect(), requests: requests.iter().copied().collect(), ..Self::default() }
    }

    /// Finds the operations that belong to the requests concerned, and the requests that belong to the operations
    /// concerned.
    fn note_names(&mut self, entry: &Entry<'_>) {
        if let (Some(bio), [Some(id), _]) = (entry.bio(), entry.requests())
            && (self.bios.contains(&bio) || self.requests.contains(&id))
        {
            self.bios.insert(bio);
            self.requests.insert(id);
        }
    }

    /// Finds the requests that have sectors in common with the operations concerned while these operations are open.
    /// Such requests are parts of these operations, requests that these operations joined, or requests that race with
    /// them.
    fn note_neighbours(&mut self, entry: &Entry<'_>) {
        let Entry::Event(_, event) = entry else { return };
        let (sector, nr_sectors) = match *event {
            Event::Submitted { bio, asked, .. } if self.bios.contains(&bio) => {
                self.open.insert(bio, (asked.sector, asked.sector.saturating_add(asked.nr_sectors)));
                return;
            }
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } => {
                self.open.remove(&bio);
                return;
            }
            Event::Inserted { info, .. } | Event::Merged { info, .. } => (info.sector, info.nr_sectors),
            Event::Offered { sector, nr_sectors, .. } => (sector, nr_sectors),
            _ => return,
        };
        let end = sector.saturating_add(u64::from(nr_sectors));
        if self.open.values().any(|(first, beyond)| *first < end && sector < *beyond) {
            self.requests.extend(entry.requests().into_iter().flatten());
        }
    }

    /// Keeps the lines about what is concerned.
    fn keep(&mut self, entry: &Entry<'_>) {
        let is_concerned = entry.bio().is_some_and(|bio| self.bios.contains(&bio))
            || entry.requests().into_iter().flatten().any(|id| self.requests.contains(&id));
        let (kept, most) = match entry {
            _ if is_concerned => (&mut self.concerned, CONCERNED),
            _ if entry.is_about_all() => (&mut self.about_all, ABOUT_ALL),
            Entry::Event(..) => (&mut self.latest, LATEST),
            Entry::Switch(switch) if switch.step + LAST_STEPS >= self.end => (&mut self.last, LAST),
            // There are so many of these that not even their text is made.
            Entry::Switch(_) => return,
        };
        kept.push(self.seen, entry, most);
        self.seen += 1;
    }

    /// All lines in order, and how many were left out.
    fn lines(self) -> (Vec<String>, u64) {
        let left_out = self.concerned.left_out + self.about_all.left_out;
        let kept = [self.concerned, self.about_all, self.latest, self.last];
        let lines: BTreeMap<u64, String> = kept.into_iter().flat_map(|kept| kept.lines).collect();
        (lines.into_values().collect(), left_out)
    }
}

/// The latest lines of a kind, by the number of their entry.
#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<(u64, String)>,
    left_out: u64,
}

impl Kept {
    fn push(&mut self, number: u64, entry: &Entry<'_>, most: usize) {
        if self.lines.len() == most {
            self.lines.pop_front();
            self.left_out += 1;
        }
        self.lines.push_back((number, entry.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{Info, InsertAt, MergeLevel, Op, Time};
    use blkmq_virtual::Flags;

    use super::super::event::Asked;
    use super::super::mutant::Mutant;
    use super::*;

    const NAMED: RqId = RqId(5);

    fn submitted(bio: u64, sector: u64) -> Event<'static> {
        let asked = Asked {
            op: Op::Read,
            sector,
            nr_sectors: 8,
            flags: Flags::default(),
            priority: Default::default(),
            group: 0,
        };
        Event::Submitted { submitter: 0, bio, asked, pieces: &[] }
    }

    fn inserted(rq: u64, sector: u64) -> Event<'static> {
        let info = Info {
            sector,
            nr_sectors: 8,
            nr_segments: 1,
            op: Op::Read,
            sync: true,
            merge: MergeLevel::Full,
            ..Info::default()
        };
        Event::Inserted { value: 0, rq: RqId(rq), info, at: InsertAt::Sorted, now: Time(0) }
    }

    fn told(violation: &Violation, events: &[Event<'_>]) -> Vec<String> {
        let mut story = Story::of(violation);
        for read in [Story::note_names, Story::note_neighbours, Story::keep] {
            for (step, event) in events.iter().enumerate() {
                let at = Stamp { step: step as u64, time: Time(0), cpu: 0 };
                read(&mut story, &Entry::Event(at, *event));
            }
        }
        let lines = story.lines().0;
        lines.iter().map(|line| line.split_once("cpu  0  ").expect("the CPU is told").1.to_owned()).collect()
    }

    #[test]
    fn a_story_holds_the_operation_its_request_and_what_reaches_there() {
        let mut events = vec![
            submitted(1, 64),
            submitted(2, 0),
            Event::Named { submitter: 0, bio: 1, id: NAMED },
            inserted(7, 68),
            inserted(8, 72),
            Event::Reaped {
                submitter: 0,
                bio: 1,
                id: NAMED,
                status: blkmq_virtual::Status::Ok,
                times: Default::default(),
                data: &[],
            },
            inserted(9, 64),
        ];
        events.extend([Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None }; LATEST]);
        let by_bio = told(&Violation::new("rule", String::new()).bio(1), &events);
        let by_request = told(&Violation::new("rule", String::new()).request(NAMED), &events);
        assert_eq!(by_bio, by_request);
        let heads: Vec<&str> = by_bio.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(heads[..4], ["bio 1", "bio 1", "request 0/7.0", "bio 1"], "{by_bio:?}");
        assert_eq!(by_bio.len(), 4 + LATEST);
    }

    #[test]
    fn the_search_ends_when_its_steps_are_used_up() {
        let settings =
            Settings { cpus: 2, scheduler: None, locking: None, mutant: Mutant::by_name("tag-twice"), live: None };
        let outcome = play_apart(2, 500, &settings, None);
        let broken = Broken { seed: 2, requests: 500, outcome };
        assert!(broken.what().contains("tags put back twice"), "{broken:?}");
        let stop = AtomicBool::new(false);
        let shortest = broken.clone().explain(&settings, &stop);
        assert!(shortest.is_shortest && shortest.requests < 500, "{} requests", shortest.requests);
        let early = Failure::shortest(broken, &settings, &Budget { stop: &stop, steps: Cell::new(1) });
        assert!(!early.is_shortest && early.requests >= shortest.requests, "{} requests", early.requests);
    }
}
