//! The result of a run of jobs.

use std::ops::AddAssign;

use blkmq::QueueCounters;

use super::cpu::Usage;
use super::{Latency, Waits};
use crate::job::Direction;

/// The result of a run of jobs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// One outcome for each thread, in the order of the jobs and, within a job, of its threads.
    pub jobs: Vec<JobOutcome>,
    /// What the block layer did with the operations.
    pub layer: LayerOutcome,
    /// Nanoseconds from the first thread's start to the last thread's end, including the time that was not counted.
    pub elapsed_ns: u64,
    /// Whether the stop flag ended the run.
    pub stopped: bool,
}

/// What one thread of a job did. None of these numbers includes anything before the end of `ramp_time`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobOutcome {
    /// The job's name.
    pub name: String,
    /// The job's index in the list that was run.
    pub job: usize,
    /// The number of the thread among the job's threads, counted from 0.
    pub thread: u32,
    /// The job's group.
    pub group: u32,
    /// Nanoseconds during which this thread was measured.
    pub runtime_ns: u64,
    /// Operations that completed within the job's runtime; all of them if the job ended earlier. The number is
    /// for rates over a short time: an operation that is outstanding at the end of the runtime needs time beyond it, so
    /// it must not count.
    pub ios_in_time: u64,
    /// Reads, writes and trims, in fio's order.
    pub directions: [DirectionOutcome; 3],
    /// Flushes that the job asked for.
    pub sync: DirectionOutcome,
    /// How many operations were outstanding when each operation was submitted, including those submitted together with
    /// it.
    pub depth_level: Spread,
    /// How many operations each submission passed on.
    pub depth_submit: Spread,
    /// How many completions each poll found, without the polls that found none.
    pub depth_complete: Spread,
    /// What the thread used of the machine. All zero on a virtual clock, where all jobs share a thread.
    pub usage: Usage,
    /// CPU time that the thread spent on polls that found no completion, in nanoseconds.
    pub empty_polls_ns: u64,
    /// Waits that the thread ended: its own waits, and the waits of other threads' requests that it inserted. Empty
    /// unless waits are measured.
    pub waits: Waits,
    /// Blocks that did not hold what had been written.
    pub verify_errors: u64,
    /// Why the job ended early. `None` if it did not.
    pub error: Option<String>,
}

/// What was done in one direction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DirectionOutcome {
    /// Nanoseconds during which the thread did operations of this direction: its runtime, without the time for reading
    /// back what was written. 0 if it did none. A job that only writes spends on reads only the time for reading back.
    pub runtime_ns: u64,
    /// Operations that completed, without those that failed.
    pub ios: u64,
    /// Bytes of data of these operations.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The time from submission to completion. Empty if the job does not measure it. fio calls this completion latency.
    /// The completion latency is also the total latency, because nothing comes between the start of an operation and
    /// its submission.
    pub latency: Latency,
    /// The time from when the device got the operation to its completion: the part of [`latency`](Self::latency) that
    /// is not spent in the block layer. A merged operation has the times of its request.
    pub device: Latency,
    /// How many operations, and how much data, completed in each slice of time. The last slice may be shorter than the
    /// others.
    pub samples: Vec<Sample>,
}

/// What completed in a slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// The slice's end, in nanoseconds since the measurement began.
    pub end_ns: u64,
    /// Its length in nanoseconds.
    pub ns: u64,
    /// Operations.
    pub ios: u64,
    /// Bytes of data of these operations.
    pub bytes: u64,
}

/// How often each small number was seen. There are separate counts for each power of two up to 64, for the numbers
/// between two powers, and for larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread([u64; 14]);

/// What the block layer did with the operations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LayerOutcome {
    /// Requests that the driver got, each counted once.
    pub requests: u64,
    /// Operations that joined another operation's request.
    pub merges: u64,
    /// Operations that jobs completed, and their bytes. The more operations a request consists of, the larger it is.
    pub operations: u64,
    /// Bytes of data of these operations.
    pub bytes: u64,
    /// CPU time of the jobs' threads, in nanoseconds.
    pub cpu_ns: u64,
    /// How much of this CPU time was spent on waiting: for the scheduler's lock, and on polls that found no completion
    /// while operations were outstanding.
    pub wait_ns: u64,
    /// What the queue counted during the run.
    pub stats: QueueCounters,
}

impl Outcome {
    /// The waits of all the jobs' threads.
    #[must_use]
    pub fn waits(&self) -> Waits {
        let mut all = Waits::default();
        self.jobs.iter().for_each(|job| all.add(&job.waits));
        all
    }

    /// The first thread's error, with its job's name.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let failed = self.jobs.iter().find_map(|job| Some((job, job.error.as_ref()?)))?;
        Some(format!("job {}: {}", failed.0.name, failed.1))
    }

    /// Operations that completed, flushes included.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.jobs.iter().map(JobOutcome::ios).sum()
    }
}

impl JobOutcome {
    /// What was done in a direction.
    #[must_use]
    pub fn direction(&self, direction: Direction) -> &DirectionOutcome {
        &self.directions[direction as usize]
    }

    /// Operations that completed, flushes included.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.directions.iter().chain([&self.sync]).map(|direction| direction.ios).sum()
    }

    /// Adds another thread's numbers to this one's, for a group that is reported as one. Counts and CPU times are
    /// summed, the longer runtime is kept, and slices of time are added one by one.
    pub fn add(&mut self, other: &Self) {
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.ios_in_time += other.ios_in_time;
        for (sum, direction) in self.directions.iter_mut().zip(&other.directions) {
            sum.add(direction);
        }
        self.sync.add(&other.sync);
        self.depth_level.add(other.depth_level);
        self.depth_submit.add(other.depth_submit);
        self.depth_complete.add(other.depth_complete);
        self.usage += other.usage;
        self.empty_polls_ns += other.empty_polls_ns;
        self.waits.add(&other.waits);
        self.verify_errors += other.verify_errors;
        if self.error.is_none() {
            self.error.clone_from(&other.error);
        }
    }
}

