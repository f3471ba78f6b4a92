//! When `fair` holds clients back for one that gets less than it is due, and for how long.
//!
//! Two clients of the same weight always want more. In each window of 50 ms the reports say what both got of 1000
//! operations; a trial has turns of three windows.

use crate::bench::{MS, lone};
use crate::fair_churn::Tenants;
use blkmq_sched::{Fairness, InsertAt, Op, RqId, Scheduler, Time};

/// What both clients get while nobody is held back.
const UNFAIR: [u64; 2] = [800, 200];

/// The windows in a row in which a client must get too little, and those of a trial on a quiet device.
const PATIENCE: usize = 6;
const TRIAL: usize = 12;

struct Pair {
    tenants: Tenants,
    /// Whether the first client was held back, by window.
    held: Vec<bool>,
    /// The second client leaves and joins again in each window.
    rejoins: bool,
}

impl Pair {
    fn new() -> Self {
        let mut tenants = Tenants::new();
        (1..3).for_each(|of| tenants.join(of));
        tenants.report(50);
        Self { tenants, held: Vec::new(), rejoins: false }
    }

    /// Inserts so many requests of the first client, and dispatches until one is held back or none waits. Returns
    /// whether one is held back.
    fn flood(&mut self, requests: u64) -> bool {
        let (info, fair) = (lone(self.tenants.id(1), 0, Op::Read), &mut self.tenants.fair);
        fair.reserve(requests as usize);
        (0..requests).for_each(|rq| fair.insert(RqId(rq), &info, InsertAt::Sorted, self.tenants.now));
        while fair.dispatch(&mut (), self.tenants.now).is_some() {}
        fair.len() > 0
    }

    /// A window in which both got so much. Most requests were ordered, or all bypassed.
    fn window_of(&mut self, got: [u64; 2], is_ordered: bool) -> Fairness {
        if self.rejoins {
            self.tenants.leave(2);
            self.tenants.join(2);
        }
        for _ in 0..if is_ordered { 300 } else { 0 } {
            (1..3).for_each(|of| self.tenants.order(of, 1));
        }
        (1..3).for_each(|of| self.tenants.got(of, got[of - 1], 32));
        self.tenants.report(50);
        *self.tenants.verdicts.last().expect("a window is over")
    }

    fn is_held(&self) -> bool {
        let Tenants { fair, now, .. } = &self.tenants;
        let mut copy = Self::new();
        (copy.tenants.fair, copy.tenants.now) = (fair.clone(), *now);
        copy.flood(600)
    }

    /// So many windows with ordered requests. `got`: what both get if the first one is held back.
    fn run(&mut self, windows: usize, got: [u64; 2]) {
        for _ in 0..windows {
            let is_held = self.is_held();
            self.held.push(is_held);
            self.window_of(if is_held { got } else { UNFAIR }, true);
        }
    }

    /// The verdicts, each with the number of windows in a row for which it was given.
    fn verdicts(&self) -> Vec<(Fairness, usize)> {
        self.tenants.verdicts.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect()
    }

    /// For how many windows in a row the first client was not held back, then held back, and so on.
    fn turns(&self) -> Vec<usize> {
        self.held.chunk_by(|one, next| one == next).map(<[bool]>::len).collect()
    }
}

/// Red if fewer windows are enough, if they need not be in a row (`below_due` begins anew), or if somebody is held back
/// while requests bypass, which cannot be held back: tried.
#[test]
fn six_unfair_windows_in_a_row_begin_a_trial() {
    let mut pair = Pair::new();
    let violated = |pair: &mut Pair| {
        for _ in 0..PATIENCE - 1 {
            assert_eq!(pair.window_of(UNFAIR, true), Fairness::Violated);
        }
    };
    violated(&mut pair);
    assert_eq!(pair.window_of([500; 2], true), Fairness::Kept);
    violated(&mut pair);
    for _ in 0..20 {
        assert_eq!(pair.window_of(UNFAIR, false), Fairness::Violated);
    }
    assert_eq!(pair.window_of(UNFAIR, true), Fairness::Enforced);
}

/// The client that is below its due leaves and joins again in each window, or stays.
///
/// Red if a turn is longer or shorter, if all turns hold back, if a trial that helps ends the holding back, if the next
/// one begins sooner than after 10 s, or if the one behind that is not after 20 s. Also red if a client that joins
/// again is not known to be below its due. Each was tried.
#[test]
fn what_helps_goes_on_and_is_tried_ever_more_seldom() {
    for rejoins in [false, true] {
        let mut pair = Pair { rejoins, ..Pair::new() };
        pair.run(PATIENCE + TRIAL + 200 + TRIAL + 400, [500, 500]);
        assert_eq!(pair.turns(), [PATIENCE + 3, 3, 3, 3 + 200, 3, 3, 3, 3 + 400], "rejoins: {rejoins}");
        let enforced = 1 + TRIAL + 200 + TRIAL + 400;
        assert_eq!(pair.verdicts(), [(Fairness::Violated, PATIENCE - 1), (Fairness::Enforced, enforced)]);
    }
}

