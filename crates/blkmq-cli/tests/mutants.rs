//! Every bug that can be planted is found. In release builds alone: they play the same worlds, several times as fast.
#![cfg(not(debug_assertions))]

mod run;

use run::{blkmq, printed};
use serde_json::Value;

/// A bug that is not found in so many operations is one that the rig is blind to. Two cores need far less than two minutes
/// for them.
const MOST: &str = "1000000";

#[test]
fn each_is_found() {
    let seed = std::env::var("BLKMQ_SEED").unwrap_or_else(|_| "1".to_owned());
    let mutants = printed(&["torture", "--list-mutants"]);
    let mut missed = Vec::new();
    for name in mutants.lines().filter_map(|line| line.split(' ').next()) {
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
    }
    assert!(missed.is_empty(), "seed {seed}: not found in {MOST} operations: {missed:?}");
}
