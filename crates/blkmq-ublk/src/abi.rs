//! The kernel's interface, by its numbers: what `linux/ublk_cmd.h` fixes for every program.
//!
//! Structures are written to bytes and read from bytes field by field, each at its place in the interface. So no value
//! that the kernel writes is ever taken for a Rust value without a look at it.

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

/// A control command: its name, and its number, which is encoded as ioctl numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlOp(pub &'static str, pub u32);

/// Control commands.
pub mod control {
    use super::{BOTH, CONTROL_SIZE, ControlOp, READ, ioctl};

    /// Makes a device.
    pub const ADD_DEV: ControlOp = ControlOp("ADD_DEV", ioctl(BOTH, 0x04, CONTROL_SIZE));
    /// Removes a device, once its character device is closed.
    pub const DEL_DEV: ControlOp = ControlOp("DEL_DEV", ioctl(BOTH, 0x05, CONTROL_SIZE));
    /// Makes the block device, once each queue has fetched.
    pub const START_DEV: ControlOp = ControlOp("START_DEV", ioctl(BOTH, 0x06, CONTROL_SIZE));
    /// Removes the block device, once its requests are over.
    pub const STOP_DEV: ControlOp = ControlOp("STOP_DEV", ioctl(BOTH, 0x07, CONTROL_SIZE));
    /// Says what the block device is like.
    pub const SET_PARAMS: ControlOp = ControlOp("SET_PARAMS", ioctl(BOTH, 0x08, CONTROL_SIZE));
    /// Asks what the block device is like.
    pub const GET_PARAMS: ControlOp = ControlOp("GET_PARAMS", ioctl(READ, 0x09, CONTROL_SIZE));
    /// Takes over a device whose server is gone.
    pub const START_USER_RECOVERY: ControlOp = ControlOp("START_USER_RECOVERY", ioctl(BOTH, 0x10, CONTROL_SIZE));
    /// Ends that, once each queue has fetched.
    pub const END_USER_RECOVERY: ControlOp = ControlOp("END_USER_RECOVERY", ioctl(BOTH, 0x11, CONTROL_SIZE));
    /// Asks about a device; the path of its character device stands in front of the answer's room.
    pub const GET_DEV_INFO2: ControlOp = ControlOp("GET_DEV_INFO2", ioctl(READ, 0x12, CONTROL_SIZE));
    /// Asks which features the kernel has.
    pub const GET_FEATURES: ControlOp = ControlOp("GET_FEATURES", ioctl(READ, 0x13, CONTROL_SIZE));
    /// Makes a block device that is in use larger; `data` is its number of sectors.
    pub const UPDATE_SIZE: ControlOp = ControlOp("UPDATE_SIZE", ioctl(BOTH, 0x15, CONTROL_SIZE));
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
    fn from_ne_bytes(number: [u8; 2]) -> Self {
        match u16::from_ne_bytes(number) {
            0 => Self::Dead,
            1 => Self::Live,
            2 => Self::Quiesced,
            3 => Self::FailIo,
            other => Self::Other(other),
        }
    }

    fn to_ne_bytes(self) -> [u8; 2] {
        let number: u16 = match self {
            Self::Dead => 0,
            Self::Live => 1,
            Self::Quiesced => 2,
            Self::FailIo => 3,
            Self::Other(number) => number,
        };
        number.to_ne_bytes()
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Defines structures: how many bytes each has, its constants, and its fields, each behind the number of its first
/// byte.
macro_rules! structures {
    ($(
        $(#[$doc:meta])*
        $name:ident($size:expr $(, $place:literal = $constant:expr)*) {
            $($(#[$about:meta])* $at:literal $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl $name {
            /// As the kernel reads it.
            #[must_use]
            pub fn to_bytes(self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
                $(put($place, &($constant).to_ne_bytes());)*
                $(put($at, &self.$field.to_ne_bytes());)*
                bytes
            }

            /// What the kernel has written.
            #[must_use]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self { $($field: <$type>::from_ne_bytes(field(bytes, $at)),)* }
            }
        }
    )*};
}

structures! {
    /// `struct ublksrv_ctrl_cmd`, for no queue in particular.
    ControlCommand(CONTROL_SIZE, 4 = u16::MAX) {
        /// The device; all ones if there is none.
        0 dev_id: u32,
        /// Bytes of the buffer.
        6 len: u16,
        /// Where the buffer is.
        8 addr: u64,
        /// A number that some commands take.
        16 data: u64,
        /// Bytes of the path in front of what else is in the buffer.
        24 dev_path_len: u16,
    }

    /// `struct ublksrv_ctrl_dev_info`.
    DeviceInfo(INFO_SIZE) {
        /// Queues.
        0 nr_hw_queues: u16,
        /// Requests of a queue at a time.
        2 queue_depth: u16,
        /// The state.
        4 state: State,
        /// Bytes of the largest read or write.
        8 max_io_buf_bytes: u32,
        /// The device's number; all ones to get any.
        12 dev_id: u32,
        /// The process that serves the device.
        16 server_pid: i32,
        /// The features that the device has.
        24 flags: u64,
        /// A number of the server's own.
        32 server_flags: u64,
    }

    /// `struct ublk_params`, as far as this crate gives them.
    Parameters(PARAMETERS_SIZE, 0 = PARAMETERS_SIZE as u32) {
        /// The parts that are given.
        4 types: u32,
        /// What the device is like.
        8 attrs: u32,
        /// The logical block size, as a power of two.
        12 logical_bs_shift: u8,
        /// The physical block size, as a power of two.
        13 physical_bs_shift: u8,
        /// The size of requests that the device likes best, as a power of two.
        14 io_opt_shift: u8,
        /// The smallest size of requests that costs nothing extra, as a power of two.
        15 io_min_shift: u8,
        /// Sectors of the largest read or write.
        16 max_sectors: u32,
        /// No request crosses a multiple of this many sectors.
        20 chunk_sectors: u32,
        /// Sectors of the device.
        24 dev_sectors: u64,
        /// Bytes: discards are in these units.
        44 discard_granularity: u32,
        /// Sectors of the largest discard.
        48 max_discard_sectors: u32,
        /// Sectors of the most zeroes.
        52 max_write_zeroes_sectors: u32,
        /// Ranges of a discard.
        56 max_discard_segments: u16,
    }

    /// `struct ublksrv_io_desc`: what a request asks for, as the kernel wrote it.
    Descriptor(DESCRIPTOR_SIZE) {
        /// The operation in the lower byte, the flags above.
        0 op_flags: u32,
        /// Sectors of 512 bytes.
        4 nr_sectors: u32,
        /// The first sector.
        8 start_sector: u64,
    }

    /// `struct ublksrv_io_cmd`.
    IoCommand(IO_SIZE) {
        /// The queue.
        0 q_id: u16,
        /// The tag.
        2 tag: u16,
        /// How the tag's request ended: bytes, or an error number below 0.
        4 result: i32,
        /// The tag's buffer.
        8 addr: u64,
    }
}

impl DeviceInfo {
    /// Whether the device has this [`feature`].
    #[must_use]
    pub const fn has(&self, feature: u64) -> bool {
        self.flags & feature != 0
    }
}

#[cfg(test)]
mod tests;
