//! The operations that have not completed, by number.

use std::collections::VecDeque;

use super::spool::Record;

/// An operation that has not completed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Followed {
    pub(super) process: usize,
    pub(super) record: Record,
    /// How many pieces of it have not completed.
    pub(super) left: u32,
    /// It may still be in its task's plug.
    pub(super) is_held: bool,
}

/// Operations in the order of their numbers, with gaps where one has completed.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// The number of the first one.
    first: u64,
    /// Begins with an operation, not with a gap.
    all: VecDeque<Option<Followed>>,
}

impl Operations {
    /// The number of the oldest operation; `None` if there is none.
    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.all.is_empty()).then_some(self.first)
    }

    /// Adds the operation of the number after the last one.
    pub(super) fn push(&mut self, number: u64, operation: Followed) {
        if self.all.is_empty() {
            self.first = number;
        }
        self.all.push_back(Some(operation));
    }

    /// The operation of this number, unless it has been removed.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Followed> {
        let at = number.checked_sub(self.first)?;
        self.all.get_mut(at as usize)?.as_mut()
    }

    /// Whether there is an operation of this number.
    pub(super) fn contains(&self, number: u64) -> bool {
        number.checked_sub(self.first).and_then(|at| self.all.get(at as usize)).is_some_and(Option::is_some)
    }

    /// Removes the operation of this number.
    pub(super) fn remove(&mut self, number: u64) -> Option<Followed> {
        let at = number.checked_sub(self.first)?;
        let operation = self.all.get_mut(at as usize)?.take();
        while self.all.front().is_some_and(Option::is_none) {
            self.all.pop_front();
            self.first += 1;
        }
        operation
    }

    /// How many operations and gaps there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
