//! Limiters in worlds do what the rules about them are for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use blkmq_sched::SCHEDULERS;

use super::super::event::Event;
use super::super::history::Entry;
use super::super::settings::orders_all;
use super::*;

/// What the limiter of one world did.
#[derive(Debug, Default)]
struct Deeds {
    /// The phases in which requests went through it.
    phases: BTreeSet<&'static str>,
    /// Requests that went through it within a bound, and how often it let none go.
    bounded: u64,
    withheld: u64,
}

fn deeds(seed: u64, requests: u64, scheduler: &str) -> Deeds {
    let deeds = Arc::new(Mutex::new(Deeds::default()));
    let told = Arc::clone(&deeds);
    let reader = move |entry: Entry<'_>| {
        let Entry::Event(_, event) = entry else { return };
        let mut deeds = told.lock().unwrap();
        match event {
            Event::Sent { bound, phase, .. } => {
                deeds.phases.insert(phase.name());
                deeds.bounded += u64::from(bound.is_some());
            }
            Event::Withheld { .. } => deeds.withheld += 1,
            _ => {}
        }
    };
    let settings = Settings { cpus: 8, scheduler: Some(scheduler.to_owned()), locking: None, mutant: None, live: None };
    let outcome = play_apart(seed, requests, &settings, Some(Box::new(reader)));
    assert_eq!(outcome.violation, None, "seed {seed}");
    Arc::try_unwrap(deeds).expect("the world is over").into_inner().unwrap()
}

/// Red if limiters are open nearly always: then no rule about what they hold back says anything.
#[test]
fn many_worlds_hold_requests_back() {
    let mut phases = BTreeSet::new();
    let mut held_back = 0;
    for scheduler in SCHEDULERS.iter().map(|known| known.name).filter(|name| orders_all(name)) {
        for seed in 0..16 {
            let deeds = deeds(seed, 3000, scheduler);
            held_back += u32::from(deeds.bounded > 50 && deeds.withheld > 50);
            phases.extend(deeds.phases);
        }
    }
    assert!(held_back >= 4, "{held_back} of 32 worlds");
    let tried = ["measuring", "narrowing", "open", "paced", "probing"];
    assert!(tried.iter().all(|phase| phases.contains(phase)), "{phases:?}");
}
