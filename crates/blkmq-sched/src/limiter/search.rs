//! The search for the smallest bound with which throughput stays: bounds are numbered by how often what is usual was
//! halved, and the range of those that come into question is halved with each trial.

/// Reads are faster if they take at most this part of what they took.
const FASTER: f64 = 0.9;

/// A bound is worth it if reads take at most this part of what they took without.
const WORTH: f64 = 0.7;

/// A bound that keeps the throughput, and how long reads took with it and without, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct SustainedBound {
    bound: u64,
    read: u64,
    open_read: u64,
}

/// What comes into question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// What is with the device without a bound, in nanoseconds of cost.
    usual: u64,
    /// The largest number that is known to keep the throughput, and the smallest that is out of question.
    keeps: u32,
    loses: u32,
    tried: u32,
    best: Option<SustainedBound>,
}

impl Search {
    /// Searches among the halves of what is usual, down to one request. `requests` are with the device without a
    /// bound.
    pub(super) fn new(usual: u64, requests: u64) -> Self {
        Self { usual, keeps: 0, loses: requests.max(1).ilog2() + 1, tried: 0, best: None }
    }

    /// The bound to be tried next, at least 1. `None`: the search is over.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.tried = self.keeps.midpoint(self.loses);
        (self.tried > self.keeps).then(|| self.bound())
    }

    fn bound(&self) -> u64 {
        (self.usual >> self.tried).max(1)
    }

    /// The bound that was tried costs throughput.
    pub(super) fn note_lost(&mut self) {
        debug_assert!(self.tried < self.loses, "a bound is out of question once");
        self.loses = self.tried;
    }

    /// The bound that was tried keeps the throughput. If it brings reads nothing more, a smaller one does not either.
    pub(super) fn note_kept(&mut self, open_read: u64, read: u64) {
        debug_assert!(self.tried < self.loses, "a bound that is out of question is not kept");
        let is_faster = |best: &SustainedBound| (read as f64) < FASTER * best.read as f64;
        if self.best.as_ref().is_none_or(is_faster) {
            self.keeps = self.tried;
            self.best = Some(SustainedBound { bound: self.bound(), read, open_read });
        } else {
            self.loses = self.tried;
        }
    }

    /// The best bound that was tried, if one is worth it.
    pub(super) fn best(self) -> Option<u64> {
        let best = self.best.filter(|best| best.read as f64 <= WORTH * best.open_read as f64)?;
        Some(best.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Red if the search does not end, or misses the smallest bound that keeps the throughput of a device whose
        /// reads take as long as its line is.
        #[test]
        fn the_smallest_bound_that_keeps_the_throughput_is_found(needs in 1_u64..1000, has in 1_u64..5000) {
            let each = 1000;
            let mut search = Search::new(has * each, has);
            let mut tries = 0;
            while let Some(bound) = search.next() {
                tries += 1;
                prop_assert!(tries <= 5, "13 bounds are searched in four tries");
                if bound >= needs * each {
                    search.note_kept(has * each, bound);
                } else {
                    search.note_lost();
                }
            }
            match search.best() {
                Some(best) => prop_assert!((needs * each..2 * needs * each).contains(&best), "{best}"),
                None => prop_assert!(has < 2 * needs),
            }
        }
    }
}
