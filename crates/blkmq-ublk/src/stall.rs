//! Waits that may take long, and are given up when nothing moves.

use std::time::{Duration, Instant};

/// Calls `wait` with a time until it returns a value. `wait` returns `None` when it has waited for so long. Returns
/// `None` if `moved`, a number that changes whenever something moves, has stayed the same for the limit.
pub(crate) fn until_stalled<T>(
    limit: Duration,
    moved: impl Fn() -> u64,
    mut wait: impl FnMut(Duration) -> Option<T>,
) -> Option<T> {
    let pause = (limit / 10).max(Duration::from_millis(1));
    let (mut last, mut since) = (moved(), Instant::now());
    loop {
        if let Some(value) = wait(pause) {
            return Some(value);
        }
        let now = moved();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= limit {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;

    /// Red if the limit counts from the beginning: then a device with much to write is given up in the middle. Red
    /// (hangs) if there is no limit.
    #[test]
    fn the_limit_counts_from_what_moved_last() {
        let (limit, waits) = (Duration::from_millis(20), Cell::new(0));
        // Something moves for three times the limit, and then nothing does.
        let moved = || waits.get().min(30);
        let wait = |pause| {
            thread::sleep(pause);
            waits.set(waits.get() + 1);
            None::<()>
        };
        let begin = Instant::now();
        assert_eq!(until_stalled(limit, moved, wait), None);
        assert!(waits.get() > 30 && begin.elapsed() >= 4 * limit, "{waits:?}");
        assert_eq!(until_stalled(limit, || 0, Some), Some(limit / 10));
    }
}
