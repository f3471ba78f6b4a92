//! The parameters of the hard disk, and the profile that they have by default.

use std::fmt;

use crate::driver::Topology;
use crate::driver::parameter::units::{GIB, KIB, MIB, SECOND, count, size};
use crate::driver::parameter::{Accepts, Parameter, SpecError, Values, words};
use crate::driver::store::{MAX_SIZE, check_geometry};
use crate::request::limits::{Limits, MAX_DEPTH, SECTOR_SIZE};

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
#[derive(Debug, Clone)]
pub struct Config {
    pub(super) hw_queue_depth: u16,
    pub(super) bs: u32,
    /// Bytes.
    pub(super) size: u64,
    pub(super) max_sectors: u32,
    pub(super) rpm: u32,
    /// Bytes per second that pass under the heads.
    pub(super) media_rate: u64,
    /// Bytes per second between the cache and the computer.
    pub(super) link_rate: u64,
    /// Nanoseconds.
    pub(super) seek_track: u64,
    pub(super) seek_average: u64,
    pub(super) seek_full: u64,
    pub(super) write_cache: bool,
    /// Bytes.
    pub(super) cache_size: u64,
    pub(super) cache_segments: usize,
    /// Bytes.
    pub(super) read_ahead: u64,
    pub(super) fua: bool,
    pub(super) memory_backed: bool,
    pub(super) seed: u64,
}

/// The parameters of the hard disk.
///
#[doc = include_str!("../../../docs/hdd.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new("hw_queue_depth", count("", 1, MAX_DEPTH as u64), "32", "requests that the disk takes at once"),
    Parameter::new("gb", size(GIB, MIB, MAX_SIZE), "931", "size of the disk in GiB"),
    Parameter::new("size", size(1, MIB, MAX_SIZE), "", "size of the disk in bytes, instead of gb"),
    Parameter::new("bs", size(1, 512, 4096), "512", "logical block size in bytes, a power of two"),
    Parameter::new("max_sectors", count("sectors", 8, u16::MAX as u64), "2560", "largest request"),
    Parameter::new("rpm", count("turns a minute", 60, 100_000), "7200", "how fast the platters turn"),
    Parameter::new("mbps", count("MB/s", 1, 10_000), "133", "what passes under the heads while they transfer"),
    Parameter::new("link_mbps", count("MB/s", 1, 100_000), "550", "what the interface transfers from and to the cache"),
    Parameter::new("seek_track", Accepts::Time { max: SECOND }, "800us", "seek to the next track, settling included"),
    Parameter::new("seek_average", Accepts::Time { max: SECOND }, "8500us", "seek over a third of the tracks"),
    Parameter::new("seek_full", Accepts::Time { max: SECOND }, "16ms", "seek over all tracks"),
    Parameter::new("write_cache", Accepts::Switch, "1", "complete writes when they are in the disk's volatile cache"),
    Parameter::new("cache_size", size(MIB, MIB, 64 * GIB), "64", "size of the write cache in MiB"),
    Parameter::new("cache_segments", count("writes", 16, 1 << 16), "768", "writes that the write cache holds at most"),
    Parameter::new(
        "read_ahead",
        size(KIB, 0, GIB),
        "1M",
        "what is read on behind a read while the heads are free, in KiB",
    ),
    Parameter::new("fua", Accepts::Switch, "1", "support FUA, where there is a write cache"),
    Parameter::new("memory_backed", Accepts::Switch, "0", "keep the data, in memory that is taken as it is written"),
    Parameter::new("seed", count("", 0, u64::MAX), "0", "at which angles the bands of tracks begin"),
];

impl std::str::FromStr for Config {
    type Err = SpecError;

    /// Reads `name=value,name=value`; an empty text leaves everything at its default.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::from_values(&Values::parse(PARAMETERS, words(text))?)
    }
}

impl Config {
    pub(in crate::driver) fn from_values(values: &Values) -> Result<Self, SpecError> {
        let config = Self {
            hw_queue_depth: values.number("hw_queue_depth"),
            bs: values.number("bs"),
            size: values.size()?,
            max_sectors: values.number("max_sectors"),
            rpm: values.number("rpm"),
            media_rate: values.number::<u64>("mbps") * 1_000_000,
            link_rate: values.number::<u64>("link_mbps") * 1_000_000,
            seek_track: values.number("seek_track"),
            seek_average: values.number("seek_average"),
            seek_full: values.number("seek_full"),
            write_cache: values.is_on("write_cache"),
            cache_size: values.number("cache_size"),
            cache_segments: values.number("cache_segments"),
            read_ahead: values.number("read_ahead"),
            fua: values.is_on("fua"),
            memory_backed: values.is_on("memory_backed"),
            seed: values.number("seed"),
        };
        config.check()?;
        Ok(config)
    }

    /// Checks what the parameters demand of each other.
    fn check(&self) -> Result<(), SpecError> {
        self.topology().check().map_err(|error| SpecError::new(error.to_string()))?;
        check_geometry(self.bs, self.size)?;
        if !(self.seek_track <= self.seek_average && self.seek_average <= self.seek_full) {
            return Err(SpecError::new("a longer seek takes longer: seek_track <= seek_average <= seek_full"));
        }
        if u64::from(self.max_sectors) * SECTOR_SIZE as u64 > self.cache_size {
            return Err(SpecError::new(format!(
                "a request of max_sectors={} does not fit into cache_size",
                self.max_sectors
            )));
        }
        Ok(())
    }

    pub(super) fn topology(&self) -> Topology {
        Topology { default_queues: 1, read_queues: 0, poll_queues: 0, depth: self.hw_queue_depth }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            capacity_sectors: self.size / SECTOR_SIZE as u64,
            logical_block_size: self.bs,
            physical_block_size: self.bs.max(4096),
            max_sectors: self.max_sectors,
            write_cache: self.write_cache,
            fua: self.fua && self.write_cache,
            rotational: true,
            ..Limits::default()
        }
    }
}

impl fmt::Display for Config {
    /// The numbers as in a spec.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hw_queue_depth={} size={} bs={} rpm={} mbps={} link_mbps={} seek_track={} seek_average={} seek_full={} \
             write_cache={} cache_size={}M cache_segments={} read_ahead={} memory_backed={} seed={}",
            self.hw_queue_depth,
            self.size,
            self.bs,
            self.rpm,
            self.media_rate / 1_000_000,
            self.link_rate / 1_000_000,
            self.seek_track,
            self.seek_average,
            self.seek_full,
            u8::from(self.write_cache),
            self.cache_size / MIB,
            self.cache_segments,
            self.read_ahead,
            u8::from(self.memory_backed),
            self.seed,
        )
    }
}
