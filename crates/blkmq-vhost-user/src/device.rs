//! A disk as a front-end sees it: an export of the engine behind a socket.

use std::path::PathBuf;

use crate::request::NAME;

/// The most rings of a device.
pub const MAX_QUEUES: u16 = 256;

/// A disk for one virtual machine: an export, and the socket at which the machine's front-end finds it.
#[derive(Debug, Clone)]
pub struct Device {
    /// The Unix socket at which the server listens.
    pub socket: PathBuf,
    /// The index of the engine's export that the machine is a client of. Its weight and priority are those of the
    /// machine, which no list has to allow. Several devices, and clients of other front-ends, may have one export.
    pub export: usize,
    /// The most rings that the machine may use, 1 to [`MAX_QUEUES`]. The machine is told this number.
    pub nr_queues: u16,
    /// The threads that serve the rings, 1 to the number of rings.
    pub nr_threads: u16,
    /// Whether nothing can be written, also where the export allows it.
    pub read_only: bool,
    /// What the machine is told if it asks for the disk's serial number: up to 20 bytes of ASCII.
    pub serial: String,
    /// Whether a request has the priority that the machine gives it, up to the export's; best effort if the machine
    /// gives none. The standard has no such field; Linux writes it where the standard has a reserved one, which
    /// `VIRTIO_BLK_F_REQ_FLAGS` makes one of flags. So that feature is not offered.
    pub guest_priority: bool,
    /// Whether the machine may have packed rings, which take fewer accesses to its memory.
    pub packed: bool,
    /// Whether the machine's memory, and a front-end's record of what is in progress, may be any file. Without this it
    /// lies on tmpfs or hugetlbfs, and a memfd is sealed against shrinking (`F_SEAL_SHRINK`). A file on another file
    /// system can keep a thread of this process waiting forever, and with it all clients of the queue. A file that is
    /// cut short ends the process.
    pub any_memory: bool,
    /// Who may connect: the permissions of the socket.
    pub mode: u32,
}

/// What is wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The number of rings.
    #[error("{0} queues; give a number from 1 to {MAX_QUEUES}")]
    Queues(u16),
    /// The number of threads, for so many rings.
    #[error("{0} threads for {1} queues; give a number from 1 to {1}")]
    Threads(u16, u16),
    /// The serial number.
    #[error("the serial number {0:?}; give up to {NAME} letters, digits and other signs of ASCII")]
    Serial(String),
    /// The bytes of a device that are less than a block, and will never be more.
    #[error("{0} bytes; a machine reaches whole sectors of 512 bytes alone")]
    NoBlock(u64),
}

impl Device {
    /// A writable disk with one ring, of the engine's first export, which only the server's own user may use.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            export: 0,
            nr_queues: 1,
            nr_threads: 1,
            read_only: false,
            serial: "blkmq".to_owned(),
            guest_priority: false,
            packed: false,
            any_memory: false,
            mode: 0o600,
        }
    }

    /// What is wrong with the device, if anything is.
    ///
    /// # Errors
    /// A number that cannot be, or a serial number that cannot be told.
    pub fn check(&self) -> Result<(), DeviceError> {
        Self::check_numbers(self.nr_queues, self.nr_threads, &self.serial)
    }

    /// As [`check`](Self::check), before there is a queue to make a device of.
    ///
    /// # Errors
    /// As those of `check`.
    pub fn check_numbers(nr_queues: u16, nr_threads: u16, serial: &str) -> Result<(), DeviceError> {
        if nr_queues == 0 || nr_queues > MAX_QUEUES {
            return Err(DeviceError::Queues(nr_queues));
        }
        if nr_threads == 0 || nr_threads > nr_queues {
            return Err(DeviceError::Threads(nr_threads, nr_queues));
        }
        if serial.len() > NAME || !serial.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(DeviceError::Serial(serial.to_owned()));
        }
        Ok(())
    }

    /// What the machine is called among the clients.
    pub(crate) fn peer(&self) -> String {
        let visible = |c: &char| !blkmq::is_hidden(*c);
        self.socket.display().to_string().chars().filter(visible).collect()
    }

    /// The serial number as the machine gets it.
    pub(crate) fn name(&self) -> [u8; NAME] {
        let mut name = [0; NAME];
        name[..self.serial.len()].copy_from_slice(self.serial.as_bytes());
        name
    }
}
