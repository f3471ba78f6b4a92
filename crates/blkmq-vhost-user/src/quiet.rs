//! Keeps a log readable when the same thing goes wrong again and again.

use std::time::{Duration, Instant};

/// So many lines at once, and as many more when this time is over.
const NR_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Lets some lines through, and counts those that it holds back.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    since: Option<Instant>,
    nr_lines: u32,
    nr_held: u64,
}

impl Quiet {
    /// Whether a line may be written now. If so, how many were held back before it.
    pub(crate) fn let_through(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.nr_lines) = (Some(now), 0);
        }
        if self.nr_lines == NR_LINES {
            self.nr_held += 1;
            return None;
        }
        self.nr_lines += 1;
        Some(std::mem::take(&mut self.nr_held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a line too many is let through, if the log stays still for ever, or if lines are lost without a word.
    #[test]
    fn some_lines_come_through_and_the_others_are_counted() {
        let (start, mut quiet) = (Instant::now(), Quiet::default());
        let mut at = |seconds| quiet.let_through(start + Duration::from_secs(seconds));
        assert!((0..10).all(|second| at(second) == Some(0)));
        assert!((10..60).all(|second| at(second).is_none()));
        assert_eq!([at(60), at(60)], [Some(50), Some(0)]);
        assert!((61..69).all(|second| at(second) == Some(0)));
        assert_eq!([at(119), at(500)], [None, Some(1)]);
    }
}
