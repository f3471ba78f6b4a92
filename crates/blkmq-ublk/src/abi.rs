//! The kernel's interface, by its numbers: what `linux/ublk_cmd.h` fixes for every program.
//!
//! Structures are written to bytes and read from bytes by hand, field by field, in the order and the sizes of the
//! interface. So no value that the kernel writes is ever taken for a Rust value without a look at it.

/// The control device, which the module `ublk_drv` makes.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// The most requests of one queue at a time.
pub const MAX_QUEUE_DEPTH: u16 = 4096;
/// The most queues of a device.
pub const MAX_NR_QUEUES: u16 = 4096;
/// Where the descriptors of a device's first queue are in its character device.
pub const CMD_BUF_OFFSET: u64 = 0;

/// Bytes of a [`ControlCommand`].
pub const CONTROL_SIZE: usize = 32;
/// Bytes of a [`DeviceInfo`].
pub const INFO_SIZE: usize = 64;
/// Bytes of [`Parameters`].
pub const PARAMETERS_SIZE: usize = 64;
/// Bytes of a [`Descriptor`].
pub const DESCRIPTOR_SIZE: usize = 24;
/// Bytes of an [`IoCommand`].
pub const IO_SIZE: usize = 16;

const fn ioctl(direction: u32, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number as u32
}

const READ: u32 = 2;
const BOTH: u32 = 3;

/// Control commands, encoded as ioctl numbers are.
pub mod control {
    use super::{BOTH, CONTROL_SIZE, READ, ioctl};

    /// Makes a device.
    pub const ADD_DEV: u32 = ioctl(BOTH, 0x04, CONTROL_SIZE);
    /// Removes a device, once its character device is closed.
    pub const DEL_DEV: u32 = ioctl(BOTH, 0x05, CONTROL_SIZE);
    /// Makes the block device, once each queue has fetched.
    pub const START_DEV: u32 = ioctl(BOTH, 0x06, CONTROL_SIZE);
    /// Removes the block device, once its requests are over.
    pub const STOP_DEV: u32 = ioctl(BOTH, 0x07, CONTROL_SIZE);
    /// Says what the block device is like.
    pub const SET_PARAMS: u32 = ioctl(BOTH, 0x08, CONTROL_SIZE);
    /// Asks what the block device is like.
    pub const GET_PARAMS: u32 = ioctl(READ, 0x09, CONTROL_SIZE);
    /// Takes over a device whose server is gone.
    pub const START_USER_RECOVERY: u32 = ioctl(BOTH, 0x10, CONTROL_SIZE);
    /// Ends that, once each queue has fetched.
    pub const END_USER_RECOVERY: u32 = ioctl(BOTH, 0x11, CONTROL_SIZE);
    /// Asks about a device; the path of its character device stands in front of the answer's room.
    pub const GET_DEV_INFO2: u32 = ioctl(READ, 0x12, CONTROL_SIZE);
    /// Asks which features the kernel has.
    pub const GET_FEATURES: u32 = ioctl(READ, 0x13, CONTROL_SIZE);
    /// Makes a block device that is in use larger; `data` is its number of sectors.
    pub const UPDATE_SIZE: u32 = ioctl(BOTH, 0x15, CONTROL_SIZE);
}

/// Commands of a queue, encoded as ioctl numbers are.
pub mod io {
    use super::{BOTH, IO_SIZE, ioctl};

    /// Waits for a tag's first request.
    pub const FETCH_REQ: u32 = ioctl(BOTH, 0x20, IO_SIZE);
    /// Ends a tag's request, and waits for the next one.
    pub const COMMIT_AND_FETCH_REQ: u32 = ioctl(BOTH, 0x21, IO_SIZE);
    /// Puts a request's pages into the ring's table of buffers; `addr` is the index there.
    pub const REGISTER_IO_BUF: u32 = ioctl(BOTH, 0x23, IO_SIZE);
    /// Takes them out again.
    pub const UNREGISTER_IO_BUF: u32 = ioctl(BOTH, 0x24, IO_SIZE);
}

