//! What a connection does after it finds nothing to do and before it sleeps: it looks at its socket again.
//!
//! A look after other threads had the processor finds what a client on the same processor has sent by then. Such a look
//! finds many requests together, where otherwise each request would have woken the connection. If a client waits for
//! each answer before it asks again, and was quick the last time, the connection goes on with looks for some time,
//! because waking a processor takes longer than such a client does. If other threads keep the processor for longer than
//! a look is worth, the connection does not yield to them for a while. The connection sleeps instead, because a thread
//! that is woken gets the processor before the others.

use blkmq::{Clock, Time};

/// How long the connection looks for a request of a client that was quick the last time, in nanoseconds: twice what a
/// wake-up takes ([`WORTH`]). If the client is not quick again, this time is lost.
const WATCH: u64 = 100_000;

/// How many nanoseconds the connection saves when it finds a request without being woken for it: to be woken takes some
/// 50 us on a virtual processor that sleeps too.
const WORTH: u64 = 50_000;

/// After other threads have kept the processor in vain for some time, the connection does not yield for this many times
/// as long. So the connection loses at most a sixteenth of the time to them.
const REST: u64 = 16;

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

/// How a connection looks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// At once. Requests that came meanwhile are answered together with those that came before.
    AtOnce,
    /// After the client has taken most of its answers. Mostly it has done so already.
    AfterAnswers,
    /// After other threads that want the processor have had it.
    Yielding,
}

/// The state that decides how one connection looks again.
#[derive(Debug)]
pub(super) struct Vigil {
    /// A clock of its own, because the queue's clock may move only from tick to tick, or stand still.
    clock: Clock,
    /// The number of turns in a row that brought one request each, counted up to twice [`SINGLES`].
    singles: u8,
    /// When there began to be nothing to do.
    since: Option<Time>,
    last: Option<Look>,
    /// The time of the last decision how to look.
    looked: Time,
    /// Whether only the client can make the connection go on.
    is_for_client: bool,
    /// Whether the last wait for the client alone took less than [`WATCH`].
    was_quick: bool,
    /// When other threads had the processor just before this turn, and for how many nanoseconds.
    yielded: Option<(Time, u64)>,
    /// The connection does not yield before this time.
    rest: Time,
}

impl Default for Vigil {
    fn default() -> Self {
        Self {
            clock: Clock::real(),
            singles: 0,
            since: None,
            last: None,
            looked: Time(0),
            is_for_client: false,
            was_quick: false,
            yielded: None,
            rest: Time(0),
        }
    }
}

impl Vigil {
    /// A vigil that sleeps at once, because the client waits for each answer and other threads keep the processor.
    #[cfg(test)]
    pub(super) fn at_rest() -> Self {
        Self { singles: SINGLES, rest: Time(u64::MAX), ..Self::default() }
    }

    /// Called when a turn brought this many requests.
    pub(super) fn note(&mut self, requests: usize) {
        if let Some((end, took)) = self.yielded.take()
            && took > WORTH * requests.max(1) as u64
        {
            self.rest = end.after(REST.saturating_mul(took));
        }
        self.singles = match requests {
            0 => self.singles,
            1 if self.singles == 2 * SINGLES => SINGLES + 1,
            1 => self.singles + 1,
            _ => 0,
        };
    }

    /// Called when other threads had the processor, after a look of the kind [`Look::Yielding`].
    pub(super) fn note_yield(&mut self) {
        self.note_yield_at(self.looked, self.clock.now());
    }

    fn note_yield_at(&mut self, start: Time, end: Time) {
        self.yielded = Some((end, end.since(start)));
    }

    /// Called when there is nothing to do. Returns how to look again, or `None` to sleep.
    ///
    /// COST: a clock reading.
    pub(super) fn look(&mut self, awaited: Awaited) -> Option<Look> {
        self.look_at(self.clock.now(), awaited)
    }

    fn look_at(&mut self, now: Time, awaited: Awaited) -> Option<Look> {
        self.looked = now;
        let is_for_client = awaited != Awaited::Others;
        let waits_for_answers = self.singles >= SINGLES;
        let yielding = (now >= self.rest).then_some(Look::Yielding);
        self.last = match (self.since, self.last) {
            (None, _) => {
                (self.since, self.is_for_client) = (Some(now), is_for_client);
                // A client that has many answers to take may also send one request at a time: one for each answer that
                // it takes. So every [`SINGLES`] turns it is left alone once more.
                let may_be_behind = !waits_for_answers || self.singles == 2 * SINGLES;
                match awaited {
                    _ if !may_be_behind => yielding,
                    Awaited::Client => Some(Look::AfterAnswers),
                    // A client that is sending is in a hurry. And the client's socket tells nothing of the device.
                    Awaited::Sender | Awaited::Others => Some(Look::AtOnce),
                }
            }
            (Some(_), Some(Look::AtOnce | Look::AfterAnswers)) => yielding,
            (Some(since), _) => {
                let is_worth_it = waits_for_answers && is_for_client && self.was_quick && now.since(since) < WATCH;
                yielding.filter(|_| is_worth_it)
            }
        };
        self.last
    }

