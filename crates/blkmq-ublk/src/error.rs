//! What can go wrong with a block device, in words that say what to do.

use std::io;
use std::time::Duration;

use blkmq::QueueError;

use crate::abi::{CONTROL_PATH, MAX_NR_QUEUES, MAX_QUEUE_DEPTH, State};

/// Why there is no block device, or none any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no control device.
    #[error(
        "ublk: {CONTROL_PATH}: {0}; the kernel's module makes it: modprobe ublk_drv (Linux 6.5 or later; in a \
         container, /dev has to be the machine's)"
    )]
    NoControl(#[source] io::Error),
    /// The control device cannot be opened, or refuses a command, without rights that this process lacks.
    #[error("ublk: {0}: not allowed; it takes CAP_SYS_ADMIN, as root has it")]
    NoPermission(&'static str),
    /// The kernel has as many devices as it may have, or refuses a device to this user.
    #[error(
        "ublk: the kernel makes no further device; 'blkmq ublk list' shows those that there are, and the parameter \
         ublks_max of the module ublk_drv is the most"
    )]
    TooManyDevices,
    /// The kernel is too old.
    #[error("ublk: this kernel's ublk is too old; Linux 6.5 or later is needed")]
    TooOld,
    /// A number of queues that cannot be.
    #[error("ublk: {0} queues; 1 to {MAX_NR_QUEUES} can be")]
    Queues(u16),
    /// A number of requests at a time that cannot be.
    #[error("ublk: a depth of {0}; 1 to {MAX_QUEUE_DEPTH} can be")]
    Depth(u16),
    /// Bytes of a logical block, which are more than the kernel takes, and how many it takes.
    #[error("ublk: the device has logical blocks of {0} bytes; the kernel takes up to {1}")]
    LogicalBlock(u32, u32),
    /// The bytes of a device that are less than a block, and will never be more.
    #[error("ublk: the device has {0} bytes; a block device has whole sectors of 512 bytes alone")]
    NoBlock(u64),
    /// The kernel lacks what zero copy takes.
    #[error(
        "ublk: this kernel lacks what zero copy takes, zero_copy and buf_reg_off_daemon in 'blkmq ublk features' (Linux \
         6.17 or later); leave out 'zero_copy'"
    )]
    NoZeroCopy,
    /// The device behind the queue needs the data in memory.
    #[error(
        "ublk: zero copy takes a device that moves data between the kernel and itself, as 'file' does with io_uring; \
         this one needs the data in memory; leave out 'zero_copy'"
    )]
    NeedsMemory,
    /// The device behind the queue takes the kernel's pages only if their data begins at multiples of so many bytes.
    #[error(
        "ublk: zero copy takes a device that reads and writes at any multiple of 512 bytes in memory; this one needs \
         multiples of {0}; leave out 'zero_copy'"
    )]
    PagesAlign(u32),
    /// A device with this number exists already, in this state.
    #[error("{}", already(*.0, *.1))]
    Exists(u32, State),
    /// There is no device with this number.
    #[error("ublk: there is no device {0}; 'blkmq ublk list' shows those that there are")]
    NoDevice(u32),
    /// The device has a server.
    #[error("ublk: device {0} has a server")]
    Served(u32),
    /// The device cannot be taken over.
    #[error("ublk: device {0} was made without 'recover', so no other server can take it over")]
    NoRecovery(u32),
    /// The device that is to be taken over is not like the one behind it: what differs.
    #[error("ublk: device {0} cannot be taken over: {1}")]
    Differs(u32, String),
    /// The kernel has not answered a command in time.
    #[error("ublk: {0}: the kernel has not answered for {limit} s", limit = .1.as_secs_f64())]
    NoAnswer(&'static str, Duration),
    /// The device's threads wait for requests that the device behind it does not give back.
    #[error(
        "ublk: device {0}: its requests are not over, and nothing has moved for {limit} s; they are left, and fail or wait \
         for the next server; 'blkmq ublk list' shows a device that is left",
        limit = .1.as_secs_f64()
    )]
    Stuck(u32, Duration),
    /// A command has failed.
    #[error("ublk: {0}: {1}")]
    Command(&'static str, #[source] io::Error),
    /// The character device cannot be used.
    #[error("ublk: {0}: {1}")]
    Device(String, #[source] io::Error),
    /// The queue takes no further submitter.
    #[error("ublk: {0}")]
    Queue(#[source] QueueError),
    /// The system gives no thread or ring.
    #[error("ublk: {0}")]
    System(#[source] io::Error),
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

fn already(id: u32, state: State) -> String {
    let removes = format!("'blkmq ublk del {id}' removes it");
    if state == State::Quiesced {
        return format!(
            "ublk: device {id} exists and waits for a server; with 'recover' it gets this one, and {removes}"
        );
    }
    format!("ublk: device {id} exists already; {removes}, or choose another id")
}
