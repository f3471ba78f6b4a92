//! The requests that the driver has.

use std::collections::HashMap;

use blkmq_sched::{Class, Op};

/// A request counts as in the driver until it has completed, or at least so many later ones were issued.
const MOST_ISSUED: u64 = 65_536;

/// A request that the driver has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Issued {
    pub(super) class: Class,
    /// In nanoseconds.
    pub(super) allocated: u64,
    pub(super) issued: u64,
}

/// The requests that the driver has, by first sector and operation.
#[derive(Debug, Default)]
pub(super) struct InDriver {
    /// Each with its number.
    requests: HashMap<(u64, Op), Vec<(u64, Issued)>>,
    /// Requests that were issued.
    nr_issued: u64,
}

impl InDriver {
    /// Called when a request was issued.
    pub(super) fn push(&mut self, place: (u64, Op), rq: Issued) {
        self.requests.entry(place).or_default().push((self.nr_issued, rq));
        self.nr_issued += 1;
        if self.nr_issued.is_multiple_of(MOST_ISSUED) {
            let horizon = self.nr_issued - MOST_ISSUED;
            self.requests.retain(|_, requests| {
                requests.retain(|(number, _)| *number >= horizon);
                !requests.is_empty()
            });
        }
    }

    /// Removes the request that was issued last of those at a place.
    pub(super) fn pop(&mut self, place: (u64, Op)) -> Option<Issued> {
        let requests = self.requests.get_mut(&place)?;
        let rq = requests.pop();
        if requests.is_empty() {
            self.requests.remove(&place);
        }
        rq.map(|(_, rq)| rq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if requests whose completions the trace lacks stay for ever, or if one that has just been issued is lost.
    #[test]
    fn requests_that_never_complete_are_forgotten() {
        let mut driver = InDriver::default();
        let rq = Issued { class: Class::BestEffort, allocated: 0, issued: 0 };
        let last = 5 * MOST_ISSUED;
        (0..=last).for_each(|sector| driver.push((sector, Op::Read), rq));
        assert!(driver.requests.len() as u64 <= 2 * MOST_ISSUED, "{}", driver.requests.len());
        assert!((last - MOST_ISSUED + 1..=last).all(|sector| driver.pop((sector, Op::Read)).is_some()));
        assert!(driver.pop((last, Op::Read)).is_none());
    }
}
