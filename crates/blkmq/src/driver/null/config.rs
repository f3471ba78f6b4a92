//! The parameters of the null device.

use std::fmt;

use crate::driver::Topology;
use crate::driver::parameter::units::{GIB, MIB};
use crate::driver::parameter::{Accepts, Fault, Parameter, SpecError, Value, Values, words};
use crate::driver::store::{MAX_DATALESS_SECTORS, MAX_SIZE, check_geometry};
use crate::request::limits::{Limits, MAX_DEPTH, MAX_HW_QUEUES, SECTOR_SIZE};

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

/// What a null device is like.
///
/// Read it from a spec, which has a default for everything: `"memory_backed=1,cache_size=16".parse::<Config>()`.
#[derive(Debug, Clone)]
pub struct Config {
    pub(super) submit_queues: u16,
    pub(super) read_queues: u16,
    pub(super) poll_queues: u16,
    pub(super) hw_queue_depth: u16,
    pub(super) irqmode: IrqMode,
    pub(super) completion_nsec: u64,
    pub(super) bs: u32,
    /// Bytes.
    pub(super) size: u64,
    pub(super) max_sectors: u32,
    pub(super) memory_backed: bool,
    pub(super) discard: bool,
    /// Bytes.
    pub(super) cache_size: u64,
    pub(super) fua: bool,
    pub(super) rotational: bool,
    pub(super) timeout: Option<Fault>,
    pub(super) requeue: Option<Fault>,
    pub(super) badblocks: Option<(u64, u64)>,
    pub(super) seed: u64,
}

const fn count(max: u64) -> Accepts {
    Accepts::Count { unit: "", min: 0, max }
}

const QUEUES: u64 = MAX_HW_QUEUES as u64;