/// Features of the kernel and of devices.
pub mod feature {
    /// Requests' pages can be used without a copy.
    pub const SUPPORT_ZERO_COPY: u64 = 1 << 0;
    /// The server asks for the data of each write.
    pub const NEED_GET_DATA: u64 = 1 << 2;
    /// The block device waits for a new server when its server is gone.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the old server had are given to the new one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The device belongs to a user without rights.
    pub const UNPRIVILEGED_DEV: u64 = 1 << 5;
    /// Commands are encoded as ioctl numbers are.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// The server copies a request's data through the character device.
    pub const USER_COPY: u64 = 1 << 7;
    /// The device has zones.
    pub const ZONED: u64 = 1 << 8;
    /// While the server is gone, requests fail.
    pub const USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
    /// A block device can become larger while it is in use.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// The kernel registers a request's pages with the ring by itself.
    pub const AUTO_BUF_REG: u64 = 1 << 11;
    /// A request's pages can be registered with any ring, by any thread.
    pub const BUF_REG_OFF_DAEMON: u64 = 1 << 14;
    /// Requests are fetched and answered in batches, by other commands. No device is made with it: a server that is
    /// killed can then change the memory of other processes (docs/ublk.md, "Batches").
    pub const BATCH_IO: u64 = 1 << 15;

    /// The features that have a name here, for people.
    pub const NAMES: [(u64, &str); 16] = [
        (1 << 0, "zero_copy"),
        (1 << 1, "comp_in_task"),
        (1 << 2, "need_get_data"),
        (1 << 3, "user_recovery"),
        (1 << 4, "user_recovery_reissue"),
        (1 << 5, "unprivileged_dev"),
        (1 << 6, "cmd_ioctl_encode"),
        (1 << 7, "user_copy"),
        (1 << 8, "zoned"),
        (1 << 9, "user_recovery_fail_io"),
        (1 << 10, "update_size"),
        (1 << 11, "auto_buf_reg"),
        (1 << 12, "quiesce"),
        (1 << 13, "per_io_daemon"),
        (1 << 14, "buf_reg_off_daemon"),
        (1 << 15, "batch_io"),
    ];
}

/// What a block device is like.
pub mod attribute {
    /// Nothing can be changed.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Seeks cost time.
    pub const ROTATIONAL: u32 = 1 << 1;
    /// It has to be flushed.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// It can make single writes durable.
    pub const FUA: u32 = 1 << 3;
}

/// Which parts of the parameters are given.
pub mod parameter {
    /// Size, blocks and attributes.
    pub const BASIC: u32 = 1 << 0;
    /// Discards and zeroes.
    pub const DISCARD: u32 = 1 << 1;
    /// The numbers of the device's files, which the kernel gives.
    pub const DEVT: u32 = 1 << 2;
}

/// What a request asks for: the lower byte of a descriptor's first word.
pub mod op {
    /// Data from the device.
    pub const READ: u8 = 0;
    /// Data to the device.
    pub const WRITE: u8 = 1;
    /// Makes the cache durable.
    pub const FLUSH: u8 = 2;
    /// The data is not needed any more.
    pub const DISCARD: u8 = 3;
    /// Zeroes without data.
    pub const WRITE_ZEROES: u8 = 5;
}

