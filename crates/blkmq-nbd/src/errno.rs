//! The errors that a request can be answered with.

use blkmq::Status;

/// An error number of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The server has no memory for the request.
    NoMemory = 12,
    /// The request makes no sense.
    Invalid = 22,
    /// A write reaches beyond the end, or the device is full.
    NoSpace = 28,
    /// A fast write of zeroes would not be fast.
    NotSupported = 95,
    /// The server is going away.
    Shutdown = 108,
}

impl Errno {
    /// Every error.
    pub const ALL: [Self; 7] =
        [Self::Perm, Self::Io, Self::NoMemory, Self::Invalid, Self::NoSpace, Self::NotSupported, Self::Shutdown];

    /// The word for this error in statistics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Perm => "perm",
            Self::Io => "io",
            Self::NoMemory => "nomem",
            Self::Invalid => "invalid",
            Self::NoSpace => "nospace",
            Self::NotSupported => "notsup",
            Self::Shutdown => "shutdown",
        }
    }

    /// The error that a client gets for an operation that ended with `status`; `None` if the operation is done. The
    /// protocol keeps `ENOTSUP` for fast zeroes, so for any other operation that a device cannot do the error is
    /// `EINVAL`.
    #[must_use]
    pub fn of_status(status: Status, is_fast_zero: bool) -> Option<Self> {
        match status {
            Status::Ok => None,
            Status::Unsupported if is_fast_zero => Some(Self::NotSupported),
            Status::NoSpace => Some(Self::NoSpace),
            // The server checks this before the queue gets the request. If the queue refuses the request all the same,
            // the queue is right.
            Status::Unsupported | Status::BeyondEnd | Status::Misaligned | Status::TooLarge => Some(Self::Invalid),
            Status::Gone => Some(Self::Shutdown),
            // What the device did not do, and what no client can cause: `Again`, `BadBuffer` and `BadPriority`.
            _ => Some(Self::Io),
        }
    }

    /// The status of an operation that a server answers with this number. A number without a status of its own counts
    /// as a failure of the device.
    #[must_use]
    pub const fn status(number: u32) -> Status {
        const NO_SPACE: u32 = Errno::NoSpace.number();
        const NOT_SUPPORTED: u32 = Errno::NotSupported.number();
        match number {
            0 => Status::Ok,
            NO_SPACE => Status::NoSpace,
            NOT_SUPPORTED => Status::Unsupported,
            _ => Status::IoError,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_number() {
        let expected = [
            (Status::Unsupported, 22),
            (Status::Timeout, 5),
            (Status::NoSpace, 28),
            (Status::Medium, 5),
            (Status::IoError, 5),
            (Status::Again, 5),
            (Status::BeyondEnd, 22),
            (Status::Misaligned, 22),
            (Status::TooLarge, 22),
            (Status::BadBuffer, 5),
            (Status::BadPriority, 5),
            (Status::Gone, 108),
        ];
        for (status, number) in expected {
            assert_eq!(Errno::of_status(status, false).map(Errno::number), Some(number), "{status}");
        }
        assert_eq!(Errno::of_status(Status::Ok, false), None);
        assert_eq!(Errno::of_status(Status::Unsupported, true), Some(Errno::NotSupported));
        assert_eq!(Errno::of_status(Status::Medium, true), Some(Errno::Io));
        for (number, status) in [
            (0, Status::Ok),
            (28, Status::NoSpace),
            (95, Status::Unsupported),
            (1, Status::IoError),
            (5, Status::IoError),
            (u32::MAX, Status::IoError),
        ] {
            assert_eq!(Errno::status(number), status, "{number}");
        }
    }
}