/// Red if holding back goes on that does not help, if the verdict behind it is not that all is as it should be, or if
/// the next trial is not after 2 s, then after 4 s, and after 2 s again behind one that helped, or if what helps then
/// is not tried again after 10 s: tried.
#[test]
fn an_unsuccessful_trial_is_repeated_ever_more_seldom() {
    let mut pair = Pair::new();
    pair.run(PATIENCE - 1 + TRIAL + 40 + TRIAL + 80, UNFAIR);
    let rests = [(Fairness::Enforced, TRIAL), (Fairness::Kept, 40), (Fairness::Enforced, TRIAL), (Fairness::Kept, 80)];
    assert_eq!(pair.verdicts()[1..], rests);
    pair.run(TRIAL + 200, [500; 2]);
    pair.run(TRIAL + 40, UNFAIR);
    pair.run(TRIAL + 200 + 2, [500; 2]);
    let last = [TRIAL + 200 + TRIAL, 40, TRIAL + 200 + 2].into_iter();
    let last: Vec<_> = [Fairness::Enforced, Fairness::Kept, Fairness::Enforced].into_iter().zip(last).collect();
    assert_eq!(pair.verdicts()[5..], last);
    assert_eq!(pair.turns()[pair.turns().len() - 2..], [3 + 200, 1]);
}

/// What both get while the first one is held back, and whether that goes on.
///
/// Red if the second one need not gain a tenth, or if all together may lose more than a quarter: tried.
#[test]
fn a_trial_helps_if_the_one_gains_and_all_hardly_lose() {
    let cases = [([790, 210], false), ([750, 250], true), ([300, 300], false), ([460, 330], true), ([500, 500], true)];
    for (got, goes_on) in cases {
        let mut pair = Pair::new();
        pair.run(PATIENCE + TRIAL + 10, got);
        let expected = if goes_on { Fairness::Enforced } else { Fairness::Kept };
        assert_eq!(pair.verdicts().last().map(|last| last.0), Some(expected), "{got:?}");
        assert_eq!(pair.held.last(), Some(&goes_on), "{got:?}");
    }
}

/// Red if clients are held back although requests bypass, if a client that then gets too little is not noticed until
/// the next trial would have been, or if that trial begins before a limiter has found its bound: tried.
#[test]
fn holding_back_ends_when_requests_bypass() {
    let mut pair = Pair::new();
    pair.run(PATIENCE + TRIAL + 10, [500; 2]);
    assert!(pair.is_held());
    assert_eq!(pair.window_of(UNFAIR, false), Fairness::Violated);
    assert!(!pair.is_held());
    for _ in 1..PATIENCE {
        assert_eq!(pair.window_of(UNFAIR, true), Fairness::Violated);
    }
    assert_eq!(pair.window_of(UNFAIR, true), Fairness::Enforced, "what helped is tried again");
}

/// The client for whom the other one is held back has nothing under way.
///
/// Red if the other one waits for longer than 2 ms, if nobody wakes it then, if it is held back again in this window,
/// or if it waits for one that has left: tried.
#[test]
fn nobody_waits_for_long_for_a_client_that_asks_for_nothing() {
    for leaves in [false, true] {
        let mut pair = Pair::new();
        pair.run(PATIENCE + TRIAL, [500; 2]);
        assert!(pair.flood(400), "it is held back");
        let now = pair.tenants.now;
        assert_eq!(pair.tenants.fair.next_wakeup(), Some(now.after(2 * MS)));
        assert_eq!(pair.tenants.fair.dispatch(&mut (), Time(now.0 + 2 * MS - 1)), None);
        if leaves {
            pair.tenants.leave(2);
        } else {
            pair.tenants.now = now.after(2 * MS);
        }
        assert!(!pair.flood(400), "all goes");
        assert_eq!(pair.tenants.fair.next_wakeup(), None);
    }
}

/// Two clients get less than they are due, and the one that is farther behind leaves.
///
/// Red if the first client is then held back for nobody: tried.
#[test]
fn who_is_left_is_waited_for() {
    let mut pair = Pair::new();
    pair.tenants.join(3);
    for _ in 0..PATIENCE + TRIAL {
        for _ in 0..300 {
            (1..4).for_each(|of| pair.tenants.order(of, 1));
        }
        let got = if pair.is_held() { [600, 400, 400] } else { [1000, 200, 200] };
        (1..4).for_each(|of| pair.tenants.got(of, got[of - 1], 32));
        pair.tenants.report(50);
    }
    (1..3).rev().for_each(|of| pair.tenants.order(of, 1));
    pair.tenants.leave(3);
    assert!(pair.flood(600), "it is held back for the second one");
}
