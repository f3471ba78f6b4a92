//! The words of vhost-user: messages, features, and the configuration of a block device.

pub(crate) mod config;
pub(crate) mod message;
pub(crate) mod wire;

/// Features of a device, as bits of the numbers that the two sides agree on.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const SEVERAL_QUEUES: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    /// There are features of the protocol.
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
    pub(crate) const PACKED: u64 = 1 << 34;
}

/// Features of the protocol.
pub(crate) mod protocol_feature {
    pub(crate) const SEVERAL_QUEUES: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQUEST: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT: u64 = 1 << 12;
    pub(crate) const RESET_DEVICE: u64 = 1 << 13;
    pub(crate) const MEMORY_SLOTS: u64 = 1 << 15;
}
