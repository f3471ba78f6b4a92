//! A part of a number of choices.

use serde::Serialize;

/// How many there were, and on how many both agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Share {
    /// All of them.
    pub all: usize,
    /// Those on which both agree.
    pub alike: usize,
}

impl Share {
    pub(super) fn add(&mut self, is_alike: bool) {
        self.all += 1;
        self.alike += usize::from(is_alike);
    }

    /// The part on which both agree, from 0 to 1; `None` if there were none.
    #[must_use]
    pub fn part(self) -> Option<f64> {
        (self.all > 0).then(|| self.alike as f64 / self.all as f64)
    }
}
