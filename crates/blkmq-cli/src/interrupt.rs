//! Ctrl-C, or the end of a time that `timeout` was given, ends a run early, and what it came to so far is told.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// A flag that Ctrl-C and SIGTERM set: the run takes no more operations and waits for those that are outstanding. Who does not want to
/// wait for them types it again. Called once.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    // Handlers are called in this order: the first one looks at what earlier signals left. Where none can be set, Ctrl-C ends
    // the program as ever.
    for signal in [SIGINT, SIGTERM] {
        // The exit code is that of a program that the signal has ended, as shells tell it.
        let _ = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)));
    }
    stop
}

/// How an interrupted run ends, once what it came to has been told, if that is anything.
pub(crate) fn failure(name: &str) -> Failure {
    Failure::Running(format!("{name}: interrupted before its end"))
}
