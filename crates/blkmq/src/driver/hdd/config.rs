//! The parameters of the hard disk, and the profile that they have by default.

use crate::driver::model::Profile;
use crate::driver::parameter::units::{DEPTH, GIB, KIB, MIB, SECOND, count, size, time};
use crate::driver::parameter::{Accepts, parameters};
use crate::driver::store::MAX_SIZE;

parameters! {
/// What a hard disk is like.
///
/// Read it from a spec, which has a default for everything: `"write_cache=0,rpm=5400".parse::<Config>()`.
///
/// # The default profile
/// A SATA disk of 1 TB with 7200 rpm. Two figures are published of the disk that Linux's kernel robot used for the job
/// `merge-64x32`, 64 writers, each sequential in an area of its own, areas 2 GiB apart (linux-block,
/// 202401312320.a335db14-oliver.sang@intel.com; write cache on): in 300 s it did 350,648 writes of 80.9 KiB on average,
/// which is 0.856 ms each, or 1,019,853 of 7.5 KiB, which is 0.294 ms each. A straight line through both points has
///
/// - the slope (0.856 - 0.294) ms / (80.9 - 7.5) KiB = 7.66 us per KiB, or 134 MB/s under the heads;
/// - 0.294 ms - 7.5 KiB * 7.66 us/KiB = 0.237 ms per request that do not depend on its size.
///
/// The second figure cannot be one access per request, which takes over 5 ms: the disk gathers writes in its cache and
/// writes an area's together. So the time that does not depend on size is the access divided by the number of requests
/// that a visit to an area finds. So the cache must be short of *requests* and not of bytes: `cache_segments`. An
/// access is a seek over 2 GiB, 1.4 ms, and half a turn, 4.2 ms. The heads go round 64 areas, and an area is visited
/// when it has twice the mean, since what an area has grows evenly from nothing: 64 * 5.6 ms / (2 * 0.237 ms) = 756.
/// Measured on the model, 133 MB/s and 768 segments meet both points; `tests/it/profile_hdd.rs` checks them.
///
/// The other numbers are those of data sheets of such disks: seeks of 0.8 ms to the next track, 8.5 ms on average and
/// 16 ms over all tracks, a cache of 64 MiB (which writes up to 85 KiB do not fill before the segments run out),
/// 550 MB/s of the interface.
/// `tests/it/profile_hdd.rs` also checks that the published loads barely depend on the seed.
pub struct Config;

/// The parameters of the hard disk.
///
#[doc = include_str!("../../../docs/hdd.md")]
pub const PARAMETERS = {
    hw_queue_depth: u16 = count("", 1, DEPTH), "32", "requests that the disk takes at once";
    [gb = size(GIB, MIB, MAX_SIZE), "931", "size of the disk in GiB"]
    size: u64 = size(1, MIB, MAX_SIZE), "", "size of the disk in bytes, instead of gb";
    bs: u32 = size(1, 512, 4096), "512", "logical block size in bytes, a power of two";
    max_sectors: u32 = count("sectors", 8, u16::MAX as u64), "2560", "largest request";
    rpm: u32 = count("turns a minute", 60, 100_000), "7200", "how fast the platters turn";
    mbps: u64 = count("MB/s", 1, 10_000), "133", "what passes under the heads while they transfer";
    link_mbps: u64 = count("MB/s", 1, 100_000), "550", "what the interface transfers from and to the cache";
    seek_track: u64 = time(SECOND), "800us", "seek to the next track, settling included";
    seek_average: u64 = time(SECOND), "8500us", "seek over a third of the tracks";
    seek_full: u64 = time(SECOND), "16ms", "seek over all tracks";
    write_cache: bool = Accepts::Switch, "1", "complete writes when they are in the disk's volatile cache";
    cache_size: u64 = size(MIB, MIB, 64 * GIB), "64", "size of the write cache in MiB";
    cache_segments: usize = count("writes", 16, 1 << 16), "768", "writes that the write cache holds at most";
    read_ahead: u64 = size(KIB, 0, GIB), "1M", "what is read on behind a read while the heads are free, in KiB";
    fua: bool = Accepts::Switch, "1", "support FUA, where there is a write cache";
    memory_backed: bool = Accepts::Switch, "0", "keep the data, in memory that is taken as it is written";
    seed: u64 = count("", 0, u64::MAX), "0", "at which angles the bands of tracks begin";
}}
