//! Every bug that can be planted is found, by a rule that is there to find it. Only in release builds, which play the
//! same worlds several times as fast.
#![cfg(not(debug_assertions))]

#[path = "../../blkmq-cli/tests/run/mod.rs"]
mod run;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use blkmq_torture::{MUTANTS, Mutant};
use run::{blkmq, printed};
use serde_json::Value;

/// How many operations are tried with each seed.
const MOST: &str = "5000000";
/// If a bug is not found with this many seeds, the rig is blind to it. The rarest bugs need 2,500,000 operations on
/// average, so one seed of seven misses them. Further seeds are also tried if another rule than the bug's own found the
/// bug first, because a bug shows in many ways.
const MOST_SEEDS: u64 = 5;

/// How a planted bug was found.
struct Found {
    /// Whether a rule that is there to find this bug found it.
    is_by_its_own: bool,
    /// The rule, and what it says.
    said: String,
}

/// Plants a bug and looks for it, in worlds that run the code in question; `None` if it is not found. What was found
/// must be the bug: the same world without it is clean.
fn find(mutant: &Mutant, seed: u64) -> Option<Found> {
    let Mutant { name, found_by, .. } = mutant;
    let seed_text = seed.to_string();
    let options = ["--seed", &seed_text, "--requests", MOST, "--threads", "1", "--plant", name, "--json"];
    let options = [&options[..], mutant.options()].concat();
    let output = blkmq(&options);
    if output.status.code().is_none() {
        // If two threads have one request, a check of the memory allocator may end the program before a rule finds the
        // bug.
        println!("{name}: the program was ended, by seed {seed}: {}", output.status);
        return Some(Found { is_by_its_own: false, said: output.status.to_string() });
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
    let (rule, what) = (failure["rule"].as_str().unwrap(), failure["what"].as_str().unwrap());
    let seconds = found["seconds"].as_f64().unwrap();
    let (before, shortest) = (&found["requests"], &failure["requests"]);
    println!("{name}: found after {before} operations and {seconds:.1} s, shown by {shortest}: {rule}: {what}");
    let said = format!("{rule}: {what}");
    Some(Found { is_by_its_own: found_by.iter().any(|words| said.contains(words)), said })
}

#[test]
fn each_is_found() {
    let first: u64 = std::env::var("BLKMQ_SEED").map_or(1, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    let (missed, by_others) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let next = AtomicUsize::new(0);
    // Each bug has one core, so that no core waits while a bug's failing world is made shorter.
    let work = || {
        while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut others = Vec::new();
            let found = (first..first + MOST_SEEDS).filter_map(|seed| find(mutant, seed)).any(
                |Found { is_by_its_own, said }| {
                    others.push(said);
                    is_by_its_own
                },
            );
            if others.is_empty() {
                missed.lock().expect("no thread panicked").push(mutant.name);
            } else if !found {
                by_others.lock().expect("no thread panicked").push((mutant.name, others));
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(work)));
    let missed = missed.into_inner().expect("no thread panicked");
    let by_others = by_others.into_inner().expect("no thread panicked");
    assert!(
        missed.is_empty(),
        "not found in {MOST} operations with any of {MOST_SEEDS} seeds from {first}: {missed:?}"
    );
    assert!(by_others.is_empty(), "seed {first}: found by rules that are not there to find them: {by_others:#?}");
}
