//! What a connection does between having nothing to do and sleeping: it looks again.
//!
//! One more look, after others had the processor, finds what a client that shares it has sent by then, many requests together
//! where it would have been woken for each. A client that waits for each answer before it asks again is looked for longer, if
//! it has been quick: to wake a processor takes longer than such a client does.

use blkmq::Time;

/// How long a client that was quick the last time is looked for, in nanoseconds. A client that is as quick as this costs no more
/// processor time than to sleep and be woken does, where the processor is a virtual one; each time that it is not, it costs this.
const WATCH: u64 = 100_000;

/// Turns in a row, each with one request, after which a client counts as one that waits for its answers.
const SINGLES: u8 = 8;

/// How to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// What comes meanwhile is answered together with what came before.
    AtOnce,
    /// After whoever else wants the processor has had it.
    Yielding,
}

/// The looks of one connection.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    /// Turns in a row that brought one request each.
    singles: u8,
    /// Since when there was nothing to do.
    since: Option<Time>,
    last: Option<Look>,
    /// It is for the client alone to go on.
    is_for_client: bool,
    /// The last time that it was, it took less than [`WATCH`].
    was_quick: bool,
}

impl Vigil {
    /// A turn brought so many requests.
    pub(super) fn note(&mut self, requests: usize) {
        self.singles = match requests {
            0 => self.singles,
            1 => self.singles.saturating_add(1),
            _ => 0,
        };
    }

    /// There is nothing to do, and it `is_for_client` alone to change that. Returns how to look again, or `None` to sleep.
    pub(super) fn look(&mut self, now: Time, is_for_client: bool) -> Option<Look> {
        let waits_for_answers = self.singles >= SINGLES;
        self.last = match (self.since, self.last) {
            (None, _) => {
                (self.since, self.is_for_client) = (Some(now), is_for_client);
                Some(if waits_for_answers { Look::Yielding } else { Look::AtOnce })
            }
            (Some(_), Some(Look::AtOnce)) => Some(Look::Yielding),
            (Some(since), _) => {
                let is_worth_it = waits_for_answers && is_for_client && self.was_quick && now.since(since) < WATCH;
                is_worth_it.then_some(Look::Yielding)
            }
        };
        self.last
    }

    /// There was something to do.
    pub(super) fn end(&mut self, now: Time) {
        if let Some(since) = self.since.take()
            && self.is_for_client
        {
            self.was_quick = now.since(since) < WATCH;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of one request each, the next of which comes `gap` after the answer. Returns how it was looked for, if each look takes 10 us.
    fn looks(vigil: &mut Vigil, start: u64, gap: u64) -> Vec<Look> {
        vigil.note(1);
        let looks = (0..gap / 10_000).map_while(|look| vigil.look(Time(start + look * 10_000), true)).collect();
        vigil.end(Time(start + gap));
        looks
    }

    const TWO: [Look; 2] = [Look::AtOnce, Look::Yielding];

    #[test]
    fn a_client_that_waits_for_its_answers_is_looked_for_if_it_is_quick() {
        let mut vigil = Vigil::default();
        for turn in 1..SINGLES {
            assert_eq!(looks(&mut vigil, 0, 50_000), TWO, "in turn {turn} nobody knows what it does");
        }
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding; 5], "it was quick");
        assert_eq!(looks(&mut vigil, 0, 1_000_000), [Look::Yielding; 10], "it is not looked for for ever");
        assert_eq!(looks(&mut vigil, 0, 1_000_000), [Look::Yielding], "it was not quick");
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding], "nor was it then");
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding; 5]);
        vigil.note(2);
        assert_eq!(looks(&mut vigil, 0, 50_000), TWO, "it sends several together, and so has not waited");
    }

    #[test]
    fn what_a_device_takes_is_not_put_down_to_the_client() {
        let mut vigil = Vigil::default();
        for _ in 0..=SINGLES {
            looks(&mut vigil, 0, 50_000);
        }
        assert_eq!([0, 1].map(|time| vigil.look(Time(time), false)), [Some(Look::Yielding), None]);
        vigil.end(Time(1_000_000));
        assert_eq!(looks(&mut vigil, 0, 50_000).len(), 5);
    }
}
