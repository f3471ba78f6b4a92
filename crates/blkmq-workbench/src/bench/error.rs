//! Why jobs cannot run.

use std::error::Error;
use std::fmt;

use blkmq::QueueError;
use blkmq::driver::spec::SpecError;

/// Why jobs cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BenchError {
    /// The spec describes no device.
    Device(SpecError),
    /// There can be no such queue in front of the device.
    Queue(QueueError),
    /// A setting is not accepted.
    Setting {
        /// The knob.
        name: String,
        /// What it was to be set to.
        value: String,
        /// Why not.
        error: Box<QueueError>,
    },
    /// A job cannot run on this device.
    Job {
        /// The job's name.
        name: String,
        /// Why not.
        error: JobError,
    },
    /// There is no job.
    NoJob,
    /// The queue cannot serve this many threads.
    Threads(QueueError),
    /// On a virtual clock only time would end the jobs, and the device takes no time.
    Timeless,
    /// A virtual clock does not show the time that real storage takes.
    RealTime,
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Queue(error) | Self::Threads(error) => error.fmt(f),
            Self::Setting { name, value, error } => write!(f, "{name}={value}: {error}"),
            Self::Job { name, error } => write!(f, "job {name}: {error}"),
            Self::NoJob => f.write_str("there is no job to run"),
            Self::Timeless => f.write_str(
                "virtual time does not pass on a device that takes none: use one that does, as null,irqmode=2, or bound \
                 the jobs by size, io_size or number_ios instead of time",
            ),
            Self::RealTime => f.write_str(
                "virtual time does not pass while real storage works: use the machine's time, or a model of a device, as \
                 ssd or hdd",
            ),
        }
    }
}

impl Error for BenchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            Self::Queue(error) | Self::Threads(error) => Some(error),
            Self::Setting { error, .. } => Some(&**error),
            Self::Job { error, .. } => Some(error),
            Self::NoJob | Self::Timeless | Self::RealTime => None,
        }
    }
}

/// Why a job cannot run on a device. Sizes and places are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// The `iodepth` takes that many requests, more than one thread can have.
    Depth(u64),
    /// The buffers of all jobs do not fit into the machine's memory. The job is the one with the largest ones.
    Memory {
        /// What they take.
        all: u128,
        /// What the machine has.
        memory: u128,
    },
    /// A length of 0 bytes.
    Empty {
        /// The option.
        option: &'static str,
    },
    /// A length or a place is no multiple of the device's logical block size, and the job trims, or goes past the page
    /// cache by `direct=1`.
    Block {
        /// The option.
        option: &'static str,
        /// Its value.
        bytes: u64,
        /// The logical block size.
        block: u64,
        /// The job trims.
        is_trim: bool,
    },
    /// Verified blocks are shorter than the header that `verify` writes.
    Header {
        /// Their length.
        bytes: u64,
        /// The header's length.
        least: u64,
    },
    /// A thread's area reaches behind the end of the device.
    BehindEnd {
        /// The thread, counted from 1.
        thread: u32,
        /// The threads of the job.
        nr_threads: u32,
        /// Where its area would end.
        end: u128,
        /// Where the device ends.
        capacity: u64,
    },
    /// The area is smaller than the job's largest operation.
    Area {
        /// The area's length.
        len: u64,
        /// The largest operation.
        largest: u64,
    },
    /// `verify` needs a device that keeps what is written.
    Forgets,
    /// The device cannot trim.
    NoTrim,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth(slots) => {
                write!(f, "its iodepth takes {slots} requests of this device, and one thread can have 32768")
            }
            Self::Memory { all, memory } => write!(
                f,
                "the buffers of all jobs take {all} bytes, and this machine has {memory}; see bs, iodepth and numjobs"
            ),
            Self::Empty { option } => write!(f, "{option}=0, and an operation has at least one byte"),
            Self::Block { option, bytes, block, is_trim } => {
                let whole = bytes.next_multiple_of(*block);
                write!(f, "{option}={bytes} is no multiple of the device's logical block size, which is {block}, ")?;
                if *is_trim {
                    write!(f, "and a trim is of whole blocks; write {option}={whole}")
                } else {
                    write!(
                        f,
                        "and the kernel refuses such operations with direct=1; write {option}={whole}, or direct=0"
                    )
                }
            }
            Self::Header { bytes, least } => {
                write!(
                    f,
                    "verify needs blocks of at least {least} bytes for its header, and these have {bytes}; see bs"
                )
            }
            Self::BehindEnd { thread, nr_threads, end, capacity } => {
                match nr_threads {
                    1 => f.write_str("it")?,
                    _ => write!(f, "thread {thread} of {nr_threads}")?,
                }
                write!(
                    f,
                    " would reach to byte {end} of the device, which ends at byte {capacity}; see size, offset and \
                     offset_increment"
                )
            }
            Self::Area { len, largest } => {
                write!(f, "its area of {len} bytes is smaller than its largest operation of {largest}")
            }
            Self::Forgets => {
                f.write_str("verify needs a device that keeps what is written, such as ram, or null,memory_backed=1")
            }
            Self::NoTrim => {
                f.write_str("the device cannot trim; one that can is null,memory_backed=1,discard=1, or ram")
            }
        }
    }
}

impl Error for JobError {}
