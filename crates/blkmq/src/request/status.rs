//! How an operation ended.

use std::io::{self, ErrorKind};

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
/// How an operation ended. `Copy`, so that it travels with a request at no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, thiserror::Error)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[error("done")]
    #[default]
    Ok,
    /// The device cannot do this operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The device did not answer in time.
    #[error("the device did not answer in time")]
    Timeout,
    /// The device is full.
    #[error("no space left on the device")]
    NoSpace,
    /// The data could not be read from, or written to, the medium.
    #[error("medium error")]
    Medium,
    /// The device failed in another way.
    #[error("I/O error")]
    IoError,
    /// A `nowait` operation would have had to wait.
    #[error("the operation would have to wait")]
    Again,
    /// The operation reaches beyond the last sector.
    #[error("the operation reaches beyond the end of the device")]
    BeyondEnd,
    /// The first sector or the length is not a multiple of the logical block size, or the length is zero.
    #[error("sector and length must be non-zero multiples of the logical block size")]
    Misaligned,
    /// The operation would need more requests than a submitter has slots.
    #[error("the operation needs more requests than the submitter has slots")]
    TooLarge,
    /// A buffer is given where none belongs, or is missing where one belongs.
    #[error("reads and writes need a buffer of whole sectors, other operations none")]
    BadBuffer,
    /// The level of the priority is not from 0 to 7.
    #[error("the level of a priority is from 0 to 7")]
    BadPriority,
    /// The queue went away before the operation was started.
    #[error("the queue went away before the operation was started")]
    Gone,
    /// The device must not be changed, or not in this way.
    #[error("the device must not be changed")]
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

    /// `Ok` for [`Status::Ok`], and this status as the error for every other one.
    ///
    /// # Errors
    /// The operation was not done.
    pub const fn into_result(self) -> Result<(), Self> {
        if self.is_ok() { Ok(()) } else { Err(self) }
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

    /// The status that a code stands for, as `as u8` gave it.
    pub(super) fn from_code(code: u8) -> Self {
        Self::ALL[usize::from(code)]
    }
}

/// The status as an I/O error: its kind for programs, its text for people. [`io::Error::get_ref`] leads back to it.
impl From<Status> for io::Error {
    fn from(status: Status) -> Self {
        let kind = match status {
            Status::Unsupported => ErrorKind::Unsupported,
            Status::Timeout => ErrorKind::TimedOut,
            Status::NoSpace => ErrorKind::StorageFull,
            Status::Again => ErrorKind::WouldBlock,
            Status::NotPermitted => ErrorKind::PermissionDenied,
            Status::Gone => ErrorKind::NotConnected,
            Status::BeyondEnd | Status::Misaligned | Status::TooLarge | Status::BadBuffer | Status::BadPriority => {
                ErrorKind::InvalidInput
            }
            Status::Ok | Status::Medium | Status::IoError => ErrorKind::Other,
        };
        Self::new(kind, status)
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
        assert_eq!((Status::Ok.into_result(), Status::Medium.into_result()), (Ok(()), Err(Status::Medium)));
    }
}
