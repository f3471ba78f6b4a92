//! The meaning of the kernel's errors for the block layer: either the kernel is asked again, or the request ends with a
//! status.

use blkmq::Status;

/// Returns the status of a request that the kernel has failed with this error number, which is positive. `None`: it has
/// to be asked for the same again, because it had no time for it, or the thread that had started it has ended.
pub(super) const fn status_of(errno: i32) -> Option<Status> {
    Some(match errno {
        libc::EINTR | libc::EAGAIN | libc::ECANCELED => return None,
        // A read that waits for the page cache continues in the thread that started it. If that thread has ended, the
        // kernel has no access to its memory any more, although the buffer still exists.
        libc::EFAULT => return None,
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
        assert_eq!(status_of(libc::ECANCELED), None);
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
            assert_eq!(status_of(errno), Some(status), "{errno}");
        }
    }
}
