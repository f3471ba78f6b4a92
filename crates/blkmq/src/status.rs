//! How an operation ended.

use std::fmt;

/// How an operation ended. `Copy`, so that it travels with a request at no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Status {
    /// Done.
    #[default]
    Ok,
    /// The device cannot do this operation.
    Unsupported,
    /// The device did not answer in time.
    Timeout,
    /// The device is full.
    NoSpace,
    /// The data could not be read from, or written to, the medium.
    Medium,
    /// The device failed in another way.
    IoError,
    /// A `nowait` operation would have had to wait.
    Again,
    /// The operation reaches beyond the last sector.
    BeyondEnd,
    /// The first sector or the length is not a multiple of the logical block size, or the length is zero.
    Misaligned,
    /// The operation would need more requests than a submitter has slots.
    TooLarge,
    /// A buffer is given where none belongs, or is missing where one belongs.
    BadBuffer,
    /// The level of the priority is not from 0 to 7.
    BadPriority,
    /// The queue went away before the operation was started.
    Gone,
}

impl Status {
    /// True for [`Status::Ok`].
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// This status if it is an error, otherwise `next`: of several errors the first one wins.
    #[must_use]
    pub const fn and(self, next: Self) -> Self {
        if self.is_ok() { next } else { self }
    }

    /// The status that a code stands for, as `as u8` gave it.
    pub(crate) fn from_code(code: u8) -> Self {
        const ALL: [Status; 13] = [
            Status::Ok,
            Status::Unsupported,
            Status::Timeout,
            Status::NoSpace,
            Status::Medium,
            Status::IoError,
            Status::Again,
            Status::BeyondEnd,
            Status::Misaligned,
            Status::TooLarge,
            Status::BadBuffer,
            Status::BadPriority,
            Status::Gone,
        ];
        ALL[usize::from(code)]
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Unsupported => "the device does not support the operation",
            Self::Timeout => "the device did not answer in time",
            Self::NoSpace => "no space left on the device",
            Self::Medium => "medium error",
            Self::IoError => "I/O error",
            Self::Again => "the operation would have to wait",
            Self::BeyondEnd => "the operation reaches beyond the end of the device",
            Self::Misaligned => "sector and length must be non-zero multiples of the logical block size",
            Self::TooLarge => "the operation needs more requests than the submitter has slots",
            Self::BadBuffer => "reads and writes need a buffer of whole sectors, other operations none",
            Self::BadPriority => "the level of a priority is from 0 to 7",
            Self::Gone => "the queue went away before the operation was started",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_code() {
        for code in 0..=Status::Gone as u8 {
            assert_eq!(Status::from_code(code) as u8, code);
        }
    }
}
