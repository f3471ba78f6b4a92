//! The parameters of the volume, and the profile that it has by default.

use std::fmt;

use crate::driver::Topology;
use crate::driver::parameter::units::{GIB, MIB, SECOND, count, size};
use crate::driver::parameter::{Accepts, Parameter, SpecError, Values, words};
use crate::driver::store::{MAX_DATALESS_SECTORS, MAX_SIZE, check_geometry};
use crate::request::limits::{Limits, MAX_DEPTH, MAX_HW_QUEUES, SECTOR_SIZE};

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
#[derive(Debug, Clone)]
pub struct Config {
    submit_queues: u16,
    hw_queue_depth: u16,
    bs: u32,
    /// Bytes.
    size: u64,
    max_sectors: u32,
    /// Operations a second.
    pub(super) iops: u64,
    /// Bytes a second.
    pub(super) byte_rate: u64,
    /// Bytes.
    pub(super) write_unit: u64,
    /// Nanoseconds.
    pub(super) burst: u64,
    pub(super) hold: u64,
    pub(super) latency: u64,
    pub(super) spread: u64,
    pub(super) memory_backed: bool,
    pub(super) seed: u64,
}

const fn time(max: u64) -> Accepts {
    Accepts::Time { max }
}

/// The parameters of the volume.
///
#[doc = include_str!("../../../docs/cloud.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new("submit_queues", count("", 1, MAX_HW_QUEUES as u64), "1", "hardware queues"),
    Parameter::new(
        "hw_queue_depth",
        count("", 1, MAX_DEPTH as u64),
        "1023",
        "requests that a hardware queue takes at once",
    ),
    Parameter::new("gb", size(GIB, MIB, MAX_SIZE), "1788", "size of the volume in GiB"),
    Parameter::new("size", size(1, MIB, MAX_SIZE), "", "size of the volume in bytes, instead of gb"),
    Parameter::new("bs", size(1, 512, 4096), "512", "logical block size in bytes, a power of two"),
    Parameter::new("max_sectors", count("sectors", 8, u16::MAX as u64), "2560", "largest read or write"),
    Parameter::new("iops", count("operations a second", 1, SECOND), "275000", "operations that the limiter lets pass"),
    Parameter::new(
        "mbps",
        count("MB/s", 1, 1_000_000),
        "2000",
        "what the limiter lets pass of the data of reads and writes together",
    ),
    Parameter::new(
        "write_unit",
        size(1, 512, GIB),
        "4096",
        "how much of a write counts as one operation, in bytes; a read counts as one whatever its size",
    ),
    Parameter::new(
        "burst",
        time(86_400 * SECOND),
        "4ms",
        "how long the limiter saves up what is not used: the time in which that comes in at the ceilings",
    ),
    Parameter::new(
        "hold",
        time(SECOND),
        "3100us",
        "how long the limiter holds an operation over a ceiling, once or several times; with 0 each goes in its turn",
    ),
    Parameter::new("latency", time(SECOND), "45us", "what the fastest operation takes beside the limiter"),
    Parameter::new(
        "spread",
        time(SECOND),
        "36us",
        "half of the operations take up to this much longer, a quarter up to twice this, an eighth up to three times, \
         and so on",
    ),
    Parameter::new("memory_backed", Accepts::Switch, "0", "keep the data, in memory that is taken as it is written"),
    Parameter::new("seed", count("", 0, u64::MAX), "0", "which operations take longer"),
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
            submit_queues: values.number("submit_queues"),
            hw_queue_depth: values.number("hw_queue_depth"),
            bs: values.number("bs"),
            size: values.size()?,
            max_sectors: values.number("max_sectors"),
            iops: values.number("iops"),
            byte_rate: values.number::<u64>("mbps") * 1_000_000,
            write_unit: values.number("write_unit"),
            burst: values.number("burst"),
            hold: values.number("hold"),
            latency: values.number("latency"),
            spread: values.number("spread"),
            memory_backed: values.is_on("memory_backed"),
            seed: values.number("seed"),
        };
        config.topology().check().map_err(|error| SpecError::new(error.to_string()))?;
        check_geometry(config.bs, config.size)?;
        Ok(config)
    }

    pub(super) fn topology(&self) -> Topology {
        let depth = self.hw_queue_depth;
        Topology { default_queues: self.submit_queues, read_queues: 0, poll_queues: 0, depth }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            capacity_sectors: self.size / SECTOR_SIZE as u64,
            logical_block_size: self.bs,
            physical_block_size: self.bs,
            max_sectors: self.max_sectors,
            max_discard_sectors: MAX_DATALESS_SECTORS,
            max_discard_segments: 256,
            max_write_zeroes_sectors: MAX_DATALESS_SECTORS,
            ..Limits::default()
        }
    }
}

impl fmt::Display for Config {
    /// The numbers as in a spec.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "submit_queues={} hw_queue_depth={} size={} bs={} iops={} mbps={} write_unit={} burst={} hold={} \
             latency={} spread={} memory_backed={} seed={}",
            self.submit_queues,
            self.hw_queue_depth,
            self.size,
            self.bs,
            self.iops,
            self.byte_rate / 1_000_000,
            self.write_unit,
            self.burst,
            self.hold,
            self.latency,
            self.spread,
            u8::from(self.memory_backed),
            self.seed,
        )
    }
}
