//! The parameters of the null device.

use crate::driver::model::Profile;
use crate::driver::parameter::units::{DEPTH, GIB, MIB, QUEUES, count, size, time};
use crate::driver::parameter::{Accepts, Fault, Field, Value, parameters};
use crate::driver::store::MAX_SIZE;

/// When requests complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqMode {
    /// 0: when they are issued.
    Inline,
    /// 1: when a thread polls the hardware queue next.
    Softirq,
    /// 2: `completion_nsec` after they were issued, found by polling.
    Timer,
}

impl Field for IrqMode {
    fn from_value(value: Option<Value>) -> Self {
        match Field::from_value(value) {
            0u16 => Self::Inline,
            1 => Self::Softirq,
            _ => Self::Timer,
        }
    }
}

parameters! {
/// What a null device is like.
///
/// Read it from a spec, which has a default for everything: `"memory_backed=1,cache_size=16".parse::<Config>()`.
pub struct Config;

/// The parameters of the null device.
///
#[doc = include_str!("../../../docs/null.md")]
pub const PARAMETERS = {
    submit_queues: u16 = count("", 1, QUEUES), "1", "hardware queues; more than there are CPUs is fine";
    read_queues: u16 = count("", 0, QUEUES), "0", "hardware queues for reads alone (not in null_blk)";
    poll_queues: u16 = count("", 0, QUEUES), "1", "hardware queues for polled operations";
    hw_queue_depth: u16 = count("", 1, DEPTH), "64", "requests that a hardware queue takes at once";
    irqmode: IrqMode = count("", 0, 2), "1",
        "when requests complete: 0 as they are issued, 1 at the next poll, 2 completion_nsec after they were issued";
    completion_nsec: u64 = time(1 << 62), "10000", "how long a request takes with irqmode=2";
    bs: u32 = size(1, 512, 4096), "512", "logical block size in bytes, a power of two";
    [gb = size(GIB, 512, MAX_SIZE), "250", "size of the device in GiB"]
    size: u64 = size(1, 512, MAX_SIZE), "", "size of the device in bytes, instead of gb (not so in null_blk)";
    max_sectors: u32 = count("sectors", 0, u32::MAX as u64), "0",
        "largest request in sectors of 512 bytes; 0 for the limit that is usual";
    memory_backed: bool = Accepts::Switch, "0", "keep the data, in memory that is taken as it is written";
    discard: bool = Accepts::Switch, "0", "support discard; needs memory_backed=1";
    cache_size: u64 = size(MIB, 0, MAX_SIZE), "0",
        "size of the volatile write cache in MiB; needs memory_backed=1; 0 for none";
    fua: bool = Accepts::Switch, "1", "support FUA, where there is a volatile cache";
    rotational: bool = Accepts::Switch, "0", "call the device rotational";
    timeout: Option<Fault> = Accepts::Fault, "",
        "swallow requests: interval (only every so-many-th), probability in percent, space (as many pass first), \
         times (at most; -1 for no bound)";
    requeue: Option<Fault> = Accepts::Fault, "",
        "refuse requests and give them back, in turn; the four numbers are those of timeout";
    badblocks: Option<(u64, u64)> = Accepts::Sectors, "",
        "fail every request that touches these sectors with a medium error, the last one included";
    seed: u64 = count("", 0, u64::MAX), "0", "where the chances of timeout and requeue begin (not in null_blk)";
}}
