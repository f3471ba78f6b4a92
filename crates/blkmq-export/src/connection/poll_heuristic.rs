//! How a client asks: for one thing at a time, waiting for each answer, or for several together; and what a connection
//! does because of this when it has nothing to do.

/// After this many turns in a row with one request each, a client counts as one that waits for its answers.
const SINGLES: u8 = 8;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The client, which may ask for something.
    Client,
    /// The client, which has to send the rest of a request.
    Sender,
    /// Something besides the client: the device, or a thread that moves a virtual clock.
    Others,
}

/// What a connection does that has found nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It gives the client time to take its answers, and looks again.
    LeaveAlone,
    /// It looks again at once.
    Recheck,
    /// It looks if the idle policy allows that, and otherwise sleeps.
    Look,
    /// It sleeps.
    Sleep,
}

/// What the last turns with a client have shown.
#[derive(Debug, Default)]
pub(super) struct PollHeuristic {
    /// The number of turns in a row that brought one request each, counted up to twice [`SINGLES`].
    singles: u8,
}

impl PollHeuristic {
    /// The poll heuristic of a client that waits for its answers.
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

    /// Returns true if the client sends one request at a time.
    pub(super) fn waits_for_answers(&self) -> bool {
        self.singles >= SINGLES
    }

    /// Returns true if the client may have more answers to take than one, and so more requests to send. A client that
    /// is behind may send one request at a time too: one for each answer that it takes. So every [`SINGLES`] turns it
    /// counts as one that may be behind.
    pub(super) fn may_be_behind(&self) -> bool {
        !self.waits_for_answers() || self.singles == 2 * SINGLES
    }

    /// What a connection does that waits for this. `is_first`: it has not rested since there was something to do.
    pub(super) fn rest(&self, awaited: Awaited, is_first: bool) -> Rest {
        match awaited {
            Awaited::Client if is_first && self.may_be_behind() => Rest::LeaveAlone,
            // A client that is sending is in a hurry. And the client's socket tells nothing of the device.
            Awaited::Sender | Awaited::Others if is_first && self.may_be_behind() => Rest::Recheck,
            Awaited::Client | Awaited::Sender if self.waits_for_answers() => Rest::Look,
            // A client that sends several requests together is given the time to do so. And how long others take says
            // nothing of the client.
            Awaited::Client | Awaited::Sender | Awaited::Others => Rest::Sleep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a connection looks for a client that sends several requests together, or for what is not the client; if
    /// it leaves a client alone that is sending; or if it never looks for a client that waits for its answers.
    #[test]
    fn a_connection_rests_as_its_client_asks() {
        let all = |poll_heuristic: &PollHeuristic, is_first| {
            [Awaited::Client, Awaited::Sender, Awaited::Others].map(|awaited| poll_heuristic.rest(awaited, is_first))
        };
        let together = PollHeuristic::default();
        assert_eq!(all(&together, true), [Rest::LeaveAlone, Rest::Recheck, Rest::Recheck]);
        assert_eq!(all(&together, false), [Rest::Sleep; 3]);
        let single = PollHeuristic::single();
        for is_first in [true, false] {
            assert_eq!(all(&single, is_first), [Rest::Look, Rest::Look, Rest::Sleep]);
        }
        let now_and_then = PollHeuristic { singles: 2 * SINGLES };
        assert_eq!(all(&now_and_then, true), all(&together, true));
        assert_eq!(all(&now_and_then, false), all(&single, false));
    }

    /// Red if a client that is behind, and so sends one request for each answer that it takes, never gets time to take
    /// its answers.
    #[test]
    fn a_client_that_waits_for_its_answers_may_be_behind_now_and_then() {
        let mut poll_heuristic = PollHeuristic::default();
        for turn in 1..5 * SINGLES {
            poll_heuristic.note(1);
            assert_eq!(poll_heuristic.waits_for_answers(), turn >= SINGLES, "turn {turn}");
            assert_eq!(
                poll_heuristic.may_be_behind(),
                turn < SINGLES || turn > SINGLES && turn % SINGLES == 0,
                "turn {turn}"
            );
            poll_heuristic.note(0);
        }
        poll_heuristic.note(2);
        assert!(!poll_heuristic.waits_for_answers(), "it sends several together, and so has not waited");
    }
}