/// Flags of a request, in a descriptor's first word.
pub mod flag {
    /// Metadata of a file system.
    pub const META: u32 = 1 << 11;
    /// Complete when it is durable.
    pub const FUA: u32 = 1 << 13;
    /// Zeroes that leave no hole.
    pub const NOUNMAP: u32 = 1 << 15;
    /// Swap.
    pub const SWAP: u32 = 1 << 16;
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlCommand {
    /// The device; all ones if there is none.
    pub dev_id: u32,
    /// Bytes of the buffer.
    pub len: u16,
    /// Where the buffer is.
    pub addr: u64,
    /// A number that some commands take.
    pub data: u64,
    /// Bytes of the path in front of what else is in the buffer.
    pub dev_path_len: u16,
}

impl ControlCommand {
    /// As the kernel reads it: for no queue in particular.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CONTROL_SIZE] {
        let mut bytes = [0; CONTROL_SIZE];
        put(&mut bytes, 0, &self.dev_id.to_ne_bytes());
        put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
        put(&mut bytes, 6, &self.len.to_ne_bytes());
        put(&mut bytes, 8, &self.addr.to_ne_bytes());
        put(&mut bytes, 16, &self.data.to_ne_bytes());
        put(&mut bytes, 24, &self.dev_path_len.to_ne_bytes());
        bytes
    }
}

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum State {
    /// There is no block device.
    #[default]
    Dead,
    /// There is a block device, and a server behind it.
    Live,
    /// There is a block device whose requests wait for a server.
    Quiesced,
    /// There is a block device whose requests fail until there is a server.
    FailIo,
    /// A state that this crate does not know.
    Other(u16),
}

impl State {
    fn new(number: u16) -> Self {
        match number {
            0 => Self::Dead,
            1 => Self::Live,
            2 => Self::Quiesced,
            3 => Self::FailIo,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u16 {
        match self {
            Self::Dead => 0,
            Self::Live => 1,
            Self::Quiesced => 2,
            Self::FailIo => 3,
            Self::Other(number) => number,
        }
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceInfo {
    /// Queues.
    pub nr_hw_queues: u16,
    /// Requests of a queue at a time.
    pub queue_depth: u16,
    /// The state.
    pub state: State,
    /// Bytes of the largest read or write.
    pub max_io_buf_bytes: u32,
    /// The device's number; all ones to get any.
    pub dev_id: u32,
    /// The process that serves the device.
    pub server_pid: i32,
    /// The features that the device has.
    pub flags: u64,
    /// A number of the server's own.
    pub server_flags: u64,
}

impl DeviceInfo {
    /// As the kernel reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; INFO_SIZE] {
        let mut bytes = [0; INFO_SIZE];
        put(&mut bytes, 0, &self.nr_hw_queues.to_ne_bytes());
        put(&mut bytes, 2, &self.queue_depth.to_ne_bytes());
        put(&mut bytes, 4, &self.state.number().to_ne_bytes());
        put(&mut bytes, 8, &self.max_io_buf_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.dev_id.to_ne_bytes());
        put(&mut bytes, 16, &self.server_pid.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        put(&mut bytes, 32, &self.server_flags.to_ne_bytes());
        bytes
    }

    /// What the kernel has written.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; INFO_SIZE]) -> Self {
        Self {
            nr_hw_queues: u16::from_ne_bytes(field(bytes, 0)),
            queue_depth: u16::from_ne_bytes(field(bytes, 2)),
            state: State::new(u16::from_ne_bytes(field(bytes, 4))),
            max_io_buf_bytes: u32::from_ne_bytes(field(bytes, 8)),
            dev_id: u32::from_ne_bytes(field(bytes, 12)),
            server_pid: i32::from_ne_bytes(field(bytes, 16)),
            flags: u64::from_ne_bytes(field(bytes, 24)),
            server_flags: u64::from_ne_bytes(field(bytes, 32)),
        }
    }
}

/// `struct ublk_params`, as far as this crate gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parameters {
    /// The parts that are given.
    pub types: u32,
    /// What the device is like.
    pub attrs: u32,
    /// The logical block size, as a power of two.
    pub logical_bs_shift: u8,
    /// The physical block size, as a power of two.
    pub physical_bs_shift: u8,
    /// The size of requests that the device likes best, as a power of two.
    pub io_opt_shift: u8,
    /// The smallest size of requests that costs nothing extra, as a power of two.
    pub io_min_shift: u8,
    /// Sectors of the largest read or write.
    pub max_sectors: u32,
    /// No request crosses a multiple of this many sectors.
    pub chunk_sectors: u32,
    /// Sectors of the device.
    pub dev_sectors: u64,
    /// Bytes: discards are in these units.
    pub discard_granularity: u32,
    /// Sectors of the largest discard.
    pub max_discard_sectors: u32,
    /// Sectors of the most zeroes.
    pub max_write_zeroes_sectors: u32,
    /// Ranges of a discard.
    pub max_discard_segments: u16,
}

impl Parameters {
    /// As the kernel reads them.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PARAMETERS_SIZE] {
        let mut bytes = [0; PARAMETERS_SIZE];
        put(&mut bytes, 0, &(PARAMETERS_SIZE as u32).to_ne_bytes());
        put(&mut bytes, 4, &self.types.to_ne_bytes());
        put(&mut bytes, 8, &self.attrs.to_ne_bytes());
        let shifts = [self.logical_bs_shift, self.physical_bs_shift, self.io_opt_shift, self.io_min_shift];
        put(&mut bytes, 12, &shifts);
        put(&mut bytes, 16, &self.max_sectors.to_ne_bytes());
        put(&mut bytes, 20, &self.chunk_sectors.to_ne_bytes());
        put(&mut bytes, 24, &self.dev_sectors.to_ne_bytes());
        put(&mut bytes, 44, &self.discard_granularity.to_ne_bytes());
        put(&mut bytes, 48, &self.max_discard_sectors.to_ne_bytes());
        put(&mut bytes, 52, &self.max_write_zeroes_sectors.to_ne_bytes());
        put(&mut bytes, 56, &self.max_discard_segments.to_ne_bytes());
        bytes
    }

    /// What the kernel has written.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; PARAMETERS_SIZE]) -> Self {
        let [logical_bs_shift, physical_bs_shift, io_opt_shift, io_min_shift] = field(bytes, 12);
        Self {
            types: u32::from_ne_bytes(field(bytes, 4)),
            attrs: u32::from_ne_bytes(field(bytes, 8)),
            logical_bs_shift,
            physical_bs_shift,
            io_opt_shift,
            io_min_shift,
            max_sectors: u32::from_ne_bytes(field(bytes, 16)),
            chunk_sectors: u32::from_ne_bytes(field(bytes, 20)),
            dev_sectors: u64::from_ne_bytes(field(bytes, 24)),
            discard_granularity: u32::from_ne_bytes(field(bytes, 44)),
            max_discard_sectors: u32::from_ne_bytes(field(bytes, 48)),
            max_write_zeroes_sectors: u32::from_ne_bytes(field(bytes, 52)),
            max_discard_segments: u16::from_ne_bytes(field(bytes, 56)),
        }
    }
}

