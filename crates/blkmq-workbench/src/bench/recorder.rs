//! What a thread notes while it runs.

use blkmq::{Completion, Op, Status, Time};

use super::outcome::{DirectionOutcome, Sample, Spread};
use super::plan::SECTOR;
use crate::job::Measure;

/// Length of a slice of time, in nanoseconds.
pub(super) const SLICE_NS: u64 = 100_000_000;

/// What a thread notes while it runs. The thread begins anew after `ramp_time`.
#[derive(Debug)]
pub(super) struct Recorder {
    measure: bool,
    /// Operations and bytes by the number of their [`Op`]. Every operation adds to these numbers, so they are kept
    /// close together.
    counts: [(u64, u64); 5],
    /// The rest: reads, writes, trims, flushes.
    kinds: [DirectionOutcome; 4],
    /// Operations and bytes of each kind when the slice began.
    before: [(u64, u64); 4],
    pub(super) begin: Time,
    slice_begin: Time,
    pub(super) level: Spread,
    pub(super) submit: Spread,
    pub(super) complete: Spread,
}

/// Which of a recorder's kinds an operation is of.
fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 1,
        Op::Discard => 2,
        Op::Flush => 3,
    }
}

/// Nanoseconds from when the device got an operation to its completion.
#[inline(always)]
pub(super) fn device_ns(done: &Completion) -> u64 {
    // Another thread may have issued the operation, and may have read the clock before the operation was submitted.
    done.completed.since(done.issued.max(done.submitted))
}

impl Recorder {
    pub(super) fn new(measure: Measure, begin: Time) -> Self {
        Self {
            measure: measure.lat || measure.clat,
            counts: [(0, 0); 5],
            kinds: Default::default(),
            before: [(0, 0); 4],
            begin,
            slice_begin: begin,
            level: Spread::default(),
            submit: Spread::default(),
            complete: Spread::default(),
        }
    }

    /// Records a completed operation.
    #[inline(always)]
    pub(super) fn note(&mut self, done: &Completion) {
        let times = || (done.completed.since(done.submitted), device_ns(done));
        self.note_as(done.bio.op, done.bio.nr_sectors * SECTOR, done.status, times);
    }

    /// Records a completed operation of this many bytes. `times`: its latency, and the part of it that it spent in
    /// the device, in nanoseconds.
    #[inline(always)]
    pub(super) fn note_as(&mut self, op: Op, bytes: u64, status: Status, times: impl FnOnce() -> (u64, u64)) {
        if !status.is_ok() {
            self.kinds[kind(op)].errors += 1;
            return;
        }
        let count = &mut self.counts[op as usize];
        count.0 += 1;
        count.1 += bytes;
        if self.measure {
            let (latency_ns, device_ns) = times();
            let kind = &mut self.kinds[kind(op)];
            kind.latency.record(latency_ns);
            kind.device.record(device_ns);
        }
    }

    /// What was counted of each kind.
    fn counts(&self) -> [(u64, u64); 4] {
        let mut sums = [(0, 0); 4];
        for op in [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes] {
            let (sum, count) = (&mut sums[kind(op)], self.counts[op as usize]);
            *sum = (sum.0 + count.0, sum.1 + count.1);
        }
        sums
    }

    /// Reads, writes, trims and flushes.
    pub(super) fn into_kinds(mut self) -> [DirectionOutcome; 4] {
        let counts = self.counts();
        for (kind, (ios, bytes)) in self.kinds.iter_mut().zip(counts) {
            (kind.ios, kind.bytes) = (ios, bytes);
        }
        self.kinds
    }

    /// When the slice ends.
    pub(super) fn slice_end(&self) -> Time {
        self.slice_begin.after(SLICE_NS)
    }

    /// Ends the slices whose time has elapsed. If the measurement ends, it ends the last slice too.
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
        let counts = self.counts();
        for ((kind, before), now) in self.kinds.iter_mut().zip(&mut self.before).zip(counts) {
            kind.samples.push(Sample { end_ns, ns, ios: now.0 - before.0, bytes: now.1 - before.1 });
            *before = now;
        }
        self.slice_begin = end;
    }

    /// Operations that were noted, and their bytes.
    pub(super) fn done(&self) -> (u64, u64) {
        self.counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }
}

#[cfg(test)]
mod tests {
    use blkmq::driver::spec;
    use blkmq::{Bio, Buffer, Client, RequestQueue};

    use super::*;

    #[test]
    fn no_operation_is_longer_in_the_device_than_at_all() {
        let driver = spec::open("null,irqmode=0").expect("the device is well described");
        let q = RequestQueue::builder(driver).scheduler("none").build().expect("it has a scheduler");
        let mut submitter = q.submitter(&Client::new("one")).expect("there is a place");
        submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("it is a good operation");
        assert!(submitter.wait(1, None).is_ready());
        let mut done = submitter.reap().expect("it is over");
        let mut recorder = Recorder::new(Measure { lat: true, clat: true, slat: true }, Time(0));
        for (issued, in_device) in [(1500, 500), (900, 1000)] {
            (done.submitted, done.issued, done.completed) = (Time(1000), Time(issued), Time(2000));
            recorder.note(&done);
            assert_eq!((recorder.kinds[0].latency.max(), recorder.kinds[0].device.max()), (1000, in_device));
        }
    }
}
