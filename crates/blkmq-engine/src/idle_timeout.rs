//! How long a connection waits for its client to take or to send more of something that is half done.

use std::time::{Duration, Instant};

/// Measures for how long a client has not done what it must do before its connection can go on.
#[derive(Debug)]
pub struct IdleTimeout {
    /// The longest time that a client may do nothing. `None` if there is no limit.
    limit: Option<Duration>,
    /// Since when the client has done nothing.
    since: Option<Instant>,
}

impl IdleTimeout {
    /// IdleTimeout without end, or with this limit.
    #[must_use]
    pub const fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: None }
    }

    /// Called when the client has to do something and has done nothing yet. Returns whether that is new.
    ///
    /// COST: a clock reading if it is new.
    pub fn begin(&mut self) -> bool {
        let is_new = self.since.is_none();
        if is_new {
            self.since = Some(Instant::now());
        }
        is_new
    }

    /// Called when the client has done something, or has nothing to do. Returns whether the connection was waiting for
    /// it.
    pub fn end(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// Returns how long the client may still do nothing. `None`: without a limit. Zero: the limit has passed.
    pub fn left(&self) -> Option<Duration> {
        self.left_at(Instant::now())
    }

    fn left_at(&self, now: Instant) -> Option<Duration> {
        let limit = self.limit?;
        Some(limit.saturating_sub(now.saturating_duration_since(self.since?)))
    }

    /// Returns true if the client has done nothing for this long.
    pub fn has_waited(&self, time: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the time counts from the first wait on, whatever the client does later: a client that reads slowly would
    /// be disconnected.
    #[test]
    fn a_client_that_does_something_has_all_the_time_again() {
        let limit = Duration::from_secs(10);
        let mut idle_timeout = IdleTimeout::new(Some(limit));
        assert_eq!(idle_timeout.left(), None, "nothing is to be done");
        assert!(idle_timeout.begin() && !idle_timeout.begin());
        let since = idle_timeout.since.unwrap();
        assert_eq!(idle_timeout.left_at(since + Duration::from_secs(4)), Some(Duration::from_secs(6)));
        assert_eq!(idle_timeout.left_at(since + Duration::from_secs(11)), Some(Duration::ZERO));
        assert!(idle_timeout.end() && !idle_timeout.end());
        assert_eq!(idle_timeout.left_at(since + Duration::from_secs(11)), None);
        assert!(idle_timeout.begin());
        assert!(idle_timeout.left().unwrap() > Duration::from_secs(1));
    }

    /// Red if no limit is treated as a limit that has passed.
    #[test]
    fn without_a_limit_nothing_is_too_long() {
        let mut idle_timeout = IdleTimeout::new(None);
        idle_timeout.begin();
        assert_eq!(idle_timeout.left_at(Instant::now() + Duration::from_secs(1 << 30)), None);
    }
}
