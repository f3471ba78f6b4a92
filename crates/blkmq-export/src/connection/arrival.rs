//! How much of what was sent has not arrived.
#![expect(unsafe_code, reason = "the system is asked by an ioctl that no safe function makes")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use libc::TIOCOUTQ;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};

/// Returns the number of bytes that were sent by TCP and have not reached the client's system yet. The end of the
/// stream counts as one byte.
///
/// # Errors
/// The socket is of a kind that does not know.
pub(super) fn on_the_way(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    // SAFETY: for a socket this request asks how many bytes are on their way, and the answer is a `c_int`.
    let question = unsafe { Getter::<{ TIOCOUTQ as Opcode }, c_int>::new() };
    // SAFETY: the descriptor is open while it is borrowed. A descriptor that is not a socket answers with the same
    // type, or not at all.
    let waiting = unsafe { ioctl(socket, question) }?;
    Ok(usize::try_from(waiting).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn what_the_other_system_has_no_room_for_has_not_arrived() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut ours, _) = listener.accept().unwrap();
        assert_eq!(on_the_way(ours.as_fd()), Ok(0));
        ours.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(len) = ours.write(&[0; 65536]) {
            sent += len;
        }
        assert!(on_the_way(ours.as_fd()).unwrap() > 0);
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        while on_the_way(ours.as_fd()).unwrap() > 0 {
            std::thread::yield_now();
        }
        assert!(on_the_way(tempfile::tempfile().unwrap().as_fd()).is_err());
    }
}