/// The parameters of the null device.
///
#[doc = include_str!("../../../docs/null.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "submit_queues",
        Accepts::Count { unit: "", min: 1, max: QUEUES },
        "1",
        "hardware queues; more than there are CPUs is fine",
    ),
    Parameter::new("read_queues", count(QUEUES), "0", "hardware queues for reads alone (not in null_blk)"),
    Parameter::new("poll_queues", count(QUEUES), "1", "hardware queues for polled operations"),
    Parameter::new(
        "hw_queue_depth",
        Accepts::Count { unit: "", min: 1, max: MAX_DEPTH as u64 },
        "64",
        "requests that a hardware queue takes at once",
    ),
    Parameter::new(
        "irqmode",
        count(2),
        "1",
        "when requests complete: 0 as they are issued, 1 at the next poll, 2 completion_nsec after they were issued",
    ),
    Parameter::new(
        "completion_nsec",
        Accepts::Time { max: 1 << 62 },
        "10000",
        "how long a request takes with irqmode=2",
    ),
    Parameter::new(
        "bs",
        Accepts::Size { unit: 1, min: 512, max: 4096 },
        "512",
        "logical block size in bytes, a power of two",
    ),
    Parameter::new("gb", Accepts::Size { unit: GIB, min: 512, max: MAX_SIZE }, "250", "size of the device in GiB"),
    Parameter::new(
        "size",
        Accepts::Size { unit: 1, min: 512, max: MAX_SIZE },
        "",
        "size of the device in bytes, instead of gb (not so in null_blk)",
    ),
    Parameter::new(
        "max_sectors",
        Accepts::Count { unit: "sectors", min: 0, max: u32::MAX as u64 },
        "0",
        "largest request in sectors of 512 bytes; 0 for the limit that is usual",
    ),
    Parameter::new("memory_backed", Accepts::Switch, "0", "keep the data, in memory that is taken as it is written"),
    Parameter::new("discard", Accepts::Switch, "0", "support discard; needs memory_backed=1"),
    Parameter::new(
        "cache_size",
        Accepts::Size { unit: MIB, min: 0, max: MAX_SIZE },
        "0",
        "size of the volatile write cache in MiB; needs memory_backed=1; 0 for none",
    ),
    Parameter::new("fua", Accepts::Switch, "1", "support FUA, where there is a volatile cache"),
    Parameter::new("rotational", Accepts::Switch, "0", "call the device rotational"),
    Parameter::new(
        "timeout",
        Accepts::Fault,
        "",
        "swallow requests: interval (only every so-many-th), probability in percent, space (as many pass first), times \
         (at most; -1 for no bound)",
    ),
    Parameter::new(
        "requeue",
        Accepts::Fault,
        "",
        "refuse requests and give them back, in turn; the four numbers are those of timeout",
    ),
    Parameter::new(
        "badblocks",
        Accepts::Sectors,
        "",
        "fail every request that touches these sectors with a medium error, the last one included",
    ),
    Parameter::new("seed", count(u64::MAX), "0", "where the chances of timeout and requeue begin (not in null_blk)"),
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
        let fault = |name| match values.get(name) {
            Some(Value::Fault(fault)) => Some(fault),
            _ => None,
        };
        let config = Self {
            submit_queues: values.number("submit_queues"),
            read_queues: values.number("read_queues"),
            poll_queues: values.number("poll_queues"),
            hw_queue_depth: values.number("hw_queue_depth"),
            irqmode: match values.number("irqmode") {
                0u8 => IrqMode::Inline,
                1 => IrqMode::Softirq,
                _ => IrqMode::Timer,
            },
            completion_nsec: values.number("completion_nsec"),
            bs: values.number("bs"),
            size: values.size()?,
            max_sectors: values.number("max_sectors"),
            memory_backed: values.is_on("memory_backed"),
            discard: values.is_on("discard"),
            cache_size: values.number("cache_size"),
            fua: values.is_on("fua"),
            rotational: values.is_on("rotational"),
            timeout: fault("timeout"),
            requeue: fault("requeue"),
            badblocks: match values.get("badblocks") {
                Some(Value::Sectors(first, last)) => Some((first, last)),
                _ => None,
            },
            seed: values.number("seed"),
        };
        config.check()?;
        Ok(config)
    }

    /// Checks what the parameters demand of each other.
    fn check(&self) -> Result<(), SpecError> {
        self.topology().check().map_err(|error| SpecError::new(error.to_string()))?;
        check_geometry(self.bs, self.size)?;
        let block = self.bs / SECTOR_SIZE as u32;
        if self.max_sectors != 0 && self.max_sectors < block {
            return Err(SpecError::new(format!(
                "max_sectors={} is less than a block of {block} sectors",
                self.max_sectors
            )));
        }
        if self.discard && !self.memory_backed {
            return Err(SpecError::new("discard=1 needs memory_backed=1"));
        }
        if self.cache_size > 0 && !self.memory_backed {
            return Err(SpecError::new("cache_size needs memory_backed=1"));
        }
        Ok(())
    }

    pub(super) fn topology(&self) -> Topology {
        Topology {
            default_queues: self.submit_queues,
            read_queues: self.read_queues,
            poll_queues: self.poll_queues,
            depth: self.hw_queue_depth,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let usual = Limits::default();
        let if_on = |on: bool, limit: u32| if on { limit } else { 0 };
        Limits {
            capacity_sectors: self.size / SECTOR_SIZE as u64,
            logical_block_size: self.bs,
            physical_block_size: self.bs,
            max_sectors: if self.max_sectors == 0 { usual.max_sectors } else { self.max_sectors },
            max_discard_sectors: if_on(self.discard, MAX_DATALESS_SECTORS),
            max_write_zeroes_sectors: if_on(self.memory_backed, MAX_DATALESS_SECTORS),
            write_cache: self.cache_size > 0,
            fua: self.fua && self.cache_size > 0,
            rotational: self.rotational,
            ..usual
        }
    }
}

impl fmt::Display for Config {
    /// The numbers as in a spec, those without effect left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "submit_queues={} read_queues={} poll_queues={} hw_queue_depth={} irqmode={} completion_nsec={} bs={} \
             size={} memory_backed={} cache_size={}M fua={} seed={}",
            self.submit_queues,
            self.read_queues,
            self.poll_queues,
            self.hw_queue_depth,
            self.irqmode as u8,
            self.completion_nsec,
            self.bs,
            self.size,
            u8::from(self.memory_backed),
            self.cache_size / MIB,
            u8::from(self.fua),
            self.seed,
        )?;
        if let Some(fault) = self.timeout {
            write!(f, " timeout={fault}")?;
        }
        if let Some(fault) = self.requeue {
            write!(f, " requeue={fault}")?;
        }
        if let Some((first, last)) = self.badblocks {
            write!(f, " badblocks={first}-{last}")?;
        }
        Ok(())
    }
}
