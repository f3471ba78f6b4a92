//! Waits for the kicks of a worker's rings.
//!
//! Kicks are never read, as in Linux's own vhost. An epoll instance reports each write to an eventfd once. So no
//! counter of a front-end can keep the thread waiting or awake, and rings that share an eventfd, also those of several
//! workers, all hear of its kicks: with a read, one of them would take the kick from the others.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

/// The reports that are taken at a time. Others keep the descriptor readable.
const MOST: usize = 16;

/// The kick descriptors of a worker's rings, as one descriptor that is readable after a kick.
#[derive(Debug)]
pub(crate) struct Kicks(OwnedFd);

impl Kicks {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Waits for the kicks of a ring too. If it has been kicked before, that counts as a kick.
    pub(crate) fn add(&self, kick: &OwnedFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.0, kick, epoll::EventData::new_u64(0), flags)?)
    }

    /// Waits for those of a ring no more.
    pub(crate) fn remove(&self, kick: &OwnedFd) {
        // The only error is that it was never added.
        let _ = epoll::delete(&self.0, kick);
    }

    /// Makes the descriptor unreadable until the next kick. Call it before the rings are polled.
    pub(crate) fn clear(&self) {
        let mut reports = [MaybeUninit::uninit(); MOST];
        // The error is a signal. Then the descriptor is still readable.
        let _ = epoll::wait(&self.0, &mut reports, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }
}

impl AsFd for Kicks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::io::write;

    use super::*;

    fn is_kicked(kicks: &Kicks) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::from_borrowed_fd(kicks.as_fd(), PollFlags::IN)], Some(&now)) == Ok(1);
        kicks.clear();
        ready
    }

    fn kick(eventfd: &OwnedFd, nr: u64) {
        write(eventfd, &nr.to_ne_bytes()).unwrap();
    }

    /// Red if a kick is heard by one of the rings that share a descriptor and not by the others, more than once, or not
    /// at all because an earlier one was not read.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such descriptors")]
    fn a_kick_is_heard_once_by_each_worker() {
        let workers = [(); 2].map(|()| Kicks::new().unwrap());
        let shared = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let again = shared.try_clone().unwrap();
        workers[0].add(&shared).unwrap();
        workers[0].add(&again).unwrap();
        workers[1].add(&again).unwrap();
        assert_eq!([0, 1].map(|at| is_kicked(&workers[at])), [false; 2]);
        for _ in 0..3 {
            kick(&shared, 1);
            assert_eq!([0, 1].map(|at| is_kicked(&workers[at])), [true; 2]);
            assert_eq!([0, 1].map(|at| is_kicked(&workers[at])), [false; 2], "it was heard");
        }
        kick(&shared, u64::MAX - 4);
        assert_eq!([0, 1].map(|at| is_kicked(&workers[at])), [true; 2]);
        assert_eq!([0, 1].map(|at| is_kicked(&workers[at])), [false; 2], "a full counter keeps nobody awake");
        workers[0].remove(&shared);
        workers[0].remove(&again);
        // What is there when a ring begins may be a kick.
        workers[0].add(&shared).unwrap();
        assert!(is_kicked(&workers[0]));
    }
}
