//! Every bug that can be planted is found, by a rule that is there to find it. Only in release builds, which play the
//! same worlds several times as fast.
#![cfg(not(debug_assertions))]

#[path = "../../blkmq-cli/tests/run/mod.rs"]
mod run;

use blkmq_torture::{MUTANTS, Mutant};
use run::{blkmq, printed};
use serde_json::Value;

/// How many operations are tried with each seed. Two cores need less than two minutes for them.
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

/// Plants a bug and looks for it; `None` if it is not found. What was found must be the bug: the same world without it
/// is clean.
fn find(Mutant { name, found_by, .. }: &Mutant, seed: u64) -> Option<Found> {
    let output = blkmq(&["--seed", &seed.to_string(), "--requests", MOST, "--plant", name, "--json"]);
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
    let (mut missed, mut by_others) = (Vec::new(), Vec::new());
    for mutant in MUTANTS {
        let mut others = Vec::new();
        let found =
            (first..first + MOST_SEEDS).filter_map(|seed| find(mutant, seed)).any(|Found { is_by_its_own, said }| {
                others.push(said);
                is_by_its_own
            });
        if others.is_empty() {
            missed.push(mutant.name);
        } else if !found {
            by_others.push((mutant.name, others));
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {MOST} operations with any of {MOST_SEEDS} seeds from {first}: {missed:?}"
    );
    assert!(by_others.is_empty(), "seed {first}: found by rules that are not there to find them: {by_others:#?}");
}
