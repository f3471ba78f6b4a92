//! Clients with one operation at a time, beside floods.

use std::ops::Range;

use super::load::{Outcome, Plan, Work, run};

/// Eight clients that do one block at a time, and two floods; these with nanoseconds between two operations, if they
/// are held by hand.
fn beside_floods(work: &Work, every: Option<u64>) -> Vec<Plan> {
    let flood = |name| Plan { work: work.clone(), every, ..Plan::new(name, 64) };
    let single = |at| Plan { work: work.clone(), ..Plan::new(format!("single {at}"), 1) };
    (0..8).map(single).chain([flood("one"), flood("two")]).collect()
}

fn worst(outcome: &Outcome, at: Range<u64>) -> f64 {
    outcome.rates(at)[..8].iter().copied().fold(f64::INFINITY, f64::min)
}

/// What the worst of eight clients with one operation at a time gets and what all get, without a scheduler, with the
/// floods held by hand to what the eight leave of the device's ceiling, and under `fair`.
fn worst_of_eight(device: &str, work: &Work, ceiling: f64, ms: u64) -> [[f64; 2]; 3] {
    let at = ms / 2..ms;
    let run = |scheduler, every| {
        let outcome = run(device, scheduler, &beside_floods(work, every), &[], ms);
        [worst(&outcome, at.clone()), outcome.total(at.clone())]
    };
    let slow = run("none", Some((1e10 / ceiling) as u64))[0];
    let left = (ceiling - 8.0 * slow) / 2.0;
    let found = [run("none", None), run("none", Some((1e9 / left) as u64)), run("fair", None)];
    println!("{device} {work:?}: {found:.0?}");
    found
}

/// Red if floods are not held back: then the worst gets less than a third (asserted). Red too if a bound keeps the
/// volume at its ceiling, where it delays single operations (tried: 0.45).
#[test]
fn clients_of_one_operation_keep_what_they_have_beside_floods_that_are_held_by_hand() {
    for work in [Work::READ, Work::WRITE] {
        let [none, by_hand, fair] = worst_of_eight("cloud", &work, 275e3, 1500);
        assert!(none[0] < by_hand[0] / 3.0, "there is something to hold back: {none:.0?}");
        assert!(fair[0] >= 0.9 * by_hand[0], "{fair:.0?}, and {by_hand:.0?} by hand");
        assert!(fair[1] >= 0.97 * none[1].max(by_hand[1]), "all together: {fair:.0?}, and {by_hand:.0?} by hand");
    }
}
