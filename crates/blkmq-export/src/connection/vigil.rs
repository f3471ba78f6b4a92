//! What a connection does between having nothing to do and sleeping: it looks again.
//!
//! One more look, after others had the processor, finds what a client that shares it has sent by then, many requests
//! together where it would have been woken for each. A client that waits for each answer before it asks again is looked
//! for longer, if it has been quick: to wake a processor takes longer than such a client does. Where others keep the
//! processor for longer than that is worth, they are not let in for a while: who sleeps is woken before them.

use blkmq::{Clock, Time};

/// How long a client that was quick the last time is looked for, in nanoseconds. Each time that it is not quick again,
/// it costs this.
const WATCH: u64 = 100_000;

/// What it is worth to find a request without being woken for it, in nanoseconds.
const WORTH: u64 = 50_000;

/// For how many times as long as others have kept the processor in vain they are not let in: no more than a sixteenth
/// of the time is lost to them, whoever they are.
const REST: u64 = 16;

/// Turns in a row, each with one request, after which a client counts as one that waits for its answers.
const SINGLES: u8 = 8;

/// Whom a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The client, to ask for something.
    Client,
    /// The client, to send the rest of a request.
    Sender,
    /// Somebody else too: the device, or who moves a virtual clock.
    Others,
}

/// How to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// What comes meanwhile is answered together with what came before.
    AtOnce,
    /// The same once the client has taken most of its answers, which it mostly has.
    AfterAnswers,
    /// After whoever else wants the processor has had it.
    Yielding,
}

/// The looks of one connection.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Not the queue's, which may go from tick to tick, or stand still.
    clock: Clock,
    /// Turns in a row that brought one request each, up to twice [`SINGLES`]; then on from there.
    singles: u8,
    /// Since when there was nothing to do.
    since: Option<Time>,
    last: Option<Look>,
    /// When it was said how to look the last time.
    looked: Time,
    /// It is for the client alone to go on.
    is_for_client: bool,
    /// The last time that it was, it took less than [`WATCH`].
    was_quick: bool,
    /// Until when others had the processor just before this turn, and for how many nanoseconds.
    yielded: Option<(Time, u64)>,
    /// Before this nobody is let in.
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
    /// One that sleeps at once, for the client waits for each answer, and others keep the processor.
    #[cfg(test)]
    pub(super) fn at_rest() -> Self {
        Self { singles: SINGLES, rest: Time(u64::MAX), ..Self::default() }
    }

    /// A turn brought so many requests.
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

    /// Others had the processor, as the last look said.
    pub(super) fn note_yield(&mut self) {
        self.note_yield_at(self.looked, self.clock.now());
    }

    fn note_yield_at(&mut self, start: Time, end: Time) {
        self.yielded = Some((end, end.since(start)));
    }

    /// There is nothing to do. Returns how to look again, or `None` to sleep.
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
                // It may be a client with so many answers to take that it sends one request for each.
                let may_be_behind = !waits_for_answers || self.singles == 2 * SINGLES;
                match awaited {
                    _ if !may_be_behind => yielding,
                    Awaited::Client => Some(Look::AfterAnswers),
                    // Who sends is in a hurry, and a device is not told by the client's socket.
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

    /// There was something to do.
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

    /// Turns of one request each, the next of which comes `gap` after the answer. Returns how it was looked for, if
    /// each look takes 10 us.
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

    /// Red if a client that is behind, and so sends one request for each answer that it takes, is never left alone.
    #[test]
    fn a_client_that_waits_for_its_answers_may_have_many_to_take_now_and_then() {
        let mut vigil = Vigil::default();
        let firsts: Vec<_> = (0..5 * SINGLES).map(|_| looks(&mut vigil, 0, 50_000)[0]).collect();
        for (turn, first) in (1..).zip(firsts) {
            let is_asked = turn < SINGLES || turn > SINGLES && turn % SINGLES == 0;
            assert_eq!(first == Look::AfterAnswers, is_asked, "turn {turn}");
        }
    }

    /// Red if a client that is sending, or a device that is at work, waits while answers are taken.
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

    /// Red if others are let in again and again who keep the processor: a client that waits for its answers would get
    /// one for each of their turns.
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
