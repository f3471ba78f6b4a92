//! Faults on purpose: which request is struck, and how.

use crate::driver::parameter::Fault;
use crate::driver::random::draw;
use blkmq_sync::{Mutex, place_anew};

/// The sequence of one fault, a function of the fault's numbers and the seed alone.
#[derive(Debug)]
struct Sequence {
    fault: Fault,
    seen: u64,
    struck: u32,
    random: u64,
}

impl Sequence {
    const fn new(fault: Fault, seed: u64) -> Self {
        Self { fault, seen: 0, struck: 0, random: seed }
    }

    /// Whether the next request is struck.
    fn strikes(&mut self) -> bool {
        self.seen += 1;
        let Fault { interval, probability, space, times } = self.fault;
        let past_space = self.seen.saturating_sub(u64::from(space));
        if past_space == 0 || !past_space.is_multiple_of(u64::from(interval)) || times.is_some_and(|n| self.struck >= n)
        {
            return false;
        }
        let strikes = draw(&mut self.random) % 100 < u64::from(probability);
        self.struck = self.struck.saturating_add(u32::from(strikes));
        strikes
    }
}

/// What happens to a request that is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strike {
    /// The device has no room for it.
    Refuse,
    /// The device gives it back.
    Requeue,
    /// The device takes it and never answers.
    Swallow,
}

#[derive(Debug)]
struct Sequences {
    timeout: Option<Sequence>,
    requeue: Option<Sequence>,
    /// How the request that `requeue` struck before this one came back. The two ways alternate.
    refused_last: bool,
}

/// The faults of a device. All its hardware queues share the sequences, so the faults are as reproducible as the order
/// in which requests reach the device.
#[derive(Debug)]
pub(super) struct Injection(Mutex<Sequences>);

impl Injection {
    /// `None` if there is no fault to inject.
    pub(super) fn new(timeout: Option<Fault>, requeue: Option<Fault>, seed: u64) -> Option<Self> {
        let sequence = |fault: Option<Fault>, seed| fault.map(|fault| Sequence::new(fault, seed));
        (timeout.is_some() || requeue.is_some()).then(|| {
            let (timeout, requeue) = (sequence(timeout, seed), sequence(requeue, !seed));
            Self(Mutex::new(Sequences { timeout, requeue, refused_last: false }))
        })
    }

    /// What happens to the next request, if anything.
    pub(super) fn next(&self) -> Option<Strike> {
        place_anew("null.faults", &self.0);
        let mut state = self.0.lock();
        if state.requeue.as_mut().is_some_and(Sequence::strikes) {
            state.refused_last = !state.refused_last;
            return Some(if state.refused_last { Strike::Refuse } else { Strike::Requeue });
        }
        state.timeout.as_mut().is_some_and(Sequence::strikes).then_some(Strike::Swallow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers, from 1, of the requests that are struck among the first `n`.
    fn struck(fault: &str, seed: u64, n: u32) -> Vec<u32> {
        let mut sequence = Sequence::new(fault.parse().unwrap(), seed);
        (1..=n).filter(|_| sequence.strikes()).collect()
    }

    #[test]
    fn each_of_the_four_numbers_does_what_its_description_says() {
        assert_eq!(struck("1,100,0,-1", 0, 4), [1, 2, 3, 4]);
        assert_eq!(struck("3,100,0,-1", 0, 10), [3, 6, 9]);
        assert_eq!(struck("1,100,2,-1", 0, 5), [3, 4, 5]);
        assert_eq!(struck("1,100,0,2", 0, 9), [1, 2]);
        assert_eq!(struck("2,100,3,2", 0, 12), [5, 7]);
        assert_eq!(struck("1,0,0,-1", 0, 1000), []);
    }

    #[test]
    fn the_seed_decides_and_the_share_is_the_probability() {
        let first = struck("1,30,0,-1", 7, 10_000);
        assert_eq!(first, struck("1,30,0,-1", 7, 10_000));
        assert_ne!(first, struck("1,30,0,-1", 8, 10_000));
        // Four standard deviations of a binomial distribution with n = 10000 and p = 0.3.
        assert!((2816..=3184).contains(&first.len()), "{}", first.len());
    }

    #[test]
    fn requests_struck_by_requeue_are_refused_and_given_back_in_turn() {
        let fault = "2,100,0,-1".parse().ok();
        let injection = Injection::new(None, fault, 0).unwrap();
        let strikes: Vec<_> = (0..6).map(|_| injection.next()).collect();
        assert_eq!(strikes, [None, Some(Strike::Refuse), None, Some(Strike::Requeue), None, Some(Strike::Refuse)]);
        let injection = Injection::new(fault, None, 0).unwrap();
        assert_eq!([injection.next(), injection.next()], [None, Some(Strike::Swallow)]);
        assert!(Injection::new(None, None, 0).is_none());
    }
}
