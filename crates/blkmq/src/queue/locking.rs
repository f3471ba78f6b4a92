//! The lockings by their names.

use std::fmt;
use std::str::FromStr;

use crate::queue::error::QueueError;

/// The locking around a scheduler: how threads take turns at it, and what a thread does while another one is there. The
/// locking contains no policy of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Locking {
    /// One lock around each insertion and around each dispatch of one request. Threads wait for it, as in Linux.
    Single,
    /// The same lock with some of the measures of Axboe's series of 2024.
    Staged(Measures),
    /// One lock, for which threads wait. One hold dispatches as many requests as there are tags: Yu Kuai's series of
    /// 2025.
    Batch,
    /// One thread at a time inserts and merges for all and dispatches a batch. The other threads publish their
    /// requests for it and return.
    #[default]
    Combining,
}

/// The measures of the locking [`Staged`](Locking::Staged); at least one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Measures {
    /// A thread that finds another thread dispatching does not dispatch.
    pub dispatch: bool,
    /// A thread that finds another thread inserting publishes its requests for that thread, in a bucket of its own.
    pub buckets: bool,
    /// A thread that finds the lock taken inserts without looking for merges.
    pub merges: bool,
}

impl Measures {
    /// All of them.
    pub const ALL: Self = Self { dispatch: true, buckets: true, merges: true };

    const fn of_bits(bits: u32) -> Self {
        Self { dispatch: bits & 1 != 0, buckets: bits & 2 != 0, merges: bits & 4 != 0 }
    }

    const fn bits(self) -> u32 {
        self.dispatch as u32 | (self.buckets as u32) << 1 | (self.merges as u32) << 2
    }
}

/// The names of the locking `staged`, by the bits of its measures.
const STAGED: [&str; 8] = [
    "staged:",
    "staged:dispatch",
    "staged:buckets",
    "staged:dispatch+buckets",
    "staged:merges",
    "staged:dispatch+merges",
    "staged:buckets+merges",
    "staged",
];

/// The number, in the queue's settings, of `Staged` without measures. No queue gets that number itself; the bits of the
/// measures are added to it.
const FIRST_STAGED: u32 = 3;

impl Locking {
    /// Every locking, `staged` with all its measures.
    pub const ALL: [Self; 4] = [Self::Single, Self::Staged(Measures::ALL), Self::Batch, Self::Combining];

    /// The name by which a user chooses the locking. With some measures only, they follow a colon, as in
    /// `staged:dispatch+buckets`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Staged(measures) => STAGED[measures.bits() as usize],
            Self::Batch => "batch",
            Self::Combining => "combining",
        }
    }

    /// The locking's number in the queue's settings.
    pub(super) const fn index(self) -> u32 {
        match self {
            Self::Single => 0,
            Self::Batch => 1,
            Self::Combining => 2,
            Self::Staged(measures) => FIRST_STAGED + measures.bits(),
        }
    }

    /// The locking whose [`index`](Self::index) this is.
    ///
    /// COST: it is asked for each batch.
    #[inline]
    pub(super) const fn of_index(index: u32) -> Self {
        std::debug_assert!(index < FIRST_STAGED + STAGED.len() as u32, "the number is that of a locking");
        match index {
            0 => Self::Single,
            1 => Self::Batch,
            2 => Self::Combining,
            _ => Self::Staged(Measures::of_bits(index - FIRST_STAGED)),
        }
    }
}

impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Locking {
    type Err = QueueError;

    /// Measures may come in any order.
    fn from_str(text: &str) -> Result<Self, QueueError> {
        let measure = |name| ["dispatch", "buckets", "merges"].iter().position(|known| *known == name);
        if let Some(names) = text.strip_prefix(STAGED[0]) {
            let bits = names.split('+').try_fold(0, |bits, name| Some(bits | 1 << measure(name)?));
            let of_bits = |bits| Self::Staged(Measures::of_bits(bits));
            return bits.map(of_bits).ok_or_else(|| QueueError::UnknownMeasures(text.to_owned()));
        }
        Self::ALL.into_iter().find(|known| known.name() == text).ok_or_else(|| QueueError::UnknownLocking {
            name: text.to_owned(),
            known: Self::ALL.map(Self::name).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a locking's number leads to another one.
    #[test]
    fn a_locking_is_known_by_its_name_and_its_number() {
        let staged = (1..8).map(|bits| Locking::Staged(Measures::of_bits(bits)));
        for locking in Locking::ALL.into_iter().chain(staged) {
            assert_eq!(locking.to_string().parse(), Ok(locking));
            assert_eq!(Locking::of_index(locking.index()), locking);
        }
        let names = Locking::ALL.map(Locking::name);
        assert_eq!(names, ["single", "staged", "batch", "combining"], "each once, in the order of the pages");
        assert_eq!("staged:merges+dispatch".parse::<Locking>().map(Locking::name), Ok("staged:dispatch+merges"));
    }

    #[test]
    fn what_is_no_locking_is_refused_with_what_there_is() {
        let refused = |text: &str| text.parse::<Locking>().unwrap_err().to_string();
        let names = Locking::ALL.map(Locking::name).join(", ");
        assert_eq!(refused("no-such-locking"), format!("there is no locking 'no-such-locking'; there are: {names}"));
        for text in ["staged:", "staged:dispatch+", "staged:no-such-measure"] {
            assert!(refused(text).starts_with(&format!("'{text}' names no measures")), "{}", refused(text));
        }
    }
}
