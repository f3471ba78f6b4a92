//! The policy on made-up times.

use proptest::prelude::*;

use super::budget::CREDIT;
use super::*;

/// When the made-up worlds begin. Long enough for the whole credit.
const BEGIN: u64 = 1_000_000_000;

/// A machine on which a wake-up takes 50 us.
const COSTS: Costs = Costs { wake: 50_000, poll: 500, processors: 2 };

/// What happens in each poll of a wait.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Nanoseconds that the yield takes this thread.
    own: u64,
    /// Nanoseconds that others have the processor.
    turn: u64,
    /// Nanoseconds that the thread then takes to try again.
    tries: u64,
}

/// A poll of a thread that has the processor for itself.
const QUIET: Step = Step { own: 500, turn: 0, tries: 1500 };

/// A thread in a made-up world.
#[derive(Debug, Default)]
struct Thread {
    idle: Idle,
    now: u64,
}

/// What a wait came to.
#[derive(Debug)]
struct Waited {
    polls: u64,
    has_slept: bool,
    /// Nanoseconds of this thread that its polls took.
    polled: u64,
}

impl Thread {
    /// A thread whose last wait was short.
    fn quick() -> Self {
        Self { idle: Idle { was_short: true, ..Idle::new() }, now: BEGIN }
    }

    /// A wait in which something comes after `comes` nanoseconds in which others do not have the processor. If the
    /// thread has slept by then, it runs again one wake-up later.
    fn wait(&mut self, comes: u64, step: Step, all: &Budget) -> Waited {
        let mut waited = Waited { polls: 0, has_slept: false, polled: 0 };
        while waited.polled < comes {
            if !self.idle.poll_at(self.now, COSTS, all) {
                waited.has_slept = true;
                self.now += comes - waited.polled + COSTS.wake;
                break;
            }
            waited.polls += 1;
            self.now += step.own + step.turn;
            self.idle.note_yield_at(self.now, COSTS);
            self.now += step.tries;
            waited.polled += step.own + step.tries;
        }
        self.idle.end_at(self.now, COSTS);
        waited
    }

    /// Polls of a wait on a quiet processor, long after the wait before.
    fn polls(&mut self, comes: u64) -> u64 {
        self.now += BEGIN;
        self.wait(comes, QUIET, &Budget::new()).polls
    }
}

/// Red if a thread polls forever for what does not come, or polls without regard to how quick it was before.
#[test]
fn a_quick_wait_is_polled_for_and_no_longer_than_two_wake_ups() {
    let mut thread = Thread::default();
    assert_eq!(thread.polls(90_000), 0, "the thread does not know yet");
    assert_eq!(thread.polls(40_000), 20, "it was quick, for the wake-up is a part of the wait");
    assert_eq!(thread.polls(90_000), 45);
    assert_eq!(thread.polls(1_000_000), 50, "and then it was not");
    assert_eq!(thread.polls(1_000_000), 0);
    assert_eq!(thread.polls(40_000), 0);
    assert_eq!(thread.polls(40_000), 20, "it was again");
}

/// Red if a thread polls before it is known what a wake-up costs.
#[test]
fn a_thread_sleeps_until_the_costs_are_known() {
    let costs = Costs { wake: 0, poll: 0, processors: 1 };
    assert!(!Thread::quick().idle.poll_at(BEGIN, costs, &Budget::new()));
}

/// Red if threads that take turns at a processor sleep because of each other, or if their turns are charged.
#[test]
fn turns_of_other_threads_are_no_polling() {
    for turn in [20_000, TURN - 1000] {
        let (mut thread, all) = (Thread::quick(), Budget::new());
        let step = Step { own: 1000, turn, tries: 1000 };
        for _ in 0..1000 {
            assert_eq!(thread.wait(30_000, step, &all).polls, 15);
        }
        let slow = thread.wait(10_000_000, step, &all);
        assert!(slow.has_slept && slow.polls < 60, "a slow device is slept for");
    }
}

/// Red if the thread yields again and again to a thread that computes.
#[test]
fn after_a_slice_of_a_thread_that_computes_this_thread_sleeps_for_long() {
    const SLICE: u64 = 3_000_000;
    let all = Budget::new();
    let computes = Step { own: 1000, turn: SLICE, tries: 1000 };
    let mut thread = Thread::quick();
    let mut slices = 0;
    while thread.now < BEGIN + 10_000_000_000 {
        slices += thread.wait(2000, computes, &all).polls;
        thread.now += 20_000;
    }
    assert!(slices > 50, "it is tried again: {slices}");
    let lost = slices * (SLICE - TURN);
    assert!(lost <= (thread.now - BEGIN + CREDIT) / SHARE + SLICE, "{slices} slices");
}

