//! Ctrl-C ends a run early, and what it came to so far is told.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::failure::Failure;

/// The exit code of a program that the second Ctrl-C has ended, as shells tell it.
const KILLED: i32 = 128 + SIGINT;

/// A flag that Ctrl-C sets: the run takes no more operations and waits for those that are outstanding. Who does not want to
/// wait for them types it again. Called once.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    // Handlers are called in this order: the first one looks at what earlier signals left. Where none can be set, Ctrl-C ends
    // the program as ever.
    let _ = flag::register_conditional_shutdown(SIGINT, KILLED, Arc::clone(&stop))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)));
    stop
}

/// How an interrupted run ends, once what it came to has been told, if that is anything.
pub(crate) fn failure(name: &str) -> Failure {
    Failure::Running(format!("{name}: interrupted before its end"))
}
