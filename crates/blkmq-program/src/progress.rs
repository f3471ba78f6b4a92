//! Shows on a terminal how far a run has come.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the bar is drawn: so seldom that it does not disturb the threads that are measured.
const STEP: Duration = Duration::from_millis(200);
/// The number of steps of a bar.
const STEPS: u64 = 1000;

/// A bar with this many steps. Invisible unless standard error is a terminal.
pub fn bar(steps: u64) -> ProgressBar {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}").expect("the template is well formed");
    ProgressBar::with_draw_target(Some(steps), target).with_style(style)
}

/// Runs something, and shows what `look` returns: the part that is done, from 0 to 1, and a text.
pub fn watch<T>(look: impl Fn() -> (f64, String) + Sync, run: impl FnOnce() -> T) -> T {
    let bar = bar(STEPS);
    if bar.is_hidden() {
        return run();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let (fraction, words) = look();
                bar.set_position((fraction * STEPS as f64) as u64);
                bar.set_message(words);
                thread::park_timeout(STEP);
            }
            bar.finish_and_clear();
        });
        let result = run();
        is_over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        result
    })
}
