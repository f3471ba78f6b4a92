//! Shows on a terminal how far jobs have come.

use blkmq_program::progress;
use blkmq_workbench::bench::Control;
use indicatif::HumanCount;

/// Runs jobs, and shows how far they have come.
pub(crate) fn watch_jobs<T>(control: &Control, run: impl FnOnce() -> T) -> T {
    let look = || {
        let snapshot = control.progress.snapshot();
        (snapshot.fraction, format!("{} operations, {} threads", HumanCount(snapshot.ios), snapshot.running))
    };
    progress::watch(look, run)
}
