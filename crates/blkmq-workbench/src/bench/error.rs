//! Why jobs cannot run.

use blkmq::QueueError;
use blkmq::driver::spec::SpecError;

/// Why jobs cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The spec describes no device.
    #[error("{0}")]
    Device(#[source] SpecError),
    /// There can be no such queue in front of the device.
    #[error("{0}")]
    Queue(#[source] QueueError),
    /// A setting is not accepted.
    #[error("{name}={value}: {error}")]
    Setting {
        /// The knob.
        name: String,
        /// What it was to be set to.
        value: String,
        /// Why not.
        #[source]
        error: Box<QueueError>,
    },
    /// A job cannot run on this device.
    #[error("job {name}: {error}")]
    Job {
        /// The job's name.
        name: String,
        /// Why not.
        #[source]
        error: JobError,
    },
    /// There is no job.
    #[error("there is no job to run")]
    NoJob,
    /// The queue cannot serve this many threads.
    #[error("{0}")]
    Threads(#[source] QueueError),
    /// On a virtual clock only time would end the jobs, and the device takes no time.
    #[error(
        "virtual time does not pass on a device that takes none: use one that does, as null,irqmode=2, or bound the \
         jobs by size, io_size or number_ios instead of time"
    )]
    Timeless,
    /// A virtual clock does not show the time that real storage takes.
    #[error(
        "virtual time does not pass while real storage works: use the machine's time, or a model of a device, as ssd or \
         hdd"
    )]
    RealTime,
}

/// Why a job cannot run on a device. Sizes and places are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The `iodepth` takes that many requests, more than one thread can have.
    #[error("its iodepth takes {0} requests of this device, and one thread can have 32768")]
    Depth(u64),
    /// The buffers of all jobs do not fit into the machine's memory. The job is the one with the largest ones.
    #[error("the buffers of all jobs take {all} bytes, and this machine has {memory}; see bs, iodepth and numjobs")]
    Memory {
        /// What they take.
        all: u128,
        /// What the machine has.
        memory: u128,
    },
    /// A length of 0 bytes.
    #[error("{option}=0, and an operation has at least one byte")]
    Empty {
        /// The option.
        option: &'static str,
    },
    /// A length or a place is no multiple of the device's logical block size, and the job trims, or goes past the page
    /// cache by `direct=1`.
    #[error(
        "{option}={bytes} is no multiple of the device's logical block size, which is {block}, and {}",
        whole_block(option, bytes.next_multiple_of(*block), *is_trim)
    )]
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
    #[error("verify needs blocks of at least {least} bytes for its header, and these have {bytes}; see bs")]
    Header {
        /// Their length.
        bytes: u64,
        /// The header's length.
        least: u64,
    },
    /// A thread's area reaches behind the end of the device.
    #[error(
        "{} would reach to byte {end} of the device, which ends at byte {capacity}; see size, offset and offset_increment",
        if *nr_threads == 1 { "it".to_owned() } else { format!("thread {thread} of {nr_threads}") }
    )]
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
    #[error("its area of {len} bytes is smaller than its largest operation of {largest}")]
    Area {
        /// The area's length.
        len: u64,
        /// The largest operation.
        largest: u64,
    },
    /// `verify` needs a device that keeps what is written.
    #[error("verify needs a device that keeps what is written, such as ram, or null,memory_backed=1")]
    Forgets,
    /// The device cannot trim.
    #[error("the device cannot trim; one that can is null,memory_backed=1,discard=1, or ram")]
    NoTrim,
}

/// Why an operation has to be of whole blocks, and the value of `option` that is.
fn whole_block(option: &str, whole: u64, is_trim: bool) -> String {
    if is_trim {
        return format!("a trim is of whole blocks; write {option}={whole}");
    }
    format!("the kernel refuses such operations with direct=1; write {option}={whole}, or direct=0")
}
