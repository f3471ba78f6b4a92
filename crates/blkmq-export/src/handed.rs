//! Sockets that already listen when the process starts, as systemd and libnbd hand them over: descriptors from 3 on,
//! which variables of the environment describe.
#![expect(unsafe_code, reason = "descriptors are handed over by their numbers")]

use std::env;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The variables that describe the sockets. A program that starts other programs removes them for these, because they
/// do not hold for other programs.
pub const VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The number of the first descriptor.
const FIRST: RawFd = 3;

/// Why what was handed over cannot be taken: which variable makes no sense, or which descriptor is not open.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct HandedError {
    text: String,
    source: Option<io::Error>,
}

/// Takes the sockets that were handed over to this process, in order. A second call returns none. The caller calls this
/// before it opens other descriptors, and before it uses these. Programs that this process starts do not get the
/// sockets.
///
/// # Errors
/// The variables make no sense, or they name a descriptor that is not open. The text says which, and what is wrong.
pub fn take() -> Result<Vec<OwnedFd>, HandedError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| env::var(name).ok();
    let count = count(std::process::id(), variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref())?;
    // Relaxed: of two callers one gets the sockets, and nothing else is passed from one caller to the other.
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    claim(FIRST, count)
}

/// Returns how many sockets there are for the process `own`, given the values of `LISTEN_PID` and `LISTEN_FDS`.
fn count(own: u32, pid: Option<&str>, fds: Option<&str>) -> Result<RawFd, HandedError> {
    let (Some(pid), Some(fds)) = (pid, fds) else { return Ok(0) };
    let wrong = |text| HandedError { text, source: None };
    let number =
        |name: &str, text: &str| text.parse::<u32>().map_err(|_| wrong(format!("{name}: '{text}' is not a number")));
    if number("LISTEN_PID", pid)? != own {
        // The sockets were for a process that started this one.
        return Ok(0);
    }
    RawFd::try_from(number("LISTEN_FDS", fds)?)
        .map_err(|_| wrong(format!("LISTEN_FDS: {fds} descriptors cannot be open")))
}

/// Takes this many descriptors, from the number `first` on. The open ones must have no owner in this process.
fn claim(first: RawFd, count: RawFd) -> Result<Vec<OwnedFd>, HandedError> {
    let mut sockets = Vec::new();
    for fd in (first..).take(count as usize) {
        let failed = |error: io::Error| HandedError {
            text: format!("LISTEN_FDS: descriptor {fd}: {error}"),
            source: Some(error),
        };
        fs::symlink_metadata(format!("/proc/self/fd/{fd}")).map_err(failed)?;
        // SAFETY: the descriptor is borrowed only for this call, which reports a descriptor that is not open as an
        // error.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|error| failed(error.into()))?;
        if flags.contains(FdFlags::CLOEXEC) {
            let text = format!("LISTEN_FDS: descriptor {fd}: it was opened here, and not handed over");
            return Err(HandedError { text, source: None });
        }
        // SAFETY: the descriptor is open, and it comes from the program that started this process: descriptors that
        // this process opens are marked to be closed when another program begins. So nothing in this process owns it.
        // The descriptor is marked from now on, so only the first caller gets it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        sockets.push(socket);
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn they_are_counted_for_the_process_that_they_are_for() {
        let count = |own, pid, fds| count(own, pid, fds).map_err(|error| error.to_string());
        assert_eq!(count(7, None, None), Ok(0));
        assert_eq!(count(7, None, Some("2")), Ok(0));
        assert_eq!(count(7, Some("7"), None), Ok(0));
        assert_eq!(count(7, Some("8"), Some("nonsense")), Ok(0));
        assert_eq!(count(7, Some("7"), Some("2")), Ok(2));
        assert_eq!(count(7, Some("x"), Some("2")), Err("LISTEN_PID: 'x' is not a number".to_owned()));
        assert_eq!(count(7, Some("7"), Some("-1")), Err("LISTEN_FDS: '-1' is not a number".to_owned()));
        let many = count(7, Some("7"), Some("4294967295"));
        assert_eq!(many, Err("LISTEN_FDS: 4294967295 descriptors cannot be open".to_owned()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc/self/fd")]
    fn what_is_open_is_taken_and_kept_from_other_programs() {
        let file = fs::File::open("/dev/null").unwrap();
        // A number that no other test's descriptor has, nor the one after it.
        let fd = rustix::io::fcntl_dupfd_cloexec(&file, 500).unwrap().into_raw_fd();
        let error = claim(fd, 1).unwrap_err().to_string();
        assert_eq!(error, format!("LISTEN_FDS: descriptor {fd}: it was opened here, and not handed over"));
        // SAFETY: the descriptor was just opened, and no other code knows its number.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty()).unwrap();
        let sockets = claim(fd, 1).unwrap();
        assert_eq!(sockets.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), [fd]);
        assert_eq!(fcntl_getfd(&sockets[0]), Ok(FdFlags::CLOEXEC));
        let error = claim(fd + 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("LISTEN_FDS: descriptor {}: No such file", fd + 1)), "{text}");
        assert!(error.source.is_some_and(|source| source.kind() == io::ErrorKind::NotFound));
    }
}
