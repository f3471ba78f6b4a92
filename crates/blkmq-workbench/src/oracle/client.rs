//! A process that runs a job in a closed loop: it has so many requests outstanding, and follows each with another one.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use blkmq::Time;
use blkmq_sched::{ClientId, IoPriority};

use crate::TextError;
use crate::job::{BlockSize, Direction, Extent, Job, Operations, Order, nanoseconds};
use crate::think::Think;

/// What the guest takes for a submission, in nanoseconds, as the medians of the recordings say.
const SUBMIT_NS: u64 = 22_000;
/// What it takes besides for each KiB of it.
const KIB_NS: u64 = 150;
/// What it takes from a completion to a submission, if the process has several requests outstanding.
const REAP_NS: u64 = 22_000;
/// By how much a pause is longer than the process wants: Linux's slack for timers, and the wake-up.
const SLACK_NS: u64 = 70_000;

/// The process, between two of its submissions.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) priority: IoPriority,
    pub(super) is_write: bool,
    /// Sectors of each request.
    pub(super) nr_sectors: u32,
    /// Where its area begins, and its length, in sectors.
    area: (u64, u64),
    /// The distance from the end of a request to the start of the next one, in sectors; `None` if places are random.
    skip: Option<u64>,
    depth: u32,
    think: Option<Think>,
    /// A pause begins as soon as nothing is outstanding.
    will_pause: bool,
    /// When it ends, in nanoseconds.
    end: u64,
    /// How many requests it still submits.
    left: u64,
    next: u64,
    random: SmallRng,
    outstanding: u32,
    /// The submissions that have a time already.
    planned: u32,
    /// When the last one is.
    last: u64,
}

impl Client {
    /// The process of `job` that starts at `start`, in nanoseconds.
    ///
    /// # Errors
    /// The job is not one of requests of one direction and length, in an area of known length.
    pub(super) fn new(job: &Job, id: ClientId, priority: IoPriority, start: u64) -> Result<Self, TextError> {
        let fault = |what: &str| TextError { place: format!("job '{}'", job.name), what: what.to_owned() };
        let is_write = match job.operations {
            Operations::Only(Direction::Read) => false,
            Operations::Only(Direction::Write) => true,
            _ => return Err(fault("only jobs that read or write are modelled")),
        };
        let bs = if is_write { &job.bs.write } else { &job.bs.read };
        let BlockSize::Fixed(bs) = bs else { return Err(fault("only jobs of one block size are modelled")) };
        let (Extent::Bytes(offset), Some(Extent::Bytes(size))) = (job.offset, job.size) else {
            return Err(fault("only jobs with an offset and a size in bytes are modelled"));
        };
        let skip = if let Order::Sequential { skip } = job.order { Some(skip) } else { None };
        if [*bs, offset, skip.unwrap_or(0).unsigned_abs()].iter().any(|bytes| !bytes.is_multiple_of(512)) {
            return Err(fault("only jobs whose bs, offset and skip of rw are multiples of 512 are modelled"));
        }
        let nr_sectors = u32::try_from(bs / 512).ok().filter(|sectors| *sectors > 0 && size >= *bs);
        let nr_sectors =
            nr_sectors.ok_or_else(|| fault("the block size is no number of sectors that fits the area"))?;
        let skip = skip.map(|skip| u64::try_from(skip / 512)).transpose();
        let skip = skip.map_err(|_| fault("only jobs that go forwards are modelled"))?;
        let runtime = job.runtime.filter(|runtime| !runtime.is_zero()).map_or(u64::MAX, nanoseconds);
        Ok(Self {
            id,
            priority,
            is_write,
            nr_sectors,
            area: (offset / 512, size / 512),
            skip,
            depth: job.iodepth,
            think: Think::new(job, Time(start)),
            will_pause: false,
            end: start.saturating_add(runtime),
            left: job.number_ios.unwrap_or(u64::MAX),
            next: 0,
            random: SmallRng::seed_from_u64(job.seed.unwrap_or(Job::SEED)),
            outstanding: 0,
            planned: 0,
            last: start,
        })
    }

    /// Plans submissions as far as they may be planned at `now`; their times.
    pub(super) fn plan(&mut self, now: u64) -> Vec<u64> {
        let mut times = Vec::new();
        let mut from = now;
        self.check_pause(now);
        if self.will_pause {
            if self.outstanding + self.planned > 0 {
                return times;
            }
            self.will_pause = false;
            from = self.think.as_mut().map_or(from, |think| think.begin(Time(now)).0) + SLACK_NS;
        }
        if self.depth > 1 {
            from += REAP_NS;
        }
        while self.outstanding + self.planned < self.depth && self.left > 0 && !self.will_pause {
            let time = self.last.max(from) + SUBMIT_NS + KIB_NS * u64::from(self.nr_sectors / 2);
            if time >= self.end {
                break;
            }
            self.last = time;
            self.left -= 1;
            self.planned += 1;
            times.push(time);
            if let Some(think) = &mut self.think {
                think.submitted(if self.is_write { Direction::Write } else { Direction::Read });
            }
            if self.outstanding + self.planned < self.depth {
                self.check_pause(time);
            }
        }
        times
    }

    fn check_pause(&mut self, now: u64) {
        self.will_pause |= self.think.as_mut().is_some_and(|think| think.is_due(Time(now)));
    }

    /// Submits what was planned: the first sector of the request.
    pub(super) fn submit(&mut self) -> u64 {
        debug_assert!(self.planned > 0, "a submission is planned");
        self.planned -= 1;
        self.outstanding += 1;
        let (start, length) = self.area;
        let nr_sectors = u64::from(self.nr_sectors);
        let Some(skip) = self.skip else {
            return start + self.random.random_range(0..length / nr_sectors) * nr_sectors;
        };
        let at = self.next;
        self.next += nr_sectors + skip;
        if self.next + nr_sectors > length {
            self.next = 0;
        }
        start + at
    }

    /// A request has completed.
    pub(super) fn complete(&mut self) {
        debug_assert!(self.outstanding > 0, "it was submitted");
        self.outstanding -= 1;
        self.think.iter_mut().for_each(Think::completed);
    }

    /// Whether it ends after so many requests, and not by time alone.
    pub(super) fn is_bounded(&self) -> bool {
        self.left != u64::MAX
    }

    /// Whether it has nothing outstanding and nothing planned. If it has planned as far as it may, it has ended then.
    pub(super) fn is_done(&self) -> bool {
        self.outstanding + self.planned == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ByDirection;

    /// Red if such a job is modelled with requests that are shorter than its operations.
    #[test]
    fn a_job_of_parts_of_sectors_is_refused() {
        let job = Job { size: Some(Extent::Bytes(1 << 20)), ..Job::new("tested") };
        let new = |job: &Job| Client::new(job, ClientId(0), IoPriority::default(), 0).map(|client| client.nr_sectors);
        assert_eq!(new(&job), Ok(8));
        let odd = [
            Job { bs: ByDirection::all(BlockSize::Fixed(2300)), ..job.clone() },
            Job { offset: Extent::Bytes(100), ..job.clone() },
            Job { order: Order::Sequential { skip: 100 }, ..job },
        ];
        for job in odd {
            let error = new(&job).expect_err("it is not modelled").to_string();
            assert!(error.ends_with("multiples of 512 are modelled"), "{error}");
        }
    }
}
