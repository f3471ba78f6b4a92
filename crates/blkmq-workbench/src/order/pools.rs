//! The pools of tokens of the device that is replayed, and the control of their depths on Linux's clock.
//!
//! As in a queue of blkmq, a depth bounds how many tokens are out. Linux's pool is a bitmap that shrinks: a token of a
//! bit beyond the new end does not count any more. So where a depth has just fallen, Linux gives a few tokens more.
//! With such a pool 26 choices of `writecong-d32` would differ from Linux's, and with this one 34 of 12864 do.

use std::collections::VecDeque;

use blkmq_sched::{DispatchContext, Latency, SchedDomain, Sums, Throttle, Time};

use super::agreement::Adjustment;
use super::jiffies;

/// Ticks from the first completion to the fold.
const FOLD_TICKS: u64 = 25;

/// A completion that follows another one within so many nanoseconds is one of the same interrupt. In the recordings
/// there are 2000 to 8000 from one to the next, and at least 9500 until a thread does anything.
const SAME_INTERRUPT_NS: u64 = 9000;

/// So many nanoseconds behind a tick Linux folds, if no interrupt keeps it from that.
const BEHIND_TICK_NS: u64 = 3000;

/// The pools, if the policy takes tokens. Otherwise there is a token for everybody.
#[derive(Debug)]
pub(super) struct Pools {
    throttle: Option<Throttle>,
    /// How many tokens are out, by [`SchedDomain::index`]. More than there are, if Linux's control was another one.
    out: [u32; 4],
    sums: Sums,
    /// When to fold, in nanoseconds. `None` until a request completes.
    next_fold: Option<u64>,
    /// When the interrupt that is running began, and when its last completion was, if the last event was a completion.
    interrupt: Option<(u64, u64)>,
    /// New depths that [`next_adjustment`](Self::next_adjustment) has not returned, the oldest first.
    adjustments: VecDeque<Adjustment>,
}

impl DispatchContext for Pools {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        let Some(throttle) = &self.throttle else { return true };
        let is_taken = self.out[of.index()] < throttle.depth(of);
        self.out[of.index()] += u32::from(is_taken);
        is_taken
    }
}

impl Pools {
    pub(super) fn new(throttle: Option<Throttle>) -> Self {
        Self {
            throttle,
            out: [0; 4],
            sums: Sums::default(),
            next_fold: None,
            interrupt: None,
            adjustments: VecDeque::new(),
        }
    }

    /// Whether the policy takes tokens.
    pub(super) const fn takes_tokens(&self) -> bool {
        self.throttle.is_some()
    }

    /// The control of the depths.
    pub(super) const fn throttle(&mut self) -> Option<&mut Throttle> {
        self.throttle.as_mut()
    }

    /// The next change of a depth, in order.
    pub(super) fn next_adjustment(&mut self) -> Option<Adjustment> {
        self.adjustments.pop_front()
    }

    /// Takes a token for a request that Linux chose, which had one.
    pub(super) fn follow(&mut self, of: SchedDomain) {
        self.out[of.index()] += 1;
    }

    pub(super) fn put_back(&mut self, of: SchedDomain) {
        self.out[of.index()] = self.out[of.index()].saturating_sub(1);
    }

    /// Folds what is due before an event at this time, in nanoseconds. Linux folds in a soft interrupt, which waits for
    /// the end of the interrupt that is running. So what this interrupt completes behind the tick still counts.
    pub(super) fn fold_before(&mut self, is_completion: bool, time: u64) {
        let began = match self.interrupt {
            Some((began, last)) if is_completion && time.saturating_sub(last) < SAME_INTERRUPT_NS => began,
            _ => time,
        };
        self.interrupt = is_completion.then_some((began, time));
        let due = self.next_fold.filter(|due| due.saturating_add(BEHIND_TICK_NS) <= began);
        let (Some(throttle), Some(due)) = (&mut self.throttle, due) else { return };
        self.next_fold = None;
        let depths = throttle.fold(&self.sums, Time(due));
        for (of, depth) in SchedDomain::ALL.into_iter().zip(depths) {
            self.adjustments.extend(depth.map(|depth| Adjustment { time: due, of, depth }));
        }
    }

    /// Counts a request that completed at `time` and took so long, all in nanoseconds. The first one sets Linux's
    /// timer, which goes off at the tick after the ticks that it was set to.
    pub(super) fn complete(&mut self, of: SchedDomain, time: u64, total: u64, in_device: u64) {
        let Some(throttle) = &self.throttle else { return };
        let Some(target) = throttle.target(of) else { return };
        self.sums.add(of, Latency::Total, Throttle::bucket(target, total));
        self.sums.add(of, Latency::Io, Throttle::bucket(target, in_device));
        self.next_fold.get_or_insert(jiffies(time).after((FOLD_TICKS + 1) * super::JIFFY).0);
    }
}
