//! How a connection's thread sleeps until there is something to do.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::{Clock, Submitter, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// So many descriptors are waited for without an allocation.
const FEW: usize = 8;

/// A descriptor of the front-end's own, as a socket.
#[derive(Debug)]
pub struct Watch<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// The events that end the wait.
    pub wanted: PollFlags,
    /// The events that there were when it ended.
    pub ready: PollFlags,
}

impl<'a> Watch<'a> {
    /// Waits for these events.
    pub fn new(fd: &'a impl AsFd, wanted: PollFlags) -> Self {
        Self { fd: fd.as_fd(), wanted, ready: PollFlags::empty() }
    }
}

/// Waits until something that is watched is ready, the bell rings, one of the device's descriptors is readable, or the
/// time is over. Returns whether the bell or the device ended the wait. The bell has been silenced then.
///
/// COST: a system call, and another one if the bell has rung; an allocation for more than 8 descriptors.
///
/// # Errors
/// The system cannot wait for them.
pub fn wait(
    watches: &mut [Watch<'_>],
    bell: &EventFd,
    device: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> Result<bool, Errno> {
    let bell_fd = bell.as_fd();
    let of_bell = PollFd::from_borrowed_fd(bell_fd, PollFlags::IN);
    let own = watches.iter().map(|watch| PollFd::from_borrowed_fd(watch.fd, watch.wanted));
    let rest = device.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let all = std::iter::once(of_bell.clone()).chain(own).chain(rest);
    let count = 1 + watches.len() + device.len();
    let (mut two, mut few, mut many);
    let fds = if let ([watch], []) = (&*watches, device) {
        // The most common case, without a loop.
        two = [of_bell, PollFd::from_borrowed_fd(watch.fd, watch.wanted)];
        &mut two[..]
    } else if count <= FEW {
        few = std::array::from_fn::<_, FEW, _>(|_| of_bell.clone());
        few.iter_mut().zip(all).for_each(|(place, fd)| *place = fd);
        &mut few[..count]
    } else {
        many = all.collect::<Vec<_>>();
        &mut many[..]
    };
    // A time that does not fit into the type is so long that it counts as no limit.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => (),
        Err(error) => return Err(error),
    }
    let has_rung = !fds[0].revents().is_empty();
    let is_device = fds[1 + watches.len()..].iter().any(|fd| !fd.revents().is_empty());
    watches.iter_mut().zip(&fds[1..]).for_each(|(watch, fd)| watch.ready = fd.revents());
    if has_rung {
        bell.drain();
    }
    Ok(has_rung || is_device)
}

/// What a thread that sleeps until its submitter has something to do is woken by, beside the submitter's bell. For a
/// front-end whose thread sleeps in a way of its own, as in an io_uring; others call [`sleep()`].
#[derive(Debug)]
pub struct Sleep<'a> {
    /// Descriptors of the device, each of which ends the sleep when it is readable.
    pub device: Vec<BorrowedFd<'a>>,
    /// After this time the queue wants to be driven.
    pub timeout: Option<Duration>,
    clock: &'a Clock,
    wakeup: Option<Time>,
}

impl<'a> Sleep<'a> {
    /// Comes before the sleep.
    ///
    /// COST: while operations are outstanding, the list of the device's descriptors.
    #[must_use]
    pub fn begin(submitter: &'a Submitter) -> Self {
        // The threads of other clients find what the device has done for these clients. `device_fds` may wait for a
        // thread that polls for them, so it is called before the time is read.
        let device = if submitter.nr_outstanding() > 0 { submitter.device_fds() } else { Vec::new() };
        let wakeup = submitter.next_wakeup();
        let clock = submitter.queue().clock();
        let timeout = wakeup.map(|wakeup| match clock {
            Clock::Virtual(_) => Duration::ZERO,
            Clock::Real(_) => Duration::from_nanos(wakeup.since(clock.now())),
        });
        Self { device, timeout, clock, wakeup }
    }

    /// Comes after the sleep. `is_woken`: something else than the time ended it.
    pub fn end(self, is_woken: bool) {
        if let (Clock::Virtual(clock), Some(wakeup), false) = (self.clock, self.wakeup, is_woken) {
            // As in a submitter's wait, sleeping moves a virtual clock.
            clock.advance_to(wakeup);
        }
    }
}

/// Sleeps until something that is watched is ready, the bell rings, an operation completes, the queue wants to be
/// driven, or this time is over. `bell` is what the submitter notifies.
///
/// COST: those of [`wait`] and of [`Sleep::begin`].
///
/// # Errors
/// The system cannot wait.
pub fn sleep(
    submitter: &mut Submitter,
    watches: &mut [Watch<'_>],
    bell: &EventFd,
    most: Option<Duration>,
) -> Result<(), Errno> {
    let sleep = Sleep::begin(submitter);
    let timeout = [sleep.timeout, most].into_iter().flatten().min();
    let is_woken = wait(watches, bell, &sleep.device, timeout)?;
    let is_ready = watches.iter().any(|watch| !watch.ready.is_empty());
    sleep.end(is_woken || is_ready);
    Ok(())
}

#[cfg(test)]
mod tests {
    use blkmq::Notify;

    use super::*;

    /// Red if a descriptor is given the events of another one, if the bell or the device is not told from the
    /// front-end's own descriptors, or if many descriptors are waited for otherwise than few.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn each_descriptor_has_its_own_events() {
        for count in [0, 1, 3, FEW - 1, FEW, 3 * FEW] {
            let fds: Vec<_> = (0..count).map(|_| EventFd::new().unwrap()).collect();
            let [bell, device] = [(); 2].map(|()| EventFd::new().unwrap());
            let now = Some(Duration::ZERO);
            let ready = |device: &[BorrowedFd<'_>]| {
                let mut watches: Vec<_> = fds.iter().map(|fd| Watch::new(fd, PollFlags::IN)).collect();
                let is_woken = wait(&mut watches, &bell, device, now).unwrap();
                let ready = watches.iter().enumerate().filter(|(_, watch)| !watch.ready.is_empty());
                (is_woken, ready.map(|(index, _)| index).collect::<Vec<_>>())
            };
            assert_eq!(ready(&[device.as_fd()]), (false, vec![]));
            fds.iter().skip(count / 2).for_each(Notify::notify);
            let half: Vec<_> = (count / 2..count).collect();
            assert_eq!(ready(&[device.as_fd()]), (false, half.clone()));
            device.notify();
            assert_eq!(ready(&[device.as_fd()]), (true, half.clone()));
            bell.notify();
            assert_eq!(ready(&[]), (true, half.clone()));
            assert_eq!(ready(&[]), (false, half), "the bell was silenced");
        }
    }
}
