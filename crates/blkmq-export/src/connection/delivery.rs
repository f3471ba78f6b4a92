//! What of the bytes that were sent has not arrived.
#![expect(unsafe_code, reason = "the system is asked by an ioctl that no safe function makes")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use libc::TIOCOUTQ;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};

/// Whether everything that was sent has arrived, the end of it included: by TCP at the client's system, by a Unix socket at the
/// client itself.
///
/// # Errors
/// The socket is of a kind that does not know.
pub(super) fn is_delivered(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: of a socket this asks how many bytes are on their way, and the answer is a `c_int`.
    let question = unsafe { Getter::<{ TIOCOUTQ as Opcode }, c_int>::new() };
    // SAFETY: the descriptor is open while it is borrowed, and one that is no socket answers with the same type, or not at all.
    let waiting = unsafe { ioctl(socket, question) }?;
    Ok(waiting == 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn what_was_read_is_delivered() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(is_delivered(ours.as_fd()), Ok(true));
        ours.write_all(b"abc").unwrap();
        assert_eq!(is_delivered(ours.as_fd()), Ok(false));
        theirs.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(is_delivered(ours.as_fd()), Ok(true));
        assert!(is_delivered(tempfile::tempfile().unwrap().as_fd()).is_err());
    }
}
