//! Why a request was not done, in the words of no protocol. Each front-end has its own numbers for that.

use std::borrow::Cow;

use blkmq::Status;

/// What kind of failure it is, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The export or the device is read-only, or the client may not do this.
    NotPermitted,
    /// The device failed.
    Io,
    /// There is no memory for the request.
    NoMemory,
    /// The request makes no sense.
    Invalid,
    /// A write reaches beyond the end, or the device is full.
    NoSpace,
    /// The device cannot do this, or not in the way that was asked for.
    Unsupported,
    /// The client or the server is going away.
    Shutdown,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 7] =
        [Self::NotPermitted, Self::Io, Self::NoMemory, Self::Invalid, Self::NoSpace, Self::Unsupported, Self::Shutdown];

    /// Returns the word for this cause in statistics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotPermitted => "perm",
            Self::Io => "io",
            Self::NoMemory => "nomem",
            Self::Invalid => "invalid",
            Self::NoSpace => "nospace",
            Self::Unsupported => "notsup",
            Self::Shutdown => "shutdown",
        }
    }

    /// Why a request failed whose operation ended with `status`; `None` if the operation is done.
    #[must_use]
    pub const fn of_status(status: Status) -> Option<Self> {
        match status {
            Status::Ok => None,
            Status::Unsupported => Some(Self::Unsupported),
            Status::NotPermitted => Some(Self::NotPermitted),
            Status::NoSpace => Some(Self::NoSpace),
            // Front-ends check this before the queue gets the request. If the queue refuses the request all the same,
            // the queue is right.
            Status::BeyondEnd | Status::Misaligned | Status::TooLarge => Some(Self::Invalid),
            Status::Gone => Some(Self::Shutdown),
            // What the device did not do, and what no client can cause: `Again`, `BadBuffer` and `BadPriority`.
            _ => Some(Self::Io),
        }
    }
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub cause: Cause,
    /// One line for people: what is wrong, and what would be right.
    pub message: Cow<'static, str>,
    /// How the queue ended the operation. `None` if the queue had no part in it.
    pub status: Option<Status>,
}

impl Failure {
    /// Creates a failure with this cause and message.
    pub fn new(cause: Cause, message: impl Into<Cow<'static, str>>) -> Self {
        Self { cause, message: message.into(), status: None }
    }

    /// The failure of a request whose operation the queue ended with `status`; `None` if the operation is done.
    #[must_use]
    pub fn of_status(status: Status) -> Option<Self> {
        let cause = Cause::of_status(status)?;
        Some(Self { cause, message: status.to_string().into(), status: Some(status) })
    }

    /// The failure of a request for which the system has no memory.
    #[cold]
    #[must_use]
    pub const fn no_memory() -> Self {
        Self { cause: Cause::NoMemory, message: Cow::Borrowed("the server has no memory for this"), status: None }
    }

    /// The failure of a request whose client is gone.
    #[must_use]
    pub(crate) const fn gone() -> Self {
        Self { cause: Cause::Shutdown, message: Cow::Borrowed("the client is gone"), status: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_cause() {
        let expected = [
            (Status::Unsupported, Cause::Unsupported),
            (Status::Timeout, Cause::Io),
            (Status::NoSpace, Cause::NoSpace),
            (Status::Medium, Cause::Io),
            (Status::IoError, Cause::Io),
            (Status::Again, Cause::Io),
            (Status::BeyondEnd, Cause::Invalid),
            (Status::Misaligned, Cause::Invalid),
            (Status::TooLarge, Cause::Invalid),
            (Status::BadBuffer, Cause::Io),
            (Status::BadPriority, Cause::Io),
            (Status::Gone, Cause::Shutdown),
            (Status::NotPermitted, Cause::NotPermitted),
        ];
        for (status, cause) in expected {
            assert_eq!(Cause::of_status(status), Some(cause), "{status}");
            let failure = Failure::of_status(status).unwrap();
            assert_eq!(
                (failure.cause, failure.status),
                (cause, Some(status)),
                "the front-end may have a number for it"
            );
        }
        assert_eq!((Cause::of_status(Status::Ok), Failure::of_status(Status::Ok)), (None, None));
    }
}
