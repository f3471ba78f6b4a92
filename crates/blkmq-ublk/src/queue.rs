//! One queue of a device: a thread with a ring of its own and a submitter.
//!
//! The kernel has each tag until a request comes for it, and again once the request's result is told, which is one
//! command (`COMMIT_AND_FETCH_REQ`). What has arrived together goes through blkmq's queue as one plug, and results that
//! are there together are told in one system call. When nothing is to be done, the thread sleeps on its ring, which
//! also watches the submitter's bell and the device's descriptors.
#![expect(unsafe_code, reason = "memory is handed to the kernel")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::idle::Idle;
use blkmq::{Clock, Submitter};
use io_uring::{IoUring, opcode, squeue, types};

use crate::abi::{IoCommand, io as command};
use crate::descriptors::Descriptors;
use crate::work::Work;

/// Marks the user data of entries that are no tag's.
const OTHER: u64 = 1 << 63;
/// The submitter's bell is readable.
const BELL: u64 = OTHER | 1 << 62;
/// The end of a watch that is not needed any more.
const UNWATCHED: u64 = OTHER | 1 << 61;

/// How long a thread sleeps on descriptors of the device before it watches them anew. A descriptor's number may be
/// another file's by then.
const ANEW: Duration = Duration::from_secs(1);

/// How often what is left on the ring is handed over at an end, if the kernel does not take it.
const TRIES_AT_END: usize = 100;

/// What a queue's thread shares with the device.
#[derive(Debug)]
pub(crate) struct Strings {
    pub(crate) bell: Arc<EventFd>,
    /// The thread is to end although the kernel has its tags.
    pub(crate) is_given_up: AtomicBool,
    /// How often requests have moved.
    pub(crate) nr_moves: AtomicU64,
}

/// A queue that is being served.
pub(crate) struct Queue {
    ring: IoUring,
    file: Arc<File>,
    descriptors: Descriptors,
    strings: Arc<Strings>,
    number: u16,
    work: Work,
    submitter: Submitter,
    /// Tags that the kernel has not given back for good.
    nr_tags: u16,
    has_bell: bool,
    /// The device's descriptors that the ring watches.
    watched: Vec<RawFd>,
    idle: Idle,
}

fn make_ring(depth: u16) -> io::Result<IoUring> {
    // One entry for each tag, and some for descriptors. The completion side is twice as long.
    let entries = u32::from(depth) + 16;
    let made = IoUring::builder().setup_clamp().setup_coop_taskrun().setup_single_issuer().build(entries);
    match made {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().setup_clamp().build(entries),
        made => made,
    }
}

impl Queue {
    /// Fetches with all tags. To be called by the thread that serves the queue.
    pub(crate) fn begin(
        (file, descriptors): (Arc<File>, Descriptors),
        (number, depth): (u16, u16),
        strings: Arc<Strings>,
        work: Work,
        submitter: Submitter,
    ) -> io::Result<Self> {
        let ring = make_ring(depth)?;
        let (idle, watched) = (Idle::new(), Vec::new());
        let mut queue = Self {
            ring,
            file,
            descriptors,
            strings,
            number,
            work,
            submitter,
            nr_tags: depth,
            has_bell: false,
            watched,
            idle,
        };
        for tag in 0..depth {
            queue.command(command::FETCH_REQ, tag, -1)?;
        }
        queue.enter(0, None)?;
        Ok(queue)
    }

