//! The errors that a request can be answered with.

use blkmq::Status;

/// An error number of the protocol. Section "Error values".
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

    /// Returns the status of an operation that a server answers with this number. A number without a status of its own
    /// counts as a failure of the device.
    #[must_use]
    pub const fn status(number: u32) -> Status {
        const PERM: u32 = Errno::Perm.number();
        const NO_SPACE: u32 = Errno::NoSpace.number();
        const NOT_SUPPORTED: u32 = Errno::NotSupported.number();
        match number {
            0 => Status::Ok,
            PERM => Status::NotPermitted,
            NO_SPACE => Status::NoSpace,
            NOT_SUPPORTED => Status::Unsupported,
            _ => Status::IoError,
        }
    }

    /// Returns the number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_status() {
        for (number, status) in [
            (0, Status::Ok),
            (28, Status::NoSpace),
            (95, Status::Unsupported),
            (1, Status::NotPermitted),
            (5, Status::IoError),
            (u32::MAX, Status::IoError),
        ] {
            assert_eq!(Errno::status(number), status, "{number}");
        }
    }
}
