//! The requests that the driver has.

use std::collections::{HashMap, VecDeque};

use blkmq_sched::Op;

/// A request counts as in the driver until it has completed, or at least so many later ones were issued.
const MOST_ISSUED: u64 = 65_536;

/// The requests at one place, each with its number, the oldest first.
type Requests<R> = VecDeque<(u64, R)>;

/// The requests that the driver has, by first sector and operation.
#[derive(Debug)]
pub(super) struct InDriver<R> {
    requests: HashMap<(u64, Op), Requests<R>>,
    /// Requests that were issued.
    nr_issued: u64,
}

impl<R> Default for InDriver<R> {
    fn default() -> Self {
        Self { requests: HashMap::new(), nr_issued: 0 }
    }
}

impl<R> InDriver<R> {
    /// Called when a request was issued.
    pub(super) fn push(&mut self, place: (u64, Op), rq: R) {
        self.requests.entry(place).or_default().push_back((self.nr_issued, rq));
        self.nr_issued += 1;
        if self.nr_issued.is_multiple_of(MOST_ISSUED) {
            let horizon = self.nr_issued - MOST_ISSUED;
            self.requests.retain(|_, requests| {
                requests.retain(|(number, _)| *number >= horizon);
                !requests.is_empty()
            });
        }
    }

    /// The request that was issued first of those at a place.
    pub(super) fn oldest(&mut self, place: (u64, Op)) -> Option<&mut R> {
        self.requests.get_mut(&place)?.front_mut().map(|(_, rq)| rq)
    }

    /// Removes it.
    pub(super) fn pop_oldest(&mut self, place: (u64, Op)) -> Option<R> {
        self.pop(place, VecDeque::pop_front)
    }

    /// Removes the request that was issued last of those at a place.
    pub(super) fn pop_newest(&mut self, place: (u64, Op)) -> Option<R> {
        self.pop(place, VecDeque::pop_back)
    }

    fn pop(&mut self, place: (u64, Op), end: fn(&mut Requests<R>) -> Option<(u64, R)>) -> Option<R> {
        let requests = self.requests.get_mut(&place)?;
        let rq = end(requests);
        if requests.is_empty() {
            self.requests.remove(&place);
        }
        rq.map(|(_, rq)| rq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if requests whose completions the trace lacks stay forever, or if one that has just been issued is lost.
    #[test]
    fn requests_that_never_complete_are_forgotten() {
        let mut driver = InDriver::default();
        let last = 5 * MOST_ISSUED;
        (0..=last).for_each(|sector| driver.push((sector, Op::Read), ()));
        assert!(driver.requests.len() as u64 <= 2 * MOST_ISSUED, "{}", driver.requests.len());
        assert!((last - MOST_ISSUED + 1..=last).all(|sector| driver.pop_newest((sector, Op::Read)).is_some()));
        assert!(driver.pop_newest((last, Op::Read)).is_none());
    }
}