impl DirectionOutcome {
    /// Operations per second over `runtime_ns`, the runtime of the thread or the group.
    #[must_use]
    pub fn iops(&self, runtime_ns: u64) -> f64 {
        per_second(self.ios, runtime_ns)
    }

    /// Bytes per second over `runtime_ns`, the runtime of the thread or the group.
    #[must_use]
    pub fn bandwidth(&self, runtime_ns: u64) -> f64 {
        per_second(self.bytes, runtime_ns)
    }

    fn add(&mut self, other: &Self) {
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.latency.add(&other.latency);
        self.device.add(&other.device);
        for (at, sample) in other.samples.iter().enumerate() {
            match self.samples.get_mut(at) {
                Some(sum) => {
                    sum.ios += sample.ios;
                    sum.bytes += sample.bytes;
                    sum.end_ns = sum.end_ns.max(sample.end_ns);
                    sum.ns = sum.ns.max(sample.ns);
                }
                None => self.samples.push(*sample),
            }
        }
    }
}

impl Sample {
    /// Operations per second in this slice.
    #[must_use]
    pub fn iops(&self) -> f64 {
        per_second(self.ios, self.ns)
    }

    /// Bytes per second in this slice.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        per_second(self.bytes, self.ns)
    }
}

fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

impl Spread {
    /// Counts a number, which is at least 1, `times` times.
    pub(super) fn note(&mut self, number: u32, times: u64) {
        let log = number.checked_ilog2().unwrap_or(0);
        self.0[(2 * log + u32::from(!number.is_power_of_two())).min(13) as usize] += times;
    }

    fn add(&mut self, other: Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }

    /// How often 1, 2 to 3, 4 to 7, and so on were seen. The last count is of 64 and more. fio reports a depth in this
    /// form.
    #[must_use]
    pub fn levels(&self) -> [u64; 7] {
        std::array::from_fn(|at| self.0[2 * at] + self.0[2 * at + 1])
    }

    /// How often 0, 1 to 4, 5 to 8, 9 to 16, and so on were seen. The last count is of more than 64. fio reports the
    /// length of a batch in this form.
    #[must_use]
    pub fn batches(&self) -> [u64; 7] {
        let [one, _, two, three, four, rest @ ..] = self.0;
        let [a, b, c, d, e, f, g, h, above] = rest;
        [0, one + two + three + four, a + b, c + d, e + f, g + h, above]
    }

    /// How often a number was seen.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl LayerOutcome {
    /// CPU time of the jobs' threads for each request that the driver got, in nanoseconds; 0 without a request.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        share(self.cpu_ns, self.requests)
    }

    /// The share of the threads' CPU time that was spent on waiting. 0 on a virtual clock, where waiting takes no CPU
    /// time. If there are many waits, a sample of them is measured.
    #[must_use]
    pub fn wait_share(&self) -> f64 {
        share(self.wait_ns, self.cpu_ns).min(1.0)
    }

    /// CPU time of the jobs' threads for each request beyond what was [spent on waiting](Self::wait_ns), in
    /// nanoseconds; 0 without a request. Where nearly all of the time is spent on waiting, what a sample of the waits
    /// leaves uncertain is as large as this.
    #[must_use]
    pub fn work_ns_per_request(&self) -> f64 {
        share(self.cpu_ns.saturating_sub(self.wait_ns), self.requests)
    }

    /// The share of the operations that joined another operation's request.
    #[must_use]
    pub fn merged_share(&self) -> f64 {
        share(self.merges, self.requests + self.merges)
    }

    /// The share of the requests that bypassed the scheduler.
    #[must_use]
    pub fn bypassed_share(&self) -> f64 {
        share(self.stats.bypassed, self.requests)
    }

    /// How many requests the scheduler dispatched in one batch, on average. A request that the driver gave back is
    /// counted once, because the scheduler does not choose it again.
    #[must_use]
    pub fn batch_size_mean(&self) -> f64 {
        share(self.requests.saturating_sub(self.stats.bypassed), self.stats.dispatch_batches)
    }

    /// How many requests the scheduler dispatched in a hold of its lock, on average, the holds in which it dispatched
    /// none included.
    #[must_use]
    pub fn requests_per_hold(&self) -> f64 {
        share(self.stats.dispatched + self.stats.dispatched_fast, self.stats.holds)
    }

    /// The mean bytes of a request: the mean bytes of an operation, times the mean number of operations in a request.
    /// Completed bytes divided by issued requests would be wrong in a short run, because of its beginning and end. This
    /// is wrong for writes that are no whole number of blocks, each of which makes two requests.
    #[must_use]
    pub fn request_bytes_mean(&self) -> f64 {
        share(self.bytes, self.operations) * share(self.requests + self.merges, self.requests)
    }
}

/// One number divided by another. 0 if the other is 0.
fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

impl AddAssign for LayerOutcome {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.merges += other.merges;
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cpu_ns += other.cpu_ns;
        self.wait_ns += other.wait_ns;
        self.stats += other.stats;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_fios_buckets() {
        let mut spread = Spread::default();
        [1, 3, 4, 5, 8, 9, 64, 65].into_iter().for_each(|number| spread.note(number, 1));
        assert_eq!(spread.levels(), [1, 1, 2, 2, 0, 0, 2]);
        assert_eq!(spread.batches(), [0, 3, 2, 1, 0, 1, 1]);
        assert_eq!(spread.total(), 8);
    }
}
