//! What can go wrong with a block device, in words that say what to do.

use std::fmt;
use std::io;
use std::time::Duration;

use blkmq::QueueError;

use crate::abi::{CONTROL_PATH, MAX_NR_QUEUES, MAX_QUEUE_DEPTH, State};

/// Why there is no block device, or none any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no control device.
    NoControl(io::Error),
    /// The control device cannot be opened, or refuses a command, without rights that this process lacks.
    NoPermission(&'static str),
    /// The kernel has as many devices as it may have, or refuses a device to this user.
    TooManyDevices,
    /// The kernel is too old.
    TooOld,
    /// A number of queues that cannot be.
    Queues(u16),
    /// A number of requests at a time that cannot be.
    Depth(u16),
    /// Bytes of a logical block, which are more than the kernel takes, and how many it takes.
    LogicalBlock(u32, u32),
    /// The bytes of a device that are less than a block, and will never be more.
    NoBlock(u64),
    /// The kernel lacks what zero copy takes.
    NoZeroCopy,
    /// The device behind the queue needs the data in memory.
    NeedsMemory,
    /// The device behind the queue takes the kernel's pages only if their data begins at multiples of so many bytes.
    PagesAlign(u32),
    /// A device with this number exists already, in this state.
    Exists(u32, State),
    /// There is no device with this number.
    NoDevice(u32),
    /// The device has a server.
    Served(u32),
    /// The device cannot be taken over.
    NoRecovery(u32),
    /// The device that is to be taken over is not like the one behind it: what differs.
    Differs(u32, String),
    /// The kernel has not answered a command in time.
    NoAnswer(&'static str, Duration),
    /// The device's threads wait for requests that the device behind it does not give back.
    Stuck(u32, Duration),
    /// A command has failed.
    Command(&'static str, io::Error),
    /// The character device cannot be used.
    Device(String, io::Error),
    /// The queue takes no further submitter.
    Queue(QueueError),
    /// The system gives no thread or ring.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoControl(error) => write!(
                f,
                "ublk: {CONTROL_PATH}: {error}; the kernel's module makes it: modprobe ublk_drv (Linux 6.5 or later; in a \
                 container, /dev has to be the machine's)"
            ),
            Self::NoPermission(what) => write!(f, "ublk: {what}: not allowed; it takes CAP_SYS_ADMIN, as root has it"),
            Self::TooManyDevices => write!(
                f,
                "ublk: the kernel makes no further device; 'blkmq ublk list' shows those that there are, and the parameter \
                 ublks_max of the module ublk_drv is the most"
            ),
            Self::TooOld => write!(f, "ublk: this kernel's ublk is too old; Linux 6.5 or later is needed"),
            Self::Queues(queues) => write!(f, "ublk: {queues} queues; 1 to {MAX_NR_QUEUES} can be"),
            Self::Depth(depth) => write!(f, "ublk: a depth of {depth}; 1 to {MAX_QUEUE_DEPTH} can be"),
            Self::LogicalBlock(bytes, most) => {
                write!(f, "ublk: the device has logical blocks of {bytes} bytes; the kernel takes up to {most}")
            }
            Self::NoBlock(bytes) => {
                write!(f, "ublk: the device has {bytes} bytes; a block device has whole sectors of 512 bytes alone")
            }
            Self::NoZeroCopy => write!(
                f,
                "ublk: this kernel lacks what zero copy takes, zero_copy and buf_reg_off_daemon in 'blkmq ublk features' \
                 (Linux 6.17 or later); leave out 'zero_copy'"
            ),
            Self::NeedsMemory => write!(
                f,
                "ublk: zero copy takes a device that moves data between the kernel and itself, as 'file' does with \
                 io_uring; this one needs the data in memory; leave out 'zero_copy'"
            ),
            Self::PagesAlign(bytes) => write!(
                f,
                "ublk: zero copy takes a device that reads and writes at any multiple of 512 bytes in memory; this one \
                 needs multiples of {bytes}; leave out 'zero_copy'"
            ),
            Self::Exists(id, State::Quiesced) => write!(
                f,
                "ublk: device {id} exists and waits for a server; with 'recover' it gets this one, and 'blkmq ublk del {id}' \
                 removes it"
            ),
            Self::Exists(id, _) => {
                write!(f, "ublk: device {id} exists already; 'blkmq ublk del {id}' removes it, or choose another id")
            }
            Self::NoDevice(id) => {
                write!(f, "ublk: there is no device {id}; 'blkmq ublk list' shows those that there are")
            }
            Self::Served(id) => write!(f, "ublk: device {id} has a server"),
            Self::NoRecovery(id) => {
                write!(f, "ublk: device {id} was made without 'recover', so no other server can take it over")
            }
            Self::Differs(id, what) => write!(f, "ublk: device {id} cannot be taken over: {what}"),
            Self::NoAnswer(what, limit) => {
                write!(f, "ublk: {what}: the kernel has not answered for {} s", limit.as_secs_f64())
            }
            Self::Stuck(id, limit) => write!(
                f,
                "ublk: device {id}: its requests are not over, and nothing has moved for {} s; they are left, and fail or \
                 wait for the next server; 'blkmq ublk list' shows a device that is left",
                limit.as_secs_f64()
            ),
            Self::Command(what, error) => write!(f, "ublk: {what}: {error}"),
            Self::Device(path, error) => write!(f, "ublk: {path}: {error}"),
            Self::Queue(error) => write!(f, "ublk: {error}"),
            Self::System(error) => write!(f, "ublk: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoControl(error) | Self::Command(_, error) | Self::Device(_, error) | Self::System(error) => {
                Some(error)
            }
            Self::Queue(error) => Some(error),
            _ => None,
        }
    }
}

impl Error {
    /// Whether what was asked for cannot be, whatever the system is like.
    #[must_use]
    pub fn is_bad_configuration(&self) -> bool {
        use Error::{Depth, LogicalBlock, NeedsMemory, NoBlock, PagesAlign, Queues};
        matches!(self, Queues(_) | Depth(_) | LogicalBlock(..) | NoBlock(_) | NeedsMemory | PagesAlign(_))
    }

    /// The number of the error that the kernel has returned, if it has returned one.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::NoControl(error) | Self::Command(_, error) | Self::Device(_, error) => error.raw_os_error(),
            _ => None,
        }
    }
}
