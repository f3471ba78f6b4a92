//! What the kernel's errors mean to the block layer.

use blkmq::Status;

/// What is to be done about an error that a ring reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The kernel had no time for it, or the thread that had started it has ended: the same again.
    Again,
    /// It has failed.
    Failed(Status),
}

/// What an error number means, as a ring reports it: above zero.
pub(super) const fn verdict(errno: i32) -> Verdict {
    Verdict::Failed(match errno {
        libc::EINTR | libc::EAGAIN | libc::ECANCELED => return Verdict::Again,
        // A read that waits for the page cache goes on in the thread that started it; if that has ended, its memory is
        // gone for the kernel, though not the buffer.
        libc::EFAULT => return Verdict::Again,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::NoSpace,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::EROFS | libc::EPERM | libc::ENOSYS => Status::Unsupported,
        libc::ENODATA | libc::EILSEQ => Status::Medium,
        libc::ETIMEDOUT => Status::Timeout,
        _ => Status::IoError,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_meaning() {
        assert_eq!(verdict(libc::ECANCELED), Verdict::Again);
        let failed = [libc::ENOSPC, libc::EIO, libc::EOPNOTSUPP, libc::ENODATA, libc::EBADF].map(verdict);
        let statuses = [Status::NoSpace, Status::IoError, Status::Unsupported, Status::Medium, Status::IoError];
        assert_eq!(failed, statuses.map(Verdict::Failed));
    }
}
