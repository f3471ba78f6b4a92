//! The parameters of the volume, and the profile that it has by default.

use crate::driver::model::Profile;
use crate::driver::parameter::units::{DEPTH, GIB, MIB, QUEUES, SECOND, count, size, time};
use crate::driver::parameter::{Accepts, parameters};
use crate::driver::store::MAX_SIZE;

parameters! {
/// What a volume is like.
///
/// Read it from a spec, which has a default for everything: `"iops=3000,mbps=125".parse::<Config>()`.
///
/// # The default profile
/// A local NVMe disk of an Azure L-series machine, as EloqStore measured it (docs/design/io_qos.md in
/// github.com/eloqdata/eloqstore at 2800414, July 2026).
///
/// - `iops=275000`: at most 275,000 reads of 4 KiB a second, at any depth.
/// - What exceeds that is held for "a quantized ~3 ms": a read takes 90 us or 3 ms, and nothing between. With 32 in
///   flight a read's p99.9 is 3.25 ms, so `hold=3100us`.
/// - With 24 in flight there are 243,000 a second, and the p99.9 is 0.42 ms. 24 / 243,000 is 99 us, so that is the mean
///   of what the device itself takes: `latency=45us` and one and a half times `spread=36us`, whose p99.9 is 0.40 ms.
/// - With 16 in flight the rate falls by 40 %. 16 / 99 us is 41 % less than 275,000.
/// - A write costs an operation for each 4 KiB, as in the limiter that EloqStore put in front: `write_unit=4096`.
/// - `mbps=2000` is what Azure's page on the Lsv2 series gives for each disk. The same page gives 400,000 reads a
///   second, more than was measured.
/// - How much credit such a disk saves up is not known. It must be what comes in within `hold`, or a deep queue, of
///   which the limiter holds nearly all at once, would not get the 275,000: `burst=4ms`.
///
/// `tests/it/profile_cloud.rs` checks the measured ones. The profile differs from the publication in one point. With
/// 256 in flight a read takes up to 6.7 ms there, and in the model 3.4 ms: the model holds an operation twice only if
/// more are held than the ceiling lets through in 3 ms.
pub struct Config;

/// The parameters of the volume.
///
#[doc = include_str!("../../../docs/cloud.md")]
pub const PARAMETERS = {
    submit_queues: u16 = count("", 1, QUEUES), "1", "hardware queues";
    hw_queue_depth: u16 = count("", 1, DEPTH), "1023", "requests that a hardware queue takes at once";
    [gb = size(GIB, MIB, MAX_SIZE), "1788", "size of the volume in GiB"]
    size: u64 = size(1, MIB, MAX_SIZE), "", "size of the volume in bytes, instead of gb";
    bs: u32 = size(1, 512, 4096), "512", "logical block size in bytes, a power of two";
    max_sectors: u32 = count("sectors", 8, u16::MAX as u64), "2560", "largest read or write";
    iops: u64 = count("operations a second", 1, SECOND), "275000", "operations that the limiter lets pass";
    mbps: u64 = count("MB/s", 1, 1_000_000), "2000",
        "what the limiter lets pass of the data of reads and writes together";
    write_unit: u64 = size(1, 512, GIB), "4096",
        "how much of a write counts as one operation, in bytes; a read counts as one whatever its size";
    burst: u64 = time(86_400 * SECOND), "4ms",
        "how long the limiter saves up what is not used: the time in which that comes in at the ceilings";
    hold: u64 = time(SECOND), "3100us",
        "how long the limiter holds an operation over a ceiling, once or several times; with 0 each goes in its turn";
    latency: u64 = time(SECOND), "45us", "what the fastest operation takes beside the limiter";
    spread: u64 = time(SECOND), "36us",
        "half of the operations take up to this much longer, a quarter up to twice this, an eighth up to three \
         times, and so on";
    memory_backed: bool = Accepts::Switch, "0", "keep the data, in memory that is taken as it is written";
    seed: u64 = count("", 0, u64::MAX), "0", "which operations take longer";
}}
