//! The character device, while it is open and after that.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq::event::EventFd;
use rustix::io::{DupFlags, dup3};

/// The number of a character device among the descriptors of this process. No other file gets it while this value
/// lives, also when the device is closed.
#[derive(Debug)]
pub(crate) struct Number {
    raw: RawFd,
    file: Mutex<OwnedFd>,
}

impl Number {
    pub(crate) fn raw(&self) -> RawFd {
        self.raw
    }
}

/// A character device that is open. Dropping the value closes the device, whoever has its number: what the device
/// behind the queue keeps forever has the number forever, and the kernel removes a block device only when its
/// character device is closed. Commands that still name the number then go to an event, which takes none.
#[derive(Debug)]
pub(crate) struct Character {
    number: Arc<Number>,
    closed: EventFd,
}

impl Character {
    /// # Errors
    /// The system gives no further descriptor.
    pub(crate) fn new(file: OwnedFd) -> io::Result<Self> {
        let number = Number { raw: file.as_raw_fd(), file: Mutex::new(file) };
        Ok(Self { number: Arc::new(number), closed: EventFd::new()? })
    }

    pub(crate) fn number(&self) -> &Arc<Number> {
        &self.number
    }
}

impl Drop for Character {
    fn drop(&mut self) {
        let mut file = self.number.file.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel refuses only a number beyond the limit of descriptors, if that was lowered meanwhile. Then the
        // device is closed with its number.
        let _ = dup3(&self.closed, &mut file, DupFlags::CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Red before the number was free as soon as the device was closed: commands that were on their way by it went to
    /// the next file that was opened.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn the_number_of_a_closed_device_is_no_other_files() {
        let (mut other_end, file) = UnixStream::pair().unwrap();
        other_end.set_nonblocking(true).unwrap();
        let character = Character::new(file.into()).unwrap();
        let number = Arc::clone(character.number());
        let behind = || fs::read_link(format!("/proc/self/fd/{}", number.raw())).unwrap().display().to_string();
        assert!(behind().starts_with("socket:"), "{}", behind());
        assert!(other_end.read(&mut [0]).is_err(), "it is open");
        drop(character);
        // The child of another test has a copy until it executes its program. The time is for a test that fails.
        other_end.set_nonblocking(false).unwrap();
        other_end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(other_end.read(&mut [0]).unwrap(), 0, "it is closed");
        assert!(behind().contains("eventfd"), "{}", behind());
    }
}
