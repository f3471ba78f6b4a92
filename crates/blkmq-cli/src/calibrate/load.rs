//! The loads that a device is measured with, as jobs of fio.

use std::fmt::Write as _;
use std::time::Duration;

use blkmq_workbench::job::Job;
use blkmq_workbench::{JobFile, Mode, System, TextError};
use serde::Serialize;

use super::ground::Ground;
use blkmq_program::words::size;

/// The least length of an operation, which is where a device does the most operations.
const SMALL: u64 = 4096;
/// A length at which most devices transfer the most bytes.
const LARGE: u64 = 256 << 10;
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
    let large = LARGE.min(ground.longest).min(ground.bytes / 64);
    let large = (large - large % ground.block).max(small);
    let ways = if writes { &[Way::Read, Way::Write, Way::Mix][..] } else { &[Way::Read] };
    let of = |way: &Way| [(small, true), (large, false)].map(|(bytes, is_random)| Load { way: *way, bytes, is_random });
    ways.iter().flat_map(of).collect()
}

impl Load {
    /// As a job file, with so many operations outstanding in all, which that many threads share.
    fn text(&self, depth: u32, threads: u32, percent: u32) -> String {
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
        if !self.is_random && threads > 1 {
            let _ = writeln!(text, "size={percent}%\noffset_increment={percent}%");
        }
        text
    }

    /// The jobs of this load. `seed` decides where its places are.
    pub(super) fn jobs(&self, depth: u32, queues: u16, ramp: Duration, seed: u64) -> Result<Vec<Job>, TextError> {
        let threads = u32::from(queues).min(depth).max(1);
        let mut jobs = parse(&self.text(depth, threads, 100 / threads))?;
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
            let jobs = load.jobs(depth, queues, Duration::ZERO, 1).expect("it is a good file");
            let [job] = &jobs[..] else { panic!("one job") };
            assert_eq!((job.numjobs, job.iodepth), expected);
            assert_eq!(job.operations, Operations::Only(Direction::Write));
            assert_eq!(job.bs[Direction::Write], BlockSize::Fixed(8192));
        }
        let mix = Load { way: Way::Mix, ..load }.jobs(1, 1, Duration::ZERO, 1).expect("it is a good file");
        assert_eq!(mix[0].operations, Operations::ReadWrite { read_percent: READ_PERCENT });
    }
}
