//! The ring of a queue's thread: commands to the kernel, and the sleep on what they end with.
#![expect(unsafe_code, reason = "memory is handed to the kernel")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use blkmq::Submitter;
use blkmq::event::EventFd;
use blkmq_engine::Sleep;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Marks the user data of entries that are no command's.
const OTHER: u64 = 1 << 63;
/// The submitter's bell is readable.
const BELL: u64 = OTHER | 1 << 62;
/// The end of a watch that is not needed any more.
const UNWATCHED: u64 = OTHER | 1 << 61;

/// How long a thread sleeps on descriptors of the device before it watches them anew. A descriptor's number may be
/// another file's by then.
const ANEW: Duration = Duration::from_secs(1);

/// A ring, with what it watches.
pub(crate) struct Ring {
    ring: IoUring,
    bell: Arc<EventFd>,
    has_bell: bool,
    /// The device's descriptors that the ring watches.
    watched: Vec<RawFd>,
}

fn make(depth: u16) -> io::Result<IoUring> {
    // One entry for each tag, and some for descriptors. The completion side is twice as long.
    let entries = u32::from(depth) + 16;
    let made = IoUring::builder().setup_clamp().setup_coop_taskrun().setup_single_issuer().build(entries);
    match made {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().setup_clamp().build(entries),
        made => made,
    }
}

impl Ring {
    /// For the tags of a queue. `bell` is what the submitter notifies.
    pub(crate) fn new(depth: u16, bell: Arc<EventFd>) -> io::Result<Self> {
        Ok(Self { ring: make(depth)?, bell, has_bell: false, watched: Vec::new() })
    }

    /// Puts a command of the queue on the ring. Its user data is below that of watches.
    pub(crate) fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the character device is open while the ring is. A command's buffer belongs to its tag, and is not
            // touched while the kernel has the tag; it is freed only after every tag has come back, or never. A spare
            // one is never touched nor freed. A watch has no memory: a descriptor that is closed meanwhile ends it, or
            // wakes the thread for nothing.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0, None)?;
        }
    }

    fn watch(&mut self, fd: RawFd, user_data: u64) -> io::Result<()> {
        self.push(&opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build().user_data(user_data))
    }

    /// Hands over what is on the ring. Waits for so many completions, up to a time.
    pub(crate) fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(types::Timespec::from);
        let mut args = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let entered = match want {
            0 => self.ring.submit(),
            _ => self.ring.submitter().submit_with_args(want, &args),
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time is over; a signal; the completions have to be taken first; no memory for the moment.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Whether all commands are handed over.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.ring.submission().is_empty()
    }

    /// Takes completions off the ring, and calls `command` with those of commands.
    pub(crate) fn take(&mut self, mut command: impl FnMut(&cqueue::Entry) -> io::Result<()>) -> io::Result<()> {
        let Self { ring, bell, has_bell, watched } = self;
        for entry in ring.completion() {
            match entry.user_data() {
                BELL => {
                    *has_bell = false;
                    bell.drain();
                }
                UNWATCHED => (),
                other if other & OTHER != 0 => watched.retain(|fd| *fd as u64 != other & !OTHER),
                _ => command(&entry)?,
            }
        }
        Ok(())
    }

    /// Sleeps until a request arrives, an operation completes, the queue wants to be driven, or this time is over.
    pub(crate) fn sleep(&mut self, submitter: &Submitter, most: Option<Duration>) -> io::Result<()> {
        if !self.has_bell {
            self.watch(self.bell.as_fd().as_raw_fd(), BELL)?;
            self.has_bell = true;
        }
        let sleep = Sleep::begin(submitter);
        let (mut may_be_stale, limit) = (false, (submitter.nr_outstanding() > 0).then_some(ANEW));
        for fd in sleep.device.iter().map(AsRawFd::as_raw_fd) {
            if self.watched.contains(&fd) {
                may_be_stale = true;
            } else {
                self.watch(fd, OTHER | fd as u64)?;
                self.watched.push(fd);
            }
        }
        self.enter(1, [sleep.timeout, limit, most].into_iter().flatten().min())?;
        let is_woken = !self.ring.completion().is_empty();
        let is_late = sleep.timeout.is_none_or(|timeout| timeout > ANEW);
        sleep.end(is_woken);
        if may_be_stale && is_late && !is_woken {
            self.watch_anew()?;
        }
        Ok(())
    }

    /// Ends the watches of the device's descriptors, which begin anew before the next sleep.
    fn watch_anew(&mut self) -> io::Result<()> {
        for fd in self.watched.clone() {
            self.push(&opcode::PollRemove::new(OTHER | fd as u64).build().user_data(UNWATCHED))?;
        }
        self.enter(0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the user data of a watch can be taken for that of a tag, or of another watch.
    #[test]
    fn watches_and_tags_are_told_apart() {
        let tags = [0, 4095_u64];
        let watches = [BELL, UNWATCHED, OTHER, OTHER | i32::MAX as u64];
        assert!(tags.iter().all(|tag| tag & OTHER == 0) && watches.iter().all(|watch| watch & OTHER != 0));
        assert!(watches.iter().enumerate().all(|(index, watch)| !watches[..index].contains(watch)));
    }
}
