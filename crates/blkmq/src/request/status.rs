//! How an operation ended.

use std::fmt;
use std::io::ErrorKind;

// Linux's error numbers, which are the same on every architecture that Rust's standard library supports with Linux,
// but for MIPS and SPARC.
const EPERM: i32 = 1;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
const EILSEQ: i32 = 84;
const EOPNOTSUPP: i32 = 95;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;
const EDQUOT: i32 = 122;

coded! {
/// How an operation ended, as Linux's `blk_status_t`. It is no error by itself, for [`Status::Ok`] is one of its
/// values: [`Completion::into_result`](crate::Completion::into_result) makes an error of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
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
    /// The device must not be changed, or not in this way.
    NotPermitted,
}
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

    /// Linux's error number for this status, as a positive number; `None` for [`Status::Ok`]. What the operation itself
    /// asks for wrongly is `EINVAL`.
    #[must_use]
    pub const fn errno(self) -> Option<i32> {
        Some(match self {
            Self::Ok => return None,
            Self::IoError => EIO,
            Self::Again => EAGAIN,
            Self::BeyondEnd | Self::Misaligned | Self::TooLarge | Self::BadBuffer | Self::BadPriority => EINVAL,
            Self::NoSpace => ENOSPC,
            Self::Medium => ENODATA,
            Self::Unsupported => EOPNOTSUPP,
            Self::Gone => ESHUTDOWN,
            Self::Timeout => ETIMEDOUT,
            Self::NotPermitted => EPERM,
        })
    }

    /// What a device has said by Linux's error number `errno`, a positive number; 0 is [`Status::Ok`]. A number that
    /// says nothing about the device is [`Status::IoError`]. `EINVAL` and `ESHUTDOWN` are among these: the queue has
    /// checked the operation before the device gets it, and [`Status::Gone`] says that no device got it.
    #[must_use]
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            0 => Self::Ok,
            EAGAIN => Self::Again,
            ENOSPC | EDQUOT | EFBIG => Self::NoSpace,
            ENODATA | EILSEQ => Self::Medium,
            EOPNOTSUPP | ENOSYS => Self::Unsupported,
            ETIMEDOUT => Self::Timeout,
            EPERM => Self::NotPermitted,
            _ => Self::IoError,
        }
    }

    /// The kind of I/O error that it is; [`ErrorKind::Other`] also for [`Status::Ok`].
    pub(super) const fn error_kind(self) -> ErrorKind {
        match self {
            Self::Unsupported => ErrorKind::Unsupported,
            Self::Timeout => ErrorKind::TimedOut,
            Self::NoSpace => ErrorKind::StorageFull,
            Self::Again => ErrorKind::WouldBlock,
            Self::NotPermitted => ErrorKind::PermissionDenied,
            Self::Gone => ErrorKind::NotConnected,
            Self::BeyondEnd | Self::Misaligned | Self::TooLarge | Self::BadBuffer | Self::BadPriority => {
                ErrorKind::InvalidInput
            }
            Self::Ok | Self::Medium | Self::IoError => ErrorKind::Other,
        }
    }

    /// The status that a code stands for, as `as u8` gave it.
    pub(super) fn from_code(code: u8) -> Self {
        Self::ALL[usize::from(code)]
    }
}

/// What it means, for people.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
            Self::NotPermitted => "the device must not be changed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_code() {
        for code in 0..=Status::NotPermitted as u8 {
            assert_eq!(Status::from_code(code) as u8, code);
        }
    }

    /// Red if a number is missing in one direction of the table, or if a device could say that an operation was never
    /// started or was asked wrongly.
    #[test]
    fn what_a_device_says_survives_its_errno() {
        for code in 0..=Status::NotPermitted as u8 {
            let status = Status::from_code(code);
            let read = status.errno().map_or(Status::Ok, Status::from_errno);
            let is_of_a_device = match status {
                Status::BeyondEnd
                | Status::Misaligned
                | Status::TooLarge
                | Status::BadBuffer
                | Status::BadPriority
                | Status::Gone => false,
                Status::Ok
                | Status::Unsupported
                | Status::Timeout
                | Status::NoSpace
                | Status::Medium
                | Status::IoError
                | Status::Again
                | Status::NotPermitted => true,
            };
            assert_eq!(read, if is_of_a_device { status } else { Status::IoError }, "{status}");
        }
        assert_eq!(Status::from_errno(-1), Status::IoError);
    }
}
