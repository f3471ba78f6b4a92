//! The meaning of the kernel's errors for the block layer: either the kernel is asked again, or the request ends with a
//! status.

use blkmq::Status;

/// What is to be done about an error that a ring reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Ask for the same again: the kernel had no time for it, or the thread that had started it has ended.
    Again,
    /// The request has failed.
    Failed(Status),
}

/// The meaning of an error number that a ring reports, as a positive number.
pub(super) const fn verdict(errno: i32) -> Verdict {
    Verdict::Failed(match errno {
        libc::EINTR | libc::EAGAIN | libc::ECANCELED => return Verdict::Again,
        // A read that waits for the page cache continues in the thread that started it. If that thread has ended, the
        // kernel has no access to its memory any more, although the buffer still exists.
        libc::EFAULT => return Verdict::Again,
        // A file says by this that it does not take the operation.
        libc::ENOTTY => Status::Unsupported,
        // `chattr +i`, a sealed file, a file system that became read-only.
        libc::EPERM | libc::EACCES | libc::EROFS => Status::NotPermitted,
        other => Status::from_errno(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning() {
        assert_eq!(verdict(libc::ECANCELED), Verdict::Again);
        for (errno, status) in [
            (libc::ENOSPC, Status::NoSpace),
            (libc::EIO, Status::IoError),
            (libc::EOPNOTSUPP, Status::Unsupported),
            (libc::ENOTTY, Status::Unsupported),
            (libc::ENODATA, Status::Medium),
            (libc::EBADF, Status::IoError),
            (libc::EPERM, Status::NotPermitted),
            (libc::EROFS, Status::NotPermitted),
        ] {
            assert_eq!(verdict(errno), Verdict::Failed(status), "{errno}");
        }
    }
}
