//! Models of the rings on which threads note what the thread at the scheduler is to be told.
//!
//! The models call the functions of `ring` and `word` that the product calls. They restate from `ordered/reports.rs`
//! the order in which a thread notes, and tells that it has; from `dispatcher/pass.rs` the order of `pass` and the end
//! of the trial; and from `queue/ordered/gate.rs` that the gate is shut before what was noted is taken.

// The `Arc` of std: loom's own count is one more step to be tried in every order.
use std::sync::Arc;

use crate::model::{Exclusive, fail, fail_without, holds, join, spawn};
use blkmq_sync::atomic::{AtomicBool, Ordering};
use blkmq_sync::ring::{PendingEvents, Record, Ring};
use blkmq_sync::word::{Gate, Word};

const GATE: Gate = Gate::new(1, false, None);

/// How a thread differs from the product, to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A thread tells that it has noted something before it has.
    TellsFirst,
    /// A thread that passes does not ask whether its record was refused.
    PassesRefused,
    /// A thread that passes notes what it takes along when it has passed.
    NotesLate,
    /// A thread that turns back leaves its record on trial, for which it takes a record that is sure.
    KeepsRecord,
}

fn record(number: u64) -> Record {
    [number * 4; 4]
}

/// What was taken, by number.
fn take(news: &PendingEvents, ring: &Ring) -> Vec<u64> {
    let mut taken = Vec::new();
    if news.take() != 0 {
        ring.take(|record| {
            assert!(record.iter().all(|word| *word == record[0]), "a record is seen whole");
            taken.push(record[0] / 4);
        });
    }
    taken
}

/// One thread notes two records, if the ring has room; another one takes them. What was noted is taken in the end.
fn noted(room: usize, broken: Broken) {
    let shared = Arc::new((PendingEvents::default(), Ring::new(room)));
    let noter = spawn(&shared, move |shared| {
        let (news, ring) = shared;
        let mut noted = 0;
        for number in [1, 2] {
            if ring.is_full() {
                break;
            }
            if broken == Broken::TellsFirst {
                news.add(0);
            }
            ring.note(record(number));
            if broken != Broken::TellsFirst {
                news.add(0);
            }
            noted = number;
        }
        noted
    });
    let (news, ring) = &*shared;
    let mut taken = take(news, ring);
    let noted = join(noter);
    taken.extend(take(news, ring));
    assert!(taken.iter().copied().eq(1..=noted), "noted {noted}, taken {taken:?}");
}

/// A ring with room for one record: a record is overwritten only when the thread that takes has read it. An
/// [`Exclusive`] stands for the words of the record, since loom lets no load read a value that is stored later.
fn overwritten() {
    let shared = Arc::new((Ring::new(1), Exclusive::default()));
    let noter = spawn(&shared, |(ring, words)| {
        for number in [1, 2] {
            if !ring.is_full() {
                words.touch();
                ring.note(record(number));
            }
        }
    });
    let (ring, words) = &*shared;
    ring.take(|_| words.touch());
    join(noter);
}

/// A thread that hears of a completion finds its record.
fn told_before() {
    let shared = Arc::new((PendingEvents::default(), Ring::new(1), AtomicBool::new(false)));
    let completer = spawn(&shared, move |shared| {
        shared.1.note(record(1));
        shared.0.add(0);
        // Release stands for the completion ring, which publishes what was done before.
        shared.2.store(true, Ordering::Release);
    });
    let (news, ring, is_over) = &*shared;
    let mut taken = take(news, ring);
    // Acquire pairs with the Release of the completer.
    if is_over.load(Ordering::Acquire) {
        taken.extend(take(news, ring));
        assert_eq!(taken, [1]);
    }
    join(completer);
}

/// One thread passes while another shuts the gate and takes what was noted. What passed was told, and what was told has
/// passed. `looks`: the other thread takes what was noted once before it shuts the gate.
fn passed(looks: bool, broken: Broken) {
    let shared = Arc::new((PendingEvents::default(), Ring::new(2), Word::default()));
    shared.2.open_gate(GATE);
    let passer = spawn(&shared, move |shared| {
        let (news, ring, word) = shared;
        let Some(gate) = word.load().gate() else { return false };
        let mut trial = None;
        let passes = word.pass(gate, || {
            if broken == Broken::KeepsRecord {
                ring.note(record(1));
            } else if broken != Broken::NotesLate {
                trial = Some(ring.try_note(record(1)));
            }
            news.add(0);
        });
        if broken == Broken::NotesLate && passes {
            trial = Some(ring.try_note(record(1)));
            news.add(0);
        }
        match trial {
            None => passes,
            Some(trial) if passes => ring.confirm(trial) || broken == Broken::PassesRefused,
            Some(trial) => {
                ring.withdraw(trial);
                false
            }
        }
    });
    let (news, ring, word) = &*shared;
    let mut taken = if looks { take(news, ring) } else { Vec::new() };
    word.shut_gate();
    taken.extend(take(news, ring));
    let has_passed = join(passer);
    assert_eq!(taken.len(), usize::from(has_passed), "told of {taken:?}");
}

#[test]
fn what_is_noted_is_taken_once_and_whole() {
    holds(|| noted(1, Broken::Nothing));
    holds(|| noted(2, Broken::Nothing));
}

#[test]
fn who_hears_of_a_completion_finds_its_record() {
    holds(told_before);
}

#[test]
fn what_passes_is_told_and_what_is_told_passes() {
    holds(|| passed(false, Broken::Nothing));
    holds(|| passed(true, Broken::Nothing));
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("ring.note", || noted(2, Broken::Nothing)),
        ("ring.take", || noted(2, Broken::Nothing)),
        ("ring.is_full", overwritten),
        ("ring.taken", overwritten),
        ("reports.add", || noted(2, Broken::Nothing)),
        ("reports.take", || noted(2, Broken::Nothing)),
        ("word.pass_fence", || passed(false, Broken::Nothing)),
        ("word.shut_fence", || passed(false, Broken::Nothing)),
        ("word.second_look", || passed(false, Broken::Nothing)),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("TellsFirst", || noted(2, Broken::TellsFirst)),
        ("PassesRefused", || passed(true, Broken::PassesRefused)),
        ("NotesLate", || passed(false, Broken::NotesLate)),
        ("KeepsRecord", || passed(false, Broken::KeepsRecord)),
    ]);
}