    /// Called when there was something to do.
    ///
    /// COST: a clock reading if there was nothing before.
    pub(super) fn end(&mut self) {
        if self.since.is_some() {
            self.end_at(self.clock.now());
        }
    }

    fn end_at(&mut self, now: Time) {
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

    /// Turns with one request each. Each request comes `gap` after the last answer. Returns how the connection looked
    /// for it, if each look takes 10 us.
    fn looks(vigil: &mut Vigil, start: u64, gap: u64) -> Vec<Look> {
        vigil.note(1);
        let looks =
            (0..gap / 10_000).map_while(|look| vigil.look_at(Time(start + look * 10_000), Awaited::Client)).collect();
        vigil.end_at(Time(start + gap));
        looks
    }

    const TWO: [Look; 2] = [Look::AfterAnswers, Look::Yielding];

    #[test]
    fn a_client_that_waits_for_its_answers_is_looked_for_if_it_is_quick() {
        let mut vigil = Vigil::default();
        for turn in 1..SINGLES {
            assert_eq!(looks(&mut vigil, 0, 50_000), TWO, "in turn {turn} it is not known yet");
        }
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding; 5], "it was quick");
        assert_eq!(looks(&mut vigil, 0, 1_000_000), [Look::Yielding; 10], "it is not looked for for ever");
        assert_eq!(looks(&mut vigil, 0, 1_000_000), [Look::Yielding], "it was not quick");
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding], "nor was it then");
        assert_eq!(looks(&mut vigil, 0, 50_000), [Look::Yielding; 5]);
        vigil.note(2);
        assert_eq!(looks(&mut vigil, 0, 50_000), TWO, "it sends several together, and so has not waited");
    }

    /// Red if a client that is behind, and so sends one request for each answer that it takes, never gets time to take
    /// its answers.
    #[test]
    fn a_client_that_waits_for_its_answers_may_have_many_to_take_now_and_then() {
        let mut vigil = Vigil::default();
        let firsts: Vec<_> = (0..5 * SINGLES).map(|_| looks(&mut vigil, 0, 50_000)[0]).collect();
        for (turn, first) in (1..).zip(firsts) {
            let is_asked = turn < SINGLES || turn > SINGLES && turn % SINGLES == 0;
            assert_eq!(first == Look::AfterAnswers, is_asked, "turn {turn}");
        }
    }

    /// Red if a client that is sending, or a device that is at work, has to wait while the client takes answers.
    #[test]
    fn only_a_client_that_may_ask_for_something_is_left_alone() {
        for (awaited, first) in
            [(Awaited::Client, Look::AfterAnswers), (Awaited::Sender, Look::AtOnce), (Awaited::Others, Look::AtOnce)]
        {
            let mut vigil = Vigil::default();
            let looks = [0, 1, 2].map(|time| vigil.look_at(Time(time), awaited));
            assert_eq!(looks, [Some(first), Some(Look::Yielding), None], "{awaited:?}");
        }
    }

    #[test]
    fn what_a_device_takes_is_not_put_down_to_the_client() {
        let mut vigil = Vigil::default();
        for _ in 0..=SINGLES {
            looks(&mut vigil, 0, 50_000);
        }
        assert_eq!([0, 1].map(|time| vigil.look_at(Time(time), Awaited::Others)), [Some(Look::Yielding), None]);
        vigil.end_at(Time(1_000_000));
        assert_eq!(looks(&mut vigil, 0, 50_000).len(), 5);
    }

    /// Red if the connection yields again and again to threads that keep the processor: a client that waits for its
    /// answers would get only one answer for each of their turns.
    #[test]
    fn who_keeps_the_processor_for_long_is_not_let_in_for_a_while() {
        let mut vigil = Vigil::default();
        for _ in 0..=SINGLES {
            looks(&mut vigil, 0, 50_000);
        }
        vigil.note_yield_at(Time(0), Time(WORTH + 1));
        vigil.note(1);
        let again = WORTH + 1 + REST * (WORTH + 1);
        assert_eq!(looks(&mut vigil, WORTH + 1, 50_000), []);
        assert_eq!(looks(&mut vigil, again - 50_001, 50_000), []);
        assert_eq!(looks(&mut vigil, again, 50_000), [Look::Yielding; 5], "it is tried again");
    }

    #[test]
    fn letting_others_in_may_take_long_if_it_brings_many_requests() {
        for (took, requests, second) in
            [(10 * WORTH, 10, Some(Look::Yielding)), (10 * WORTH, 9, None), (WORTH + 1, 0, None)]
        {
            let mut vigil = Vigil::default();
            vigil.note_yield_at(Time(0), Time(took));
            vigil.note(requests);
            let looks = [0, 1].map(|time| vigil.look_at(Time(took + time), Awaited::Client));
            assert_eq!(looks, [Some(Look::AfterAnswers), second], "{requests} requests in {took} ns");
        }
    }
}
