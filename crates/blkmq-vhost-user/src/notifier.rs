//! Signals eventfds of a front-end without ever waiting for it.
//!
//! A write to an eventfd waits while the counter is at its maximum. The front-end shares the counter, and the flag
//! `O_NONBLOCK`, which it can take away between a check and the write. Inside the kernel, an eventfd is signalled
//! without waiting: a full counter stays as it is, and whoever waits for the eventfd is woken. Linux AIO offers that to
//! a process: an operation that names an eventfd signals it when it completes. Here the operation reads an empty file,
//! so it has completed when `io_submit` returns.
#![expect(unsafe_code, reason = "Linux AIO, for which no crate has a safe interface")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};

/// The operations for which room is asked. The kernel makes room for more, as many as it has processors.
const ROOM: libc::c_long = 8;
/// The most results that are taken away at a time.
const EVENTS: usize = 64;
/// The operation: pread(2).
const READ: u16 = 0;
/// Of an operation's flags: its eventfd is signalled.
const HAS_EVENTFD: u32 = 1;
/// An address that is never in this process: the last byte of all, which is the kernel's.
const NOWHERE: u64 = u64::MAX;

/// `struct iocb` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    read_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event` of the kernel.
type Event = [u64; 4];

/// Signals eventfds.
///
/// # Invariants
/// `context` is an AIO context of this process, which lives as long as this value.
#[derive(Debug)]
pub(crate) struct Notifier {
    context: libc::c_ulong,
    /// What the operations read: nothing.
    empty: OwnedFd,
}

impl Notifier {
    /// # Errors
    /// The kernel has no AIO, or no more room for it (`fs.aio-max-nr`).
    pub(crate) fn new() -> io::Result<Self> {
        let empty = memfd_create("blkmq-notifier", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number, for which there is room.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ROOM, &raw mut context) };
        if made == 0 { Ok(Self { context, empty }) } else { Err(io::Error::last_os_error()) }
    }

    /// Adds 1 to the counter of an eventfd, or leaves it at its maximum, and wakes whoever waits for it.
    ///
    /// COST: a system call, and two more for each [`EVENTS`] calls.
    pub(crate) fn signal(&self, eventfd: &OwnedFd) {
        // The descriptor is an eventfd, so the only error is a kernel without memory.
        let _ = self.submit(eventfd, 0);
    }

    /// Whether the descriptor is an eventfd. Its counter stays as it is.
    pub(crate) fn is_eventfd(&self, file: &OwnedFd) -> bool {
        // The kernel looks at the eventfd first, and then finds no memory for the data.
        self.submit(file, NOWHERE).is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT))
    }

    /// As [`submit_once`](Self::submit_once). Results of earlier operations that take all the room are taken away.
    fn submit(&self, eventfd: &OwnedFd, buffer: u64) -> io::Result<()> {
        loop {
            match self.submit_once(eventfd, buffer) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => self.collect(),
                result => return result,
            }
        }
    }

    /// Reads nothing to an address, and signals the eventfd.
    fn submit_once(&self, eventfd: &OwnedFd, buffer: u64) -> io::Result<()> {
        let mut operation = Operation {
            opcode: READ,
            fd: self.empty.as_raw_fd() as u32,
            buffer,
            len: u64::from(buffer == NOWHERE),
            flags: HAS_EVENTFD,
            eventfd: eventfd.as_raw_fd() as u32,
            ..Operation::default()
        };
        let operations = [&raw mut operation];
        // SAFETY: there is one operation, of which the kernel keeps no address: it reads no bytes, or has no memory to
        // read to. The context lives (Invariant).
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1_i64, operations.as_ptr()) };
        if taken == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes the results of operations away, which makes room for others.
    fn collect(&self) {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most) = (0_i64, EVENTS as i64);
        // SAFETY: the kernel writes at most as many events as there is room for, and reads the time. The context lives
        // (Invariant).
        unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, least, most, events.as_mut_ptr(), &raw const now)
        };
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // SAFETY: the context is this value's, which ends (Invariant). No operation is in progress.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::OpenOptions;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::io::{read, write};

    use super::*;

    /// Fails if this takes minutes: a thread waits for what never comes.
    pub(crate) fn bounded(test: impl FnOnce() + Send + 'static) {
        let (done, is_done) = channel();
        let thread = std::thread::spawn(move || {
            test();
            let _ = done.send(());
        });
        match is_done.recv_timeout(Duration::from_secs(120)) {
            Err(RecvTimeoutError::Timeout) => panic!("a thread does not go on"),
            _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        }
    }

    fn count(eventfd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        read(eventfd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Red if a signal is lost when the kernel has kept the results of many, or waits for a counter that is full. The
    /// flag of the eventfd does not help: the front-end has not set it.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no AIO")]
    fn no_signal_is_lost_or_waits() {
        let notifier = Notifier::new().unwrap();
        let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        bounded(move || {
            for nr in [1, 1000, 100_000] {
                (0..nr).for_each(|_| notifier.signal(&counter));
                assert_eq!(count(&counter), nr);
            }
            write(&counter, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            (0..10_000).for_each(|_| notifier.signal(&counter));
            assert_eq!(count(&counter), u64::MAX);
            notifier.signal(&counter);
            assert_eq!(count(&counter), 1, "the front-end hears what comes later");
        });
    }

    /// Red if an eventfd is refused because the results of earlier signals take all the room.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no AIO")]
    fn an_eventfd_is_one_however_many_signals_came_before() {
        let notifier = Notifier::new().unwrap();
        let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for nr in 0..2000 {
            assert!(notifier.is_eventfd(&counter), "after {nr} signals");
            notifier.signal(&counter);
        }
    }

    /// Red if a descriptor that can block, or is always ready, is taken for an eventfd, or if the question changes one.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no AIO")]
    fn nothing_else_is_an_eventfd() {
        let notifier = Notifier::new().unwrap();
        let counter = eventfd(3, EventfdFlags::CLOEXEC).unwrap();
        assert!(notifier.is_eventfd(&counter));
        assert_eq!(count(&counter), 3);
        let (reader, writer) = std::io::pipe().unwrap();
        let zero = OpenOptions::new().read(true).write(true).open("/dev/zero").unwrap();
        let (near, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for other in [reader.into(), writer.into(), zero.into(), near.into(), epoll] {
            assert!(!notifier.is_eventfd(&other));
        }
    }
}