    /// Serves until the kernel has given back every tag for good, because the device is stopped.
    ///
    /// COST: two system calls for all requests that came together: one tells their results, and one sleeps.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            let mut is_busy = self.take_completions(self.is_given_up())?;
            is_busy |= self.drive();
            while let Some((tag, result)) = self.work.next_over() {
                is_busy = true;
                self.command(command::COMMIT_AND_FETCH_REQ, tag, result)?;
            }
            // The look comes behind the bell's end: the bell may have been rung for this.
            if (self.nr_tags == 0 || self.is_given_up()) && self.work.is_idle() {
                // The last results: without them the kernel takes their requests for lost, and gives them out again.
                return self.enter_all();
            }
            if is_busy {
                self.strings.nr_moves.fetch_add(1, Ordering::Relaxed);
                self.idle.end();
                self.enter(0, None)?;
            } else {
                self.rest()?;
            }
        }
    }

    /// Puts a command on the ring that gives a tag to the kernel.
    fn command(&mut self, op: u32, tag: u16, result: i32) -> io::Result<()> {
        let cmd = IoCommand { q_id: self.number, tag, result, addr: self.work.address(tag) }.to_bytes();
        let fd = types::Fd(self.file.as_raw_fd());
        self.push(&opcode::UringCmd16::new(fd, op).cmd(cmd).build().user_data(tag.into()))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: files are open while the ring is. A command's buffer belongs to its tag, and is not touched while
            // the kernel has the tag; it is freed only after every tag has come back, or never. A watch has no memory.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0, None)?;
        }
    }

    /// Hands over what is on the ring. Waits for so many completions, up to a time.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
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

    fn is_given_up(&self) -> bool {
        // Acquire: pairs with the release of the device that gives the queue up.
        self.strings.is_given_up.load(Ordering::Acquire)
    }

    /// Hands over all that is on the ring, at an end.
    fn enter_all(&mut self) -> io::Result<()> {
        for _ in 0..TRIES_AT_END {
            if self.ring.submission().is_empty() {
                break;
            }
            self.enter(0, None)?;
            // The ring may be full. Requests that come now are left to the next server, and what a command ends with
            // changes nothing any more.
            let _ = self.take_completions(true);
        }
        Ok(())
    }

    /// Takes completions off the ring. Returns whether any requests arrived or tags came back. Requests that arrive
    /// when the queue is given up stay with the kernel, as those of a server that is gone.
    fn take_completions(&mut self, is_given_up: bool) -> io::Result<bool> {
        let Self { ring, descriptors, work, nr_tags, has_bell, watched, strings, idle, .. } = self;
        let mut has_any = false;
        for entry in ring.completion() {
            match entry.user_data() {
                BELL => {
                    *has_bell = false;
                    strings.bell.drain();
                }
                UNWATCHED => (),
                other if other & OTHER != 0 => watched.retain(|fd| *fd as u64 != other & !OTHER),
                tag => {
                    if !has_any {
                        // This comes before the work for the device, which takes time.
                        idle.arrive();
                    }
                    has_any = true;
                    match entry.result() {
                        0 if is_given_up => (),
                        0 => work.arrive(tag as u16, &descriptors.get(tag as u16)),
                        // The device is stopped, or its server is given up.
                        error if error == -libc::ENODEV => *nr_tags -= 1,
                        error => return Err(io::Error::from_raw_os_error(-error)),
                    }
                }
            }
        }
        Ok(has_any)
    }

    /// Submits what has arrived, drives the queue, and settles what is over. Returns whether there was anything.
    fn drive(&mut self) -> bool {
        let Self { submitter, work, .. } = self;
        let mut has_any = work.submit(submitter);
        if submitter.nr_outstanding() > 0 {
            submitter.poll();
            has_any |= submitter.reap_all(|done| work.settle(done)) > 0;
            has_any |= work.submit(submitter);
        }
        has_any
    }

    /// Called when there was nothing to do: looks again, or sleeps.
    fn rest(&mut self) -> io::Result<()> {
        // As other submitters do, the thread sleeps while the device works. What it may look for are further requests.
        let is_alone = self.submitter.nr_outstanding() == 0;
        if is_alone && matches!(self.submitter.queue().clock(), Clock::Real(_)) {
            if self.idle.look() {
                return self.enter(0, None);
            }
        } else {
            self.idle.give_up();
        }
        self.sleep()
    }

    /// Sleeps until a request arrives, an operation completes, or the queue wants to be driven.
    fn sleep(&mut self) -> io::Result<()> {
        if !self.has_bell {
            let fd = types::Fd(self.strings.bell.as_fd().as_raw_fd());
            self.push(&opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(BELL))?;
            self.has_bell = true;
        }
        let is_waiting = self.submitter.nr_outstanding() > 0;
        // `device_fds` may wait for a thread that polls, so it is called before the time is read.
        let fds = if is_waiting { self.submitter.device_fds() } else { Vec::new() };
        let unwatched: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).filter(|fd| !self.watched.contains(fd)).collect();
        let may_be_stale = is_waiting && unwatched.len() < fds.len();
        for fd in unwatched {
            let user_data = OTHER | fd as u64;
            self.push(&opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build().user_data(user_data))?;
            self.watched.push(fd);
        }
        let wakeup = self.submitter.next_wakeup();
        match self.submitter.queue().clock() {
            Clock::Virtual(clock) => {
                let clock = clock.clone();
                self.enter(0, None)?;
                if let (Some(wakeup), true) = (wakeup, self.ring.completion().is_empty()) {
                    clock.advance_to(wakeup);
                }
                Ok(())
            }
            Clock::Real(_) => {
                let now = self.submitter.queue().clock().now();
                let timeout = wakeup.map(|wakeup| Duration::from_nanos(wakeup.since(now)));
                let limit = if is_waiting { Some(ANEW) } else { None };
                self.enter(1, [timeout, limit].into_iter().flatten().min())?;
                let is_late = timeout.is_none_or(|timeout| timeout > ANEW);
                if may_be_stale && is_late && self.ring.completion().is_empty() {
                    self.watch_anew()?;
                }
                Ok(())
            }
        }
    }

    /// Ends the watches of the device's descriptors, which begin anew before the next sleep.
    fn watch_anew(&mut self) -> io::Result<()> {
        for fd in self.watched.clone() {
            self.push(&opcode::PollRemove::new(OTHER | fd as u64).build().user_data(UNWATCHED))?;
        }
        self.enter(0, None)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.nr_tags > 0 {
            // The kernel may still write into the buffers of its tags, until the thread is over.
            if let Some(none) = Work::new(0, 0) {
                std::mem::forget(std::mem::replace(&mut self.work, none));
            }
        }
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
