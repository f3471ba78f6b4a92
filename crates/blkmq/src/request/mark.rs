//! How a request is counted in the statistics.

/// How a request is counted. The queue decides once, when the request enters the queue. So what was counted in is
/// counted out, whatever is switched meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(u8);

impl Mark {
    /// The request is not counted.
    pub(crate) const NONE: Self = Self(0);
    /// The request is counted in the thread's sums and nowhere else.
    pub(crate) const PLAIN: Self = Self(1);
    /// The request is counted in the thread's sums, and in the shared line or a range if there are any.
    pub(crate) const SPECIAL: Self = Self(2);

    /// Also in the range that has this place.
    pub(crate) const fn in_range(place: usize) -> Self {
        debug_assert!(place <= u8::MAX as usize - 3, "the place of a range fits the mark");
        Self(3 + place as u8)
    }

    pub(crate) fn is_counted(self) -> bool {
        self != Self::NONE
    }

    pub(crate) const fn is_special(self) -> bool {
        self.0 >= Self::SPECIAL.0
    }

    pub(crate) fn place(self) -> Option<usize> {
        self.0.checked_sub(3).map(usize::from)
    }
}
