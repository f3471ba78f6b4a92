//! What is known of operations, by their number.

use std::collections::VecDeque;

/// What is known of each operation that has begun and is not over. The numbers rise, and no number is used twice.
#[derive(Debug)]
pub(super) struct Book<T> {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Option<T>>,
}

impl<T> Default for Book<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Book<T> {
    pub(super) const fn new() -> Self {
        Self { first: 0, entries: VecDeque::new() }
    }

    /// Called when an operation begins. Returns false if its number is not a new one.
    pub(super) fn begin(&mut self, bio: u64, value: T) -> bool {
        if self.entries.is_empty() && bio >= self.first {
            self.first = bio;
        }
        let Some(at) = self.place(bio).filter(|at| *at >= self.entries.len()) else { return false };
        self.entries.resize_with(at, || None);
        self.entries.push_back(Some(value));
        true
    }

    fn place(&self, bio: u64) -> Option<usize> {
        usize::try_from(bio.checked_sub(self.first)?).ok()
    }

    pub(super) fn get(&self, bio: u64) -> Option<&T> {
        self.entries.get(self.place(bio)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, bio: u64) -> Option<&mut T> {
        let at = self.place(bio)?;
        self.entries.get_mut(at)?.as_mut()
    }

    /// Called when an operation is over.
    pub(super) fn end(&mut self, bio: u64) -> Option<T> {
        let at = self.place(bio)?;
        let value = self.entries.get_mut(at)?.take()?;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        Some(value)
    }

    /// The numbers of the operations for which `is_meant` returns true, in order.
    pub(super) fn those(&self, is_meant: impl Fn(&T) -> bool) -> Vec<u64> {
        self.iter().filter(|(_, entry)| is_meant(entry)).map(|(bio, _)| bio).collect()
    }

    /// All entries, in the order of the numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.first..).zip(&self.entries).filter_map(|(bio, entry)| Some((bio, entry.as_ref()?)))
    }
}