/// `struct ublksrv_io_desc`: what a request asks for, as the kernel wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The operation in the lower byte, the flags above.
    pub op_flags: u32,
    /// Sectors of 512 bytes.
    pub nr_sectors: u32,
    /// The first sector.
    pub start_sector: u64,
}

impl Descriptor {
    /// What the kernel has written.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; DESCRIPTOR_SIZE]) -> Self {
        Self {
            op_flags: u32::from_ne_bytes(field(bytes, 0)),
            nr_sectors: u32::from_ne_bytes(field(bytes, 4)),
            start_sector: u64::from_ne_bytes(field(bytes, 8)),
        }
    }
}

/// `struct ublksrv_io_cmd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoCommand {
    /// The queue.
    pub q_id: u16,
    /// The tag.
    pub tag: u16,
    /// How the tag's request ended: bytes, or an error number below 0.
    pub result: i32,
    /// The tag's buffer.
    pub addr: u64,
}

impl IoCommand {
    /// As the kernel reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; IO_SIZE] {
        let mut bytes = [0; IO_SIZE];
        put(&mut bytes, 0, &self.q_id.to_ne_bytes());
        put(&mut bytes, 2, &self.tag.to_ne_bytes());
        put(&mut bytes, 4, &self.result.to_ne_bytes());
        put(&mut bytes, 8, &self.addr.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests;
