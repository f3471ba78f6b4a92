//! What a window does, told to the torture rig. Nothing of this is in a product build.

use std::cell::Cell;

use blkmq_sched::window::{Phase, Progress};
use blkmq_sched::{RqId, Time};

/// What a window has just done.
#[derive(Debug, Clone, Copy)]
pub enum WindowStep {
    /// A request that the scheduler chose goes to the driver, at this cost.
    Sent {
        /// The request.
        rq: RqId,
        /// Nanoseconds.
        cost: u32,
        /// How much may be with the device before it, in nanoseconds. `None`: as much as it takes.
        bound: Option<u64>,
        /// What the window does now.
        phase: Phase,
    },
    /// Nothing that waits may go.
    Withheld {
        /// When something may, if time alone decides that. `None`: when something has completed.
        until: Option<Time>,
    },
    /// The window has learned this.
    Learned {
        /// Since ever.
        progress: Progress,
        /// What the window does from now on.
        phase: Phase,
    },
}

/// Called under the scheduler's lock, and takes no step of a virtual CPU.
pub type WindowWatcher = fn(WindowStep);

thread_local! {
    /// A world is played on one thread.
    static WATCHER: Cell<Option<WindowWatcher>> = const { Cell::new(None) };
}

/// From now on this watcher is told what the windows of this thread's worlds do.
pub fn watch_windows(watcher: Option<WindowWatcher>) {
    WATCHER.set(watcher);
}

pub(super) fn tell(step: WindowStep) {
    if let Some(watcher) = WATCHER.get() {
        watcher(step);
    }
}
