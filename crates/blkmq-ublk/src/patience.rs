//! How long a wait goes on: for as long as something moves, and then for a limit.

use std::time::{Duration, Instant};

/// A wait for what may take long, and is given up when nothing has moved for a limit.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    /// The last thing that has moved, by its number, and since when it is the last one.
    seen: (u64, Instant),
}

impl Patience {
    /// `moved`: a number that changes whenever something moves.
    pub(crate) fn new(limit: Duration, moved: u64, now: Instant) -> Self {
        Self { limit, seen: (moved, now) }
    }

    /// How long to wait before the next look.
    pub(crate) fn pause(&self) -> Duration {
        (self.limit / 10).max(Duration::from_millis(1))
    }

    /// Whether nothing has moved for the limit.
    pub(crate) fn is_over(&mut self, moved: u64, now: Instant) -> bool {
        if moved != self.seen.0 {
            self.seen = (moved, now);
        }
        now.duration_since(self.seen.1) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the limit counts from the beginning: then a device with much to write is given up in the middle.
    #[test]
    fn the_limit_counts_from_what_moved_last() {
        let (begin, s) = (Instant::now(), Duration::from_secs);
        let mut patience = Patience::new(s(10), 0, begin);
        assert!(!patience.is_over(0, begin + s(9)));
        assert!(!patience.is_over(1, begin + s(11)), "a request has moved");
        assert!(!patience.is_over(1, begin + s(20)));
        assert!(patience.is_over(1, begin + s(21)));
        let mut patience = Patience::new(s(10), 0, begin);
        assert!(patience.is_over(0, begin + s(10)), "nothing has ever moved");
    }
}
