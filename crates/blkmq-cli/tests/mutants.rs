//! Every bug that can be planted is found, by a rule that is there to find it. In release builds alone: they play the same
//! worlds, several times as fast.
#![cfg(not(debug_assertions))]

mod run;

use blkmq_workbench::torture::{MUTANTS, Mutant};
use run::{blkmq, printed};
use serde_json::Value;

/// A bug that is not found in so many operations is one that the rig is blind to. Two cores need far less than two minutes
/// for them.
const MOST: &str = "2000000";

#[test]
fn each_is_found() {
    let seed = std::env::var("BLKMQ_SEED").unwrap_or_else(|_| "1".to_owned());
    let (mut missed, mut by_others) = (Vec::new(), Vec::new());
    for Mutant { name, found_by, .. } in MUTANTS {
        let output = blkmq(&["torture", "--seed", &seed, "--requests", MOST, "--plant", name, "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("the program prints JSON");
        let failure = &found["failure"];
        if failure.is_null() {
            missed.push(name);
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert_eq!(failure["repeatable"].as_bool(), Some(true), "{name}: {failure}");
        let repeat = failure["repeat"].as_str().expect("a failure tells how to repeat it");
        let without = repeat.replace(&format!(" --plant {name}"), "");
        let text = printed(&without.split_whitespace().skip(1).collect::<Vec<_>>());
        assert!(text.contains("\nclean: "), "{name}: what was found is not the planted bug: {without}");
        let (rule, what) = (failure["rule"].as_str().unwrap(), failure["what"].as_str().unwrap());
        let seconds = found["seconds"].as_f64().unwrap();
        let (before, shortest) = (&found["requests"], &failure["requests"]);
        println!("{name}: found after {before} operations and {seconds:.1} s, shown by {shortest}: {rule}: {what}");
        let said = format!("{rule}: {what}");
        if !found_by.iter().any(|words| said.contains(words)) {
            by_others.push(format!("{name}, by {said}"));
        }
    }
    assert!(missed.is_empty(), "seed {seed}: not found in {MOST} operations: {missed:?}");
    assert!(by_others.is_empty(), "seed {seed}: found by rules that are not there to find them: {by_others:#?}");
}
