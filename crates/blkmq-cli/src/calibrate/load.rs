//! The loads that a device is measured with, as jobs of fio.

use std::fmt::Write as _;
use std::time::Duration;

use blkmq_workbench::job::Job;
use blkmq_workbench::{JobFile, Mode, System, TextError};
use serde::Serialize;

use super::ground::Ground;
use blkmq_program::render::size;

/// The least length of an operation, which is where a device does the most operations.
const SMALL: u64 = 4096;
/// A length at which most devices transfer the most bytes.
const LARGE: u64 = 256 << 10;
/// The most threads: each needs a percent of the device, or half of one, for an area of its own.
const MOST_THREADS: u32 = 50;
/// An operation takes at most one of so many parts of the device, so that it fits into a thread's area.
const LEAST_PARTS: u64 = 200;
/// How many percent of a mix are reads, as in most published mixes.
const READ_PERCENT: u32 = 70;

/// In which direction a load goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Read,
    Write,
    Mix,
}

/// A load: what it does, and how much at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Load {
    pub(super) way: Way,
    /// Bytes of an operation.
    pub(super) bytes: u64,
    /// Whether operations are at random places, or one behind the other.
    pub(super) is_random: bool,
}

/// The loads that are measured: for requests a second, and for bytes a second.
pub(super) fn loads(ground: &Ground, writes: bool) -> Vec<Load> {
    let small = SMALL.max(ground.block);
    let large = LARGE.min(ground.longest).min(ground.bytes / LEAST_PARTS);
    let large = (large - large % ground.block).max(small);
    let ways = if writes { &[Way::Read, Way::Write, Way::Mix][..] } else { &[Way::Read] };
    let of = |way: &Way| [(small, true), (large, false)].map(|(bytes, is_random)| Load { way: *way, bytes, is_random });
    ways.iter().flat_map(of).collect()
}

/// Where sequences are: from an offset in bytes on, so many percent of the device, which the threads share.
#[derive(Debug, Clone, Copy)]
struct Area {
    offset: u64,
    percent: u32,
}

/// A multiple of `unit` below `bytes` that looks random, or 0 if there is no other.
fn offset(seed: u64, bytes: u64, unit: u64) -> u64 {
    // Fibonacci hashing: neighbours lie far apart.
    let hash = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
    (hash % (bytes / unit).max(1)) * unit
}

impl Load {
    /// As a job file, with so many operations outstanding in all, which that many threads share.
    fn text(&self, depth: u32, threads: u32, area: Option<Area>) -> String {
        let way = match self.way {
            Way::Read => "read",
            Way::Write => "write",
            Way::Mix => "rw",
        };
        let random = if self.is_random { "rand" } else { "" };
        let mut text = format!(
            "[load]\nioengine=io_uring\ndirect=1\nnorandommap\nthread\nbs={}\nrw={random}{way}\nnumjobs={threads}\niodepth={}\n",
            self.bytes,
            depth.div_ceil(threads)
        );
        if self.way == Way::Mix {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "rwmixread={READ_PERCENT}");
        }
        if let Some(area) = area.filter(|_| !self.is_random) {
            let percent = area.percent / threads;
            let _ = writeln!(text, "offset={}\nsize={percent}%\noffset_increment={percent}%", area.offset);
        }
        text
    }

    /// The jobs of this load, on so many hardware queues. `seed` decides where its places are. `bytes` is the length of
    /// a device that is no model: there a sequence begins elsewhere in the first half for each seed, so that no cache
    /// has what is read.
    pub(super) fn jobs(
        &self,
        depth: u32,
        (queues, bytes): (u16, Option<u64>),
        ramp: Duration,
        seed: u64,
    ) -> Result<Vec<Job>, TextError> {
        let threads = u32::from(queues).min(depth).clamp(1, MOST_THREADS);
        let area = match bytes {
            Some(bytes) => Some(Area { offset: offset(seed, bytes / 2, self.bytes), percent: 50 }),
            None => (threads > 1).then_some(Area { offset: 0, percent: 100 }),
        };
        let mut jobs = parse(&self.text(depth, threads, area))?;
        for job in &mut jobs {
            (job.ramp_time, job.seed) = (ramp, Some(seed));
        }
        Ok(jobs)
    }

    /// What the load is, in words.
    pub(super) fn name(&self) -> String {
        let what = match self.way {
            Way::Read => "reads of",
            Way::Write => "writes of",
            Way::Mix => "70 % reads, 30 % writes of",
        };
        format!("{what} {}{}", size(self.bytes), if self.is_random { "" } else { ", in sequence" })
    }
}

/// The jobs of a file that this program wrote.
pub(super) fn parse(text: &str) -> Result<Vec<Job>, TextError> {
    Ok(JobFile::parse("calibrate", text, &[], Mode::Strict, &System)?.jobs)
}

#[cfg(test)]
mod tests {
    use blkmq_workbench::job::{BlockSize, Direction, Operations};

    use super::*;

    /// Red if a load keeps another number outstanding than it says, or does something else.
    #[test]
    fn a_load_keeps_as_many_outstanding_as_it_says() {
        let load = Load { way: Way::Write, bytes: 8192, is_random: true };
        for (depth, queues, expected) in [(1, 4, (1, 1)), (3, 4, (3, 1)), (32, 4, (4, 8)), (27, 1, (1, 27))] {
            let jobs = load.jobs(depth, (queues, None), Duration::ZERO, 1).expect("it is a good file");
            let [job] = &jobs[..] else { panic!("one job") };
            assert_eq!((job.numjobs, job.iodepth), expected);
            assert_eq!(job.operations, Operations::Only(Direction::Write));
            assert_eq!(job.bs[Direction::Write], BlockSize::Fixed(8192));
        }
        let mix = Load { way: Way::Mix, ..load }.jobs(1, (1, None), Duration::ZERO, 1).expect("it is a good file");
        assert_eq!(mix[0].operations, Operations::ReadWrite { read_percent: READ_PERCENT });
    }

    /// Red if two runs on a real device read the same sequence, which a cache may have, or reach behind its end.
    #[test]
    fn sequences_begin_elsewhere_in_each_run() {
        let load = Load { way: Way::Read, bytes: LARGE, is_random: false };
        let (bytes, queues) = (1 << 30, 4);
        let offsets: Vec<u64> = (1..40).map(|seed| offset(seed, bytes / 2, load.bytes)).collect();
        let distinct: std::collections::BTreeSet<_> = offsets.iter().collect();
        assert_eq!(distinct.len(), offsets.len());
        assert!(offsets.iter().all(|offset| offset + bytes / 2 <= bytes && offset.is_multiple_of(load.bytes)));
        assert_eq!(offset(1, 4096, load.bytes), 0, "there is one place");
        let begin = |seed| {
            let jobs = load.jobs(8, (queues, Some(bytes)), Duration::ZERO, seed).expect("it is a good file");
            format!("{:?}", jobs[0].offset)
        };
        assert_ne!(begin(1), begin(2));
    }
}
