//! What is known of operations, by their number.

use std::collections::VecDeque;

/// What is known of each operation that has begun and is not over. The numbers rise, and no number is used twice.
#[derive(Debug)]
pub(super) struct Book<T> {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Default for Book<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Book<T> {
    pub(super) const fn new() -> Self {
        Self { first: 0, entries: VecDeque::new(), len: 0 }
    }

    /// How many operations have an entry.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Called when an operation begins. Returns false if its number is not a new one.
    pub(super) fn begin(&mut self, bio: u64, value: T) -> bool {
        if self.entries.is_empty() && bio >= self.first {
            self.first = bio;
        }
        let Some(at) = self.place(bio).filter(|at| *at >= self.entries.len()) else { return false };
        self.entries.resize_with(at, || None);
        self.entries.push_back(Some(value));
        self.len += 1;
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
        self.len -= 1;
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (self.first..).zip(&mut self.entries).filter_map(|(bio, entry)| Some((bio, entry.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::Book;

    #[test]
    fn operations_end_in_any_order_and_no_number_begins_twice() {
        let mut book = Book::new();
        assert!(book.begin(3, 'a') && book.begin(4, 'b') && book.begin(9, 'c'));
        assert!(!book.begin(4, 'x') && !book.begin(9, 'x') && !book.begin(2, 'x'));
        assert_eq!((book.end(4), book.end(4), book.end(5)), (Some('b'), None, None));
        assert_eq!(book.iter().collect::<Vec<_>>(), [(3, &'a'), (9, &'c')]);
        assert_eq!(book.those(|entry| *entry > 'a'), [9]);
        assert_eq!((book.end(3), book.get(9), book.len()), (Some('a'), Some(&'c'), 1));
        assert_eq!(book.end(9), Some('c'));
        assert!(!book.begin(9, 'x') && !book.begin(4, 'x') && book.begin(10, 'd'));
        *book.get_mut(10).unwrap() = 'e';
        assert_eq!(book.iter_mut().map(|(bio, entry)| (bio, *entry)).collect::<Vec<_>>(), [(10, 'e')]);
    }
}
