//! Read-ahead: while no command wants the heads, the sectors behind a read go into memory.

use blkmq_sched::Time;

use super::mechanics::Mechanics;

/// How many sequences are remembered.
const NR_RUNS: usize = 16;

/// Sectors in memory.
#[derive(Debug, Clone, Copy, Default)]
struct CachedRun {
    start: u64,
    end: u64,
    /// When it was read from or into last, in looks.
    used: u64,
}

/// What the disk has read, and is reading, ahead of reads.
#[derive(Debug)]
pub(super) struct ReadAhead {
    runs: [CachedRun; NR_RUNS],
    looks: u64,
    /// The run that grows as the platter turns: since when, from which sector on, and to which sector at most.
    growing: Option<GrowingRun>,
    /// The longest read ahead, and the size of the disk, in sectors.
    most: u64,
    capacity: u64,
}

#[derive(Debug, Clone, Copy)]
struct GrowingRun {
    run: usize,
    since: Time,
    from: u64,
    until: u64,
}

impl ReadAhead {
    pub(super) fn new(most: u64, capacity: u64) -> Self {
        Self { runs: [CachedRun::default(); NR_RUNS], looks: 0, growing: None, most, capacity }
    }

    /// A read ended at `now`: the heads are behind it and go on.
    pub(super) fn begin(&mut self, start: u64, end: u64, now: Time) {
        if self.most == 0 {
            return;
        }
        self.looks += 1;
        let continues = (0..NR_RUNS).find(|&run| self.runs[run].start < start && self.runs[run].end >= start);
        let oldest = (0..NR_RUNS).min_by_key(|&run| self.runs[run].used).unwrap_or(0);
        let run = continues.unwrap_or(oldest);
        // Memory for one run is bounded: its older part is dropped.
        let first = if continues.is_some() { self.runs[run].start.max(end.saturating_sub(self.most)) } else { start };
        self.runs[run] = CachedRun { start: first.min(start), end, used: self.looks };
        let until = (end + self.most).min(self.capacity);
        self.growing = Some(GrowingRun { run, since: now, from: end, until });
    }

    /// Brings the growing run up to `now`.
    fn grow(&mut self, now: Time, mechanics: &Mechanics) {
        if let Some(GrowingRun { run, since, from, until }) = self.growing {
            self.runs[run].end = (from + mechanics.passed(now.since(since))).min(until);
        }
    }

    /// Whether memory has all these sectors at `now`.
    pub(super) fn look(&mut self, start: u64, end: u64, now: Time, mechanics: &Mechanics) -> bool {
        self.grow(now, mechanics);
        self.looks += 1;
        let looks = self.looks;
        let hit = self.runs.iter_mut().find(|run| run.start <= start && end <= run.end);
        if let Some(run) = hit {
            run.used = looks;
            return true;
        }
        false
    }

    /// Where the heads must begin to read these sectors: behind what has just been read ahead.
    pub(super) fn rest(&mut self, start: u64, end: u64, now: Time, mechanics: &Mechanics) -> u64 {
        self.grow(now, mechanics);
        let Some(GrowingRun { run, until, .. }) = self.growing else { return start };
        let CachedRun { start: first, end: last, .. } = self.runs[run];
        let is_reading = last < until && first <= start && start <= last;
        if is_reading { last.clamp(start, end) } else { start }
    }

    /// The heads leave.
    pub(super) fn end(&mut self, now: Time, mechanics: &Mechanics) {
        self.grow(now, mechanics);
        self.growing = None;
    }
}
