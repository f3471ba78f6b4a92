//! Every bug that can be planted is found, by a rule that is there to find it. A program of its own, because it takes
//! minutes: `make deep` runs it.
//!
//! Most of the time would go into worlds that show nothing, so `mutants.txt` names a world that showed each bug. That
//! world is played first. Such a record lasts until the rig or the code under it changes, and then the bug is looked
//! for as if there had been none. `BLKMQ_SEED` looks for all of them from that seed.

#[path = "../../blkmq-cli/tests/it/run/mod.rs"]
mod run;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use blkmq_torture::{MUTANTS, Mutant};
use run::{blkmq, printed};
use serde_json::Value;

/// How many operations are tried with each seed, and in a world of which it is recorded that it shows a bug.
const MOST: &str = "5000000";
const WORLD: &str = "5000";
/// If a bug is not found with this many seeds, the rig is blind to it. The rarest bugs need 2,500,000 operations on
/// average, so one seed of seven misses them. Further seeds are also tried if another rule than the bug's own found the
/// bug first, because a bug shows in many ways.
const MOST_SEEDS: u64 = 5;

/// The worlds that showed the bugs: in each line a bug and a seed.
const RECORDED: &str = include_str!("mutants.txt");

/// How a planted bug was found.
struct Found {
    /// Whether a rule that is there to find this bug found it.
    is_by_its_own: bool,
    /// The rule, and what it says.
    said: String,
    /// The seed of the world that showed it.
    world: Option<u64>,
}

/// The seed of the world that is known to show a bug.
fn recorded(name: &str) -> Option<u64> {
    let mut lines = RECORDED.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(recorded, _)| *recorded == name).map(|(_, seed)| seed.parse().expect("a bug, and a seed"))
}

/// Plants a bug and looks for it, in worlds that run the code in question; `None` if it is not found. What was found
/// must be the bug: the same world without it is clean. A search for a shorter world would take longer than all of
/// this.
fn find(mutant: &Mutant, seed: u64, requests: &str) -> Option<Found> {
    let Mutant { name, found_by, .. } = mutant;
    let seed_text = seed.to_string();
    let options =
        ["--seed", &seed_text, "--requests", requests, "--threads", "1", "--plant", name, "--as-found", "--json"];
    let options = [&options[..], mutant.options()].concat();
    let output = blkmq(&options);
    if output.status.code().is_none() {
        // If two threads have one request, a check of the memory allocator may end the program before a rule finds the
        // bug.
        println!("{name}: the program was ended, by seed {seed}: {}", output.status);
        return Some(Found { is_by_its_own: false, said: output.status.to_string(), world: None });
    }
    let found: Value = serde_json::from_slice(&output.stdout).expect("the program prints JSON");
    let failure = &found["failure"];
    if failure.is_null() {
        return None;
    }
    assert_eq!(output.status.code(), Some(1), "{name}");
    assert_eq!(failure["repeatable"].as_bool(), Some(true), "{name}: {failure}");
    let repeat = failure["repeat"].as_str().expect("a failure tells how to repeat it");
    let without = repeat.replace(&format!(" --plant {name}"), "");
    let text = printed(&without.split_whitespace().skip(2).collect::<Vec<_>>());
    assert!(text.contains("\nclean: "), "{name}: what was found is not the planted bug: {without}");
    let [rule, what] = ["rule", "what"].map(|name| failure[name].as_str().expect("a failure says what is broken"));
    let seconds = found["seconds"].as_f64().expect("the time is told");
    println!("{name}: found after {} operations and {seconds:.1} s: {rule}: {what}", found["requests"]);
    let said = format!("{rule}: {what}");
    let world = failure["seed"].as_str().map(|seed| seed.parse().expect("a seed is a number"));
    Some(Found { is_by_its_own: found_by.iter().any(|words| said.contains(words)), said, world })
}

/// What became of the bugs, by their names.
#[derive(Default)]
struct Came {
    /// The bugs that were found by their own rules, with the worlds that showed them.
    found: Vec<(&'static str, u64)>,
    /// The bugs whose recorded worlds show them no longer.
    stale: Vec<&'static str>,
    missed: Vec<&'static str>,
    by_others: Vec<(&'static str, Vec<String>)>,
}

/// Looks for a bug in the recorded world, and then in all worlds of a few seeds.
fn look(mutant: &Mutant, first: Option<u64>, came: &Mutex<Came>) {
    let record = if first.is_some() { None } else { recorded(mutant.name) };
    let first = first.unwrap_or(1);
    let seeds =
        record.map(|seed| (seed, WORLD)).into_iter().chain((first..first + MOST_SEEDS).map(|seed| (seed, MOST)));
    let (mut others, mut tried, mut world) = (Vec::new(), 0, None);
    for (seed, requests) in seeds {
        tried += 1;
        if let Some(found) = find(mutant, seed, requests) {
            others.push(found.said);
            if found.is_by_its_own {
                world = found.world;
                break;
            }
        }
    }
    let mut came = came.lock().expect("no thread panicked");
    if record.is_some() && tried > 1 {
        came.stale.push(mutant.name);
    }
    match world {
        Some(world) => came.found.push((mutant.name, world)),
        None if others.is_empty() => came.missed.push(mutant.name),
        None => came.by_others.push((mutant.name, others)),
    }
}

#[test]
fn each_is_found() {
    let first = std::env::var("BLKMQ_SEED").ok().map(|seed| seed.parse().expect("BLKMQ_SEED is a number"));
    let came = Mutex::default();
    let next = AtomicUsize::new(0);
    // Each bug has one core, so that no core waits while a bug's failing world is told.
    let work = || {
        while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
            look(mutant, first, &came);
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(work)));
    let Came { mut found, stale, missed, by_others } = came.into_inner().expect("no thread panicked");
    found.sort_unstable();
    found.iter().for_each(|(name, seed)| println!("record: {name} {seed}"));
    if !stale.is_empty() {
        println!("NOTE tests/mutants.txt: these worlds show their bugs no longer: {}", stale.join(" "));
    }
    let first = first.unwrap_or(1);
    assert!(
        missed.is_empty(),
        "not found in {MOST} operations with any of {MOST_SEEDS} seeds from {first}: {missed:?}"
    );
    assert!(by_others.is_empty(), "seed {first}: found by rules that are not there to find them: {by_others:#?}");
}

/// Red if a world is recorded for a bug that nobody can plant any more, or if a line is not understood.
#[test]
fn what_is_recorded_can_be_planted() {
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let (name, seed) = line.split_once(' ').expect("a bug, and a seed");
        assert!(Mutant::by_name(name).is_some() && seed.parse::<u64>().is_ok() && recorded(name).is_some(), "{line}");
    }
}
