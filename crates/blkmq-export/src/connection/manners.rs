//! How a client asks: for one thing at a time, waiting for each answer, or for several together.

/// After this many turns in a row with one request each, a client counts as one that waits for its answers.
const SINGLES: u8 = 8;

/// What the last turns with a client have shown.
#[derive(Debug, Default)]
pub(super) struct Manners {
    /// The number of turns in a row that brought one request each, counted up to twice [`SINGLES`].
    singles: u8,
}

impl Manners {
    /// The manners of a client that waits for its answers.
    #[cfg(test)]
    pub(super) fn single() -> Self {
        Self { singles: SINGLES }
    }

    /// Called when a turn brought this many requests.
    pub(super) fn note(&mut self, requests: u32) {
        self.singles = match requests {
            0 => self.singles,
            1 if self.singles == 2 * SINGLES => SINGLES + 1,
            1 => self.singles + 1,
            _ => 0,
        };
    }

    /// Whether the client sends one request at a time.
    pub(super) fn waits_for_answers(&self) -> bool {
        self.singles >= SINGLES
    }

    /// Whether the client may have more answers to take than one, and so more requests to send. A client that is behind
    /// may send one request at a time too: one for each answer that it takes. So every [`SINGLES`] turns it counts as
    /// one that may be behind.
    pub(super) fn may_be_behind(&self) -> bool {
        !self.waits_for_answers() || self.singles == 2 * SINGLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a client that is behind, and so sends one request for each answer that it takes, never gets time to take
    /// its answers.
    #[test]
    fn a_client_that_waits_for_its_answers_may_be_behind_now_and_then() {
        let mut manners = Manners::default();
        for turn in 1..5 * SINGLES {
            manners.note(1);
            assert_eq!(manners.waits_for_answers(), turn >= SINGLES, "turn {turn}");
            assert_eq!(manners.may_be_behind(), turn < SINGLES || turn > SINGLES && turn % SINGLES == 0, "turn {turn}");
            manners.note(0);
        }
        manners.note(2);
        assert!(!manners.waits_for_answers(), "it sends several together, and so has not waited");
    }
}
