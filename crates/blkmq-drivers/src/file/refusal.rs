//! Why the system refuses io_uring: a setting, a seccomp profile, an old kernel, or a resource limit.

use std::fs;
use std::io;

use crate::OpenError;

/// Returns the error of a device that cannot be opened because it needs io_uring.
pub(super) fn refused(error: io::Error) -> OpenError {
    OpenError::system(explained(&error), error)
}

/// Returns why the system refuses io_uring, and what would help.
pub(super) fn explained(error: &io::Error) -> String {
    let setting = || fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let help = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match setting().trim() {
            "1" => "the setting kernel.io_uring_disabled is 1; 0 allows it, and so does the group of kernel.io_uring_group".to_owned(),
            "2" => "the setting kernel.io_uring_disabled is 2; 0 allows it".to_owned(),
            _ => "a seccomp profile forbids it, as that of containers; one that allows io_uring_setup, io_uring_enter and io_uring_register helps".to_owned(),
        },
        Some(libc::ENOSYS) => "the kernel has none, or a seccomp profile hides it".to_owned(),
        Some(libc::ENOMEM) => "the limit of locked memory is too low; 'ulimit -l' tells it, LimitMEMLOCK in a service's unit".to_owned(),
        Some(libc::EMFILE) => "the limit of open files is reached; 'ulimit -n' tells it, LimitNOFILE in a service's unit".to_owned(),
        _ => return format!("no io_uring: {error}"),
    };
    format!("no io_uring: {error}: {help}")
}

/// Returns true if the system refuses io_uring, so that threads would work in its place.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENOMEM))
}
