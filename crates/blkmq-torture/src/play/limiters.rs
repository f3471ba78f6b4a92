//! Limiters in worlds do what the rules about them are for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use blkmq_sched::limiter::Phase as LimiterPhase;
use blkmq_sched::{Fairness, SCHEDULERS};

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

/// What limiter and scheduler did for the shares of one world's clients.
#[derive(Debug, Default)]
struct SharesKept {
    /// The phases in which requests went through the limiter while it was there for shares.
    phases: BTreeSet<&'static str>,
    /// Requests that went in that phase.
    growing: u64,
    /// The scheduler said that it holds clients back.
    is_enforced: bool,
    /// How often the scheduler held requests back.
    held_back: u64,
}

fn shares_kept(seed: u64) -> SharesKept {
    let kept = Arc::new(Mutex::new(SharesKept::default()));
    let told = Arc::clone(&kept);
    let reader = move |entry: Entry<'_>| {
        let Entry::Event(_, event) = entry else { return };
        let mut kept = told.lock().unwrap();
        match event {
            Event::Sent { phase, .. } => {
                kept.phases.insert(phase.name());
                kept.growing += u64::from(phase == LimiterPhase::Growing);
            }
            Event::Learned { progress, .. } => kept.is_enforced |= progress.fairness == Fairness::Enforced,
            Event::HeldBack { waiting, .. } => kept.held_back += u64::from(waiting > 0),
            _ => {}
        }
    };
    let settings = Settings { cpus: 8, scheduler: Some("fair".to_owned()), locking: None, mutant: None, live: None };
    let outcome = play_apart(seed, 5000, &settings, Some(Box::new(reader)));
    assert_eq!(outcome.violation, None, "seed {seed}");
    Arc::try_unwrap(kept).expect("the world is over").into_inner().unwrap()
}

/// Red if hardly a world bounds the device for shares, or holds clients back: then no rule about that says anything.
#[test]
fn many_worlds_bound_for_shares_and_hold_clients_back() {
    let kept: Vec<_> = (0..32).map(shares_kept).collect();
    let count = |of: fn(&SharesKept) -> bool| kept.iter().filter(|kept| of(kept)).count();
    let growing = count(|kept| kept.growing > 50);
    let bounded = count(|kept| kept.phases.contains("bounded") && kept.growing > 0);
    let enforced = count(|kept| kept.is_enforced);
    let held_back = count(|kept| kept.held_back > 20);
    let counts = [growing, bounded, enforced, held_back];
    println!("of 32 worlds: growing, bounded, enforced, held back: {counts:?}");
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
}
