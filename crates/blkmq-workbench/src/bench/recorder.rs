//! What a thread notes while it runs.

use blkmq::{Completion, Op, Time};

use super::outcome::{DirectionOutcome, Sample, Spread};
use super::plan::SECTOR;
use crate::job::Measure;

/// Length of a slice of time, in nanoseconds.
pub(super) const SLICE_NS: u64 = 100_000_000;

/// What a thread notes while it runs, anew after `ramp_time`.
#[derive(Debug)]
pub(super) struct Recorder {
    measure: bool,
    /// Reads, writes, trims, flushes.
    pub(super) kinds: [DirectionOutcome; 4],
    /// Operations and bytes of each kind when the slice began.
    before: [(u64, u64); 4],
    pub(super) begin: Time,
    slice_begin: Time,
    pub(super) level: Spread,
    pub(super) submit: Spread,
    pub(super) complete: Spread,
}

fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 1,
        Op::Discard => 2,
        Op::Flush => 3,
    }
}

impl Recorder {
    pub(super) fn new(measure: Measure, begin: Time) -> Self {
        Self {
            measure: measure.lat || measure.clat,
            kinds: Default::default(),
            before: [(0, 0); 4],
            begin,
            slice_begin: begin,
            level: Spread::default(),
            submit: Spread::default(),
            complete: Spread::default(),
        }
    }

    /// Notes an operation that is over.
    #[inline]
    pub(super) fn note(&mut self, done: &Completion) {
        let kind = &mut self.kinds[kind(done.bio.op)];
        if !done.status.is_ok() {
            kind.errors += 1;
            return;
        }
        kind.ios += 1;
        kind.bytes += done.bio.nr_sectors * SECTOR;
        if self.measure {
            kind.latency.record(done.completed.since(done.submitted));
            kind.device.record(done.completed.since(done.issued));
        }
    }

    /// When the slice ends.
    pub(super) fn slice_end(&self) -> Time {
        self.slice_begin.after(SLICE_NS)
    }

    /// Ends slices that are over; the last one too if the measurement ends.
    pub(super) fn cut(&mut self, now: Time, is_last: bool) {
        while now >= self.slice_end() {
            self.end_slice(self.slice_end());
        }
        if is_last && now > self.slice_begin {
            self.end_slice(now);
        }
    }

    fn end_slice(&mut self, end: Time) {
        let (end_ns, ns) = (end.since(self.begin), end.since(self.slice_begin));
        for (kind, before) in self.kinds.iter_mut().zip(&mut self.before) {
            let (ios, bytes) = (kind.ios - before.0, kind.bytes - before.1);
            kind.samples.push(Sample { end_ns, ns, ios, bytes });
            *before = (kind.ios, kind.bytes);
        }
        self.slice_begin = end;
    }

    /// Operations that were noted, and their bytes.
    pub(super) fn done(&self) -> (u64, u64) {
        self.kinds.iter().fold((0, 0), |sum, kind| (sum.0 + kind.ios, sum.1 + kind.bytes))
    }
}
