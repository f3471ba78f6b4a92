//! Which read latency is good enough, and the shortest one that the device has.

use super::SECOND;
use crate::Time;

/// Nanoseconds: how long the shortest latency is remembered, twice this at most.
const MEMORY: u64 = 30 * SECOND;

/// By default a read may take so many times what the fastest one took.
const TIMES: u64 = 4;

/// What a read may take in the device on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Target {
    /// There is none: nothing is held back.
    Off,
    /// Four times what the fastest read of the last minute took.
    #[default]
    Auto,
    /// So many nanoseconds.
    Within(u64),
}

impl Target {
    /// The knob's value, in microseconds, as Linux has it in `wbt_lat_usec`: 0 is off, and -1 the default. A latency
    /// is held here against the mean of reads, and in Linux against the fastest of some.
    #[must_use]
    pub const fn from_usec(usec: i64) -> Self {
        match usec {
            0 => Self::Off,
            ..0 => Self::Auto,
            _ => Self::Within(usec.unsigned_abs().saturating_mul(1000)),
        }
    }

    /// The target in nanoseconds, where the fastest read took `least`. `None` if there is none, or none is known yet.
    pub(super) const fn ns(self, least: Option<u64>) -> Option<u64> {
        match (self, least) {
            (Self::Within(ns), _) => Some(ns),
            (Self::Auto, Some(least)) => Some(least.saturating_mul(TIMES)),
            _ => None,
        }
    }
}

/// The shortest of the latencies of the last while.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WindowedMin {
    now: Option<u64>,
    before: Option<u64>,
    since: Time,
}

impl WindowedMin {
    pub(super) fn note(&mut self, latency: Option<u64>, now: Time) {
        let Some(latency) = latency else { return };
        let age = now.since(self.since);
        if age > MEMORY {
            // While there were no reads, nothing was noted: what came before may be from another time altogether.
            self.before = self.now.take().filter(|_| age <= 2 * MEMORY);
            self.since = now;
        }
        self.now = Some(self.now.unwrap_or(u64::MAX).min(latency));
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.now.into_iter().chain(self.before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the fastest read of long ago counts beside those that come after a pause.
    #[test]
    fn the_fastest_read_is_forgotten_over_a_pause() {
        let at = |tenths: u64| Time(tenths * MEMORY / 10);
        let mut least = WindowedMin::default();
        least.note(Some(10), at(11));
        least.note(Some(90), at(25));
        assert_eq!(least.get(), Some(10), "it is remembered a little longer than MEMORY");
        least.note(None, at(90));
        least.note(Some(70), at(91));
        assert_eq!(least.get(), Some(70), "nothing is left of what was");
    }
}
