//! What a limiter does, told to the torture rig, and how long the scheduler is held, told to the model. Nothing of this
//! is in a product build.

use std::cell::Cell;

use blkmq_sched::limiter::{Phase, Progress};
use blkmq_sched::{RqId, Time};

/// What a limiter has just done.
#[derive(Debug, Clone, Copy)]
pub enum LimiterStep {
    /// It was created.
    Created,
    /// A request that the scheduler chose goes to the driver, at this cost.
    Sent {
        /// The request.
        rq: RqId,
        /// Nanoseconds.
        cost: u32,
        /// How much may be with the device before it, in nanoseconds. `None`: as much as it takes.
        bound: Option<u64>,
        /// What the limiter does now.
        phase: Phase,
    },
    /// Nothing that waits may go.
    Withheld {
        /// When something may, if time alone decides that. `None`: when something has completed.
        until: Option<Time>,
    },
    /// The limiter has learned this.
    Learned {
        /// Since ever.
        progress: Progress,
        /// What the limiter does from now on.
        phase: Phase,
    },
}

/// Called under the scheduler's lock, and takes no step of a virtual CPU.
pub type LimiterWatcher = fn(LimiterStep);

/// A thread on the path of a request is at the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldStep {
    /// It has got the scheduler's lock.
    Begins,
    /// It lets go the lock next.
    Ends,
}

/// Called under the scheduler's lock by the thread that has it, and takes no step of a virtual CPU.
pub type HoldWatcher = fn(HoldStep);

thread_local! {
    /// A world is played on one thread.
    static WATCHER: Cell<Option<LimiterWatcher>> = const { Cell::new(None) };
    static HOLD_WATCHER: Cell<Option<HoldWatcher>> = const { Cell::new(None) };
}

/// From now on this watcher is told what the limiters of this thread's worlds do.
pub fn watch_limiters(watcher: Option<LimiterWatcher>) {
    WATCHER.set(watcher);
}

/// From now on this watcher is told when the schedulers of this thread's worlds are held.
pub fn watch_holds(watcher: Option<HoldWatcher>) {
    HOLD_WATCHER.set(watcher);
}

pub(super) fn observe_hold(step: HoldStep) {
    if let Some(watcher) = HOLD_WATCHER.get() {
        watcher(step);
    }
}

pub(super) fn observe_limiter(step: LimiterStep) {
    if let Some(watcher) = WATCHER.get() {
        watcher(step);
    }
}
