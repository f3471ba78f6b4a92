//! A set of numbers of hardware queues.

/// A set of numbers below a limit, from which they are taken in order.
#[derive(Debug)]
pub(super) struct IndexSet {
    words: Box<[u64]>,
    len: usize,
}

impl IndexSet {
    /// An empty set for numbers below `limit`, a multiple of 64.
    pub(super) fn new(limit: usize) -> Self {
        debug_assert!(limit > 0 && limit.is_multiple_of(64), "{limit} numbers fill whole words");
        Self { words: vec![0; limit / 64].into_boxed_slice(), len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn add(&mut self, index: u16) {
        let word = &mut self.words[usize::from(index / 64)];
        let bit = 1 << (index % 64);
        self.len += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Takes the smallest number.
    pub(super) fn take(&mut self) -> Option<u16> {
        if self.len == 0 {
            return None;
        }
        debug_assert!(self.words.iter().any(|word| *word != 0), "what was added is in the set");
        let (at, word) = (0u16..).zip(self.words.iter_mut()).find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as u16;
        *word &= *word - 1;
        self.len -= 1;
        Some(at * 64 + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once_and_in_order() {
        let mut set = IndexSet::new(192);
        [130, 5, 64, 130, 191, 0].into_iter().for_each(|index| set.add(index));
        let taken: Vec<_> = std::iter::from_fn(|| set.take()).collect();
        assert_eq!(taken, [0, 5, 64, 130, 191]);
        assert!(set.is_empty());
    }
}