/// Red if a thread that sleeps polls when its sleep ends for nothing, or if the threads of many idle connections poll
/// again and again.
#[test]
fn a_thread_that_sleeps_does_not_poll() {
    let all = Budget::new();
    let mut idles: Vec<_> = (0..256).map(|_| Idle { was_short: true, ..Idle::new() }).collect();
    let mut polls = 0;
    // The sleep of each ends for nothing, first soon and then each second.
    for wakes in 0..100_u64 {
        for idle in &mut idles {
            let now = BEGIN + if wakes < 5 { wakes * 1000 } else { wakes * 1_000_000_000 };
            while idle.poll_at(now, COSTS, &all) {
                polls += 1;
                idle.paid = u64::MAX;
            }
            idle.paid = 0;
        }
    }
    assert_eq!(polls, 256, "one each, before they slept");
}

/// Red if a wait that ends at its deadline says nothing: a thread that waits for a moment, again and again, would then
/// never sleep. Red too if its polls cost nothing.
#[test]
fn what_did_not_come_in_time_was_not_quick() {
    let (mut thread, all) = (Thread::quick(), Budget::new());
    assert!(thread.idle.poll_at(thread.now, COSTS, &all));
    thread.now += 30_000;
    thread.idle.give_up_at(thread.now, COSTS, &all);
    assert_eq!(thread.idle.paid, thread.now - CREDIT + 30_000 * SHARE);
    assert_eq!(thread.polls(40_000), 0);
}

/// Red if the work on what came counts as waiting for it.
#[test]
fn a_wait_is_over_when_something_arrives() {
    let (mut thread, all) = (Thread::quick(), Budget::new());
    assert!(thread.idle.poll_at(thread.now, COSTS, &all));
    if let Some(wait) = &mut thread.idle.wait {
        wait.over = Some(thread.now + 10_000);
    }
    thread.idle.end_at(thread.now + 5_000_000, COSTS);
    assert!(thread.idle.was_short);
}

/// What all threads together may lose is more than what one may. Red if [`Idle::lose`] does not charge the thread.
#[test]
fn spurious_polls_of_one_thread_stay_within_its_budget() {
    let (mut thread, all) = (Thread::quick(), Budget::new());
    let mut vain = 0;
    while thread.now < BEGIN + 1_000_000_000 {
        // Something that comes soon, and something that comes just after the thread has slept.
        thread.wait(20_000, QUIET, &all);
        vain += thread.wait(100_001, QUIET, &all).polled;
    }
    let time = thread.now - BEGIN + CREDIT;
    assert!(vain > time / SHARE / 2 && vain <= time / SHARE + 2 * COSTS.wake, "{vain} of {time}");
}

/// A thread, a pause before its wait, how long nothing comes in the wait, and what its polls are like. Many waits are
/// just longer than a thread polls, behind short ones: then most polls are spurious.
fn waits() -> impl Strategy<Value = Vec<(usize, u64, u64, Step)>> {
    let turn = prop_oneof![8 => Just(0), 2 => 0..50_000_u64, 1 => Just(3_000_000)];
    let step = (100..2000_u64, turn, 100..10_000_u64).prop_map(|(own, turn, tries)| Step { own, turn, tries });
    let comes = prop_oneof![4 => 1..20_000_u64, 4 => 100_000..130_000_u64, 1 => 1..3_000_000_u64];
    prop::collection::vec((0..64_usize, 0..20_000_u64, comes, step), 1..4000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes when, and whatever neighbours do: what each thread, and what all of them, poll spuriously is
    /// within the bounds. Counted without the policy: the time of a thread's polls in each wait through which it then
    /// slept. Red if [`Idle::lose`] does not charge all threads, or if a thread polls although nothing is left for all.
    #[test]
    fn spurious_polls_are_bounded(waits in waits()) {
        let all = Budget::new();
        let mut threads: Vec<_> = (0..8).map(|_| Thread { now: BEGIN, ..Thread::default() }).collect();
        let (mut vain, mut longest) = ([0; 8], 0);
        for (index, pause, comes, step) in waits {
            // The thread that is behind the others is next, so that no thread goes back in time.
            let next = if index >= 8 { (0..8).min_by_key(|index| threads[*index].now).unwrap_or(0) } else { index };
            let first = threads.iter().map(|thread| thread.now).min().unwrap_or(BEGIN);
            let thread = &mut threads[next];
            thread.now = thread.now.max(first) + pause;
            let waited = thread.wait(comes, step, &all);
            if waited.has_slept {
                vain[next] += waited.polled;
                longest = longest.max(waited.polled);
            }
        }
        for (thread, vain) in threads.iter().zip(vain) {
            let time = thread.now - BEGIN + CREDIT;
            prop_assert!(vain <= time / SHARE + longest, "{vain} of {time}");
        }
        let time = threads.iter().map(|thread| thread.now - BEGIN).max().unwrap_or(0) + CREDIT;
        let bound = time * COSTS.processors / SHARE + 8 * longest;
        prop_assert!(vain.iter().sum::<u64>() <= bound, "all: {vain:?} of {time}");
    }
}
