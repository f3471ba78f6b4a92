//! Who take turns by what each was served, in units of its own.
//!
//! Each has a tag that grows by what it is served, and whoever has the least tag of those that wait is served next. Let
//! `g` wait from `s` to `t`, and let `M` be the most that one turn adds to a tag. Who comes starts at the tag that was
//! served last, or at its own if that is larger, and so nobody starts below that tag at `s`. What `f` is served begins
//! at a tag of at most that of `g`, so at `t` its tag is at most `M(f)` above that of `g`; and at `s` the tag of `g`
//! was at most `M(g)` above the one that was served last. So between `s` and `t`, `f` is served at most `M(f) + M(g)`
//! more than `g`, whether `f` waits all the time or not. If both wait, this holds in both directions.

use std::collections::BTreeMap;

/// One who takes turns.
#[derive(Debug, Clone, Copy, Default)]
struct Contender {
    /// What waits.
    nr_waiting: u64,
    served: f64,
    /// The most that one turn has added.
    most: f64,
}

/// One who got ahead of another one that waited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Passed<K> {
    pub(super) other: K,
    /// By how much, and by how much it may.
    pub(super) by: f64,
    pub(super) bound: f64,
}

/// Those who take turns.
#[derive(Debug)]
pub(super) struct Race<K> {
    contenders: BTreeMap<K, Contender>,
    /// For one, and one that waits: the least that the first was ahead of the second since that waits.
    least: BTreeMap<(K, K), f64>,
    most: f64,
}

impl<K> Default for Race<K> {
    fn default() -> Self {
        Self { contenders: BTreeMap::new(), least: BTreeMap::new(), most: 0.0 }
    }
}

impl<K: Copy + Ord> Race<K> {
    fn contender(&mut self, of: K) -> &mut Contender {
        self.contenders.entry(of).or_default()
    }

    /// One thing more waits.
    pub(super) fn joins(&mut self, of: K) {
        self.contender(of).nr_waiting += 1;
    }

    /// Something waits no more.
    pub(super) fn leaves(&mut self, of: K) {
        self.contender(of).nr_waiting -= 1;
        if !self.waits(of) {
            self.least.retain(|(_, other), _| *other != of);
        }
    }

    pub(super) fn waits(&self, of: K) -> bool {
        self.contenders.get(&of).is_some_and(|contender| contender.nr_waiting > 0)
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.contenders.values().any(|contender| contender.nr_waiting > 0)
    }

    /// The most that a turn has added.
    pub(super) const fn most(&self) -> f64 {
        self.most
    }

    /// The most that a turn of this one has added.
    pub(super) fn turn(&self, of: K) -> f64 {
        self.contenders.get(&of).map_or(0.0, |contender| contender.most)
    }

    /// A turn may have added so much to a tag.
    pub(super) fn note_turn(&mut self, of: K, turn: f64) {
        let contender = self.contender(of);
        contender.most = contender.most.max(turn);
        self.most = self.most.max(turn);
    }

    /// One is served so much, as a part of a turn that was noted. Returns the first of those that wait of which it is
    /// further ahead than by the turns of both, and by `more`.
    pub(super) fn serve(&mut self, of: K, charge: f64, more: f64) -> Option<Passed<K>> {
        let contender = self.contender(of);
        let before = *contender;
        contender.served += charge;
        let (after, most) = (*contender, self.most);
        let mut passed = None;
        for (other, waiting) in
            self.contenders.iter().filter(|(other, contender)| **other != of && contender.nr_waiting > 0)
        {
            let least = *self.least.entry((of, *other)).or_insert(before.served - waiting.served);
            // The tag of one that was not served yet is at most as far ahead as that of any other one.
            let turn = if waiting.most > 0.0 { waiting.most } else { most };
            let (by, bound) = (after.served - waiting.served - least, after.most + turn + more);
            // Tags are whole numbers.
            if by > 1.01 * bound + 1.0 {
                passed = Some(Passed { other: *other, by, bound });
            }
        }
        for ((ahead, other), least) in &mut self.least {
            if *other == of {
                *least = least.min(self.contenders[ahead].served - after.served);
            }
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if one who is served twice the turn of each beside one who waits is not told of, or one who is served what
    /// the other left before it waited is.
    #[test]
    fn one_is_ahead_of_another_that_waits_by_the_turns_of_both() {
        let mut race = Race::default();
        let serve = |race: &mut Race<u8>, of| {
            race.note_turn(of, 10.0);
            race.serve(of, 10.0, 0.0)
        };
        (0..5).for_each(|_| assert_eq!(serve(&mut race, 1), None, "nobody waits"));
        race.joins(2);
        assert_eq!(serve(&mut race, 2), None);
        (0..2).for_each(|_| assert_eq!(serve(&mut race, 1), None, "within the turns of both"));
        assert_eq!(serve(&mut race, 1), Some(Passed { other: 2, by: 30.0, bound: 20.0 }));
        race.leaves(2);
        assert_eq!(serve(&mut race, 1), None, "nobody waits");
    }
}
