//! What the loom models share.
#![allow(dead_code, reason = "each model uses a part")]

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use blkmq_sync::atomic::AtomicU32;
use blkmq_sync::stack::Chain;
use blkmq_sync::{thread, weaken};

/// Runs `model` in every interleaving with at most 3 preemptions, or `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn holds(model: fn()) {
    holds_within(3, model);
}

/// Runs `model` in every interleaving with at most `preemptions` preemptions, or `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn holds_within(preemptions: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// Checks that each of these broken variants, which have a name, fails in some interleaving.
pub(crate) fn fail(variants: &[(&str, fn())]) {
    fail_within(3, variants);
}

/// Checks that each broken variant fails in some interleaving with at most `preemptions` preemptions, or
/// `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn fail_within(preemptions: usize, variants: &[(&str, fn())]) {
    for (name, model) in variants {
        let outcome = catch_unwind(AssertUnwindSafe(|| holds_within(preemptions, *model)));
        assert!(outcome.is_err(), "the broken variant passed: {name}");
    }
}

/// Checks that each of these models fails in some interleaving once the ordering, fence or step of that name is taken
/// away.
pub(crate) fn fail_without(sites: &[(&'static str, fn())]) {
    for (site, model) in sites {
        weaken(Some(site));
        let outcome = catch_unwind(AssertUnwindSafe(|| holds(*model)));
        weaken(None);
        assert!(outcome.is_err(), "the model passed without {site}");
    }
}

/// Runs `run` with `shared`, a count on something shared, on a thread of its own.
pub(crate) fn spawn<S, R>(shared: &S, run: impl FnOnce(&S::Target) -> R + 'static) -> thread::JoinHandle<R>
where
    S: Clone + Deref + 'static,
    R: 'static,
{
    let shared = shared.clone();
    thread::spawn(move || run(&shared))
}

/// Waits for the end of a thread, which does not panic.
pub(crate) fn join<R>(thread: thread::JoinHandle<R>) -> R {
    thread.join().expect("the thread ran to its end")
}

/// Wakes the sleepers, in a model without sleepers.
pub(crate) fn nobody_sleeps() {
    unreachable!("no thread sleeps here");
}

/// A place that one thread at a time may touch; loom reports every access that is not ordered with the others.
#[derive(Default)]
pub(crate) struct Exclusive(loom::cell::UnsafeCell<u64>);

impl Exclusive {
    /// Changes the content.
    pub(crate) fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

/// All slots of a chain, first pushed first.
pub(crate) fn oldest_first<'a>(mut chain: Chain, link_of: impl Fn(u32) -> &'a AtomicU32) -> Vec<u32> {
    let mut slots: Vec<u32> = std::iter::from_fn(|| chain.pop_newest(&link_of)).collect();
    slots.reverse();
    slots
}
