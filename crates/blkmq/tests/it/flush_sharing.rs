//! Which flushes reach the device, when, and which operations they answer.

use std::sync::Arc;

use crate::device::{Drive, ONE_QUEUE, Recorder, reap, virtual_queue, write};
use blkmq::{Bio, Client, Completion, Flags, Limits, Op, RejectReason, Status, Submitter, Time, VirtualClock};

const FUA: Flags = with(false, true);
const PREFLUSH: Flags = with(true, false);
const BOTH: Flags = with(true, true);
const SECOND: u64 = 1_000_000_000;

const fn with(preflush: bool, fua: bool) -> Flags {
    Flags { preflush, fua, ..Flags::NONE }
}

fn emulated() -> Limits {
    limits(true, false)
}

fn native() -> Limits {
    limits(true, true)
}

fn uncached() -> Limits {
    limits(false, false)
}

/// The limits of a driver in front of another device that knows only that device's FUA.
fn fua_alone() -> Limits {
    Limits { no_flush: true, ..limits(false, true) }
}

fn limits(write_cache: bool, fua: bool) -> Limits {
    let limits = Limits { capacity_sectors: 1 << 20, max_sectors: 64, max_segments: 16, ..Limits::default() };
    Limits { max_discard_sectors: 1 << 16, max_write_zeroes_sectors: 1 << 16, write_cache, fua, ..limits }
}

/// A device that finishes requests only when told, behind a queue on virtual time.
struct Rig {
    device: Arc<Recorder>,
    clock: VirtualClock,
    submitters: Vec<Submitter>,
}

impl Rig {
    fn new(limits: Limits, scheduler: &str) -> Self {
        let device = Recorder::new(limits, ONE_QUEUE);
        let (q, clock) = virtual_queue(device.clone(), |q| q.scheduler(scheduler).io_timeout_ms(600_000));
        let submitters = (0..3)
            .map(|number| q.submitter(&Client::new(format!("client {number}"))).expect("there is a place"))
            .collect();
        Self { device, clock, submitters }
    }

    /// Submits and passes on.
    fn submit(&mut self, number: usize, bio: Bio) {
        self.submitters[number].submit_now(bio);
    }

    /// Finishes the oldest request of the device. Returns the operations that are over by that.
    fn finish(&mut self, status: Status) -> Vec<Completion> {
        self.device.finish_oldest(status);
        self.poll()
    }

    /// Every submitter polls twice: what one completes may belong to another.
    fn poll(&mut self) -> Vec<Completion> {
        (0..2).flat_map(|_| self.submitters.iter_mut().flat_map(reap).collect::<Vec<_>>()).collect()
    }

    fn assert_idle(&mut self) {
        assert_eq!((self.poll().len(), self.device.nr_held()), (0, 0));
        assert!(self.device.take_ops().is_empty());
        let q = self.submitters[0].queue();
        assert_eq!((q.busy_tags(), q.counters().entered), (0, q.counters().completed));
        assert!(self.submitters.iter().all(|submitter| submitter.nr_outstanding() == 0));
    }
}

fn each(limits: Limits, test: impl Fn(Rig)) {
    blkmq::scheduler_names().into_iter().for_each(|scheduler| test(Rig::new(limits, scheduler)));
}

fn all_are(done: &[Completion], status: Status) -> bool {
    done.iter().all(|completion| completion.status == status)
}

/// Red if a flush that arrives while another runs is answered by the running one.
#[test]
fn flushes_that_arrive_while_one_runs_share_the_next() {
    each(native(), |mut rig| {
        rig.submit(0, Bio::flush());
        assert_eq!(rig.device.take_ops(), [Op::Flush]);
        for number in [0, 1, 1, 2, 2] {
            rig.submit(number, Bio::flush());
        }
        assert!(rig.device.take_ops().is_empty(), "one flush at a time");
        assert_eq!(rig.finish(Status::Ok).len(), 1, "only the flush that came before it began");
        assert_eq!(rig.device.take_ops(), [Op::Flush]);
        let done = rig.finish(Status::Ok);
        assert_eq!(done.len(), 5);
        assert!(all_are(&done, Status::Ok));
        rig.assert_idle();
    });
}

#[test]
fn flushes_that_arrive_together_cost_two_at_most() {
    each(native(), |mut rig| {
        for submitter in &mut rig.submitters {
            for _ in 0..20 {
                submitter.submit(Bio::flush()).expect("there is a slot");
            }
            submitter.flush_plug();
        }
        assert_eq!(rig.finish(Status::Ok).len() + rig.finish(Status::Ok).len(), 60);
        assert_eq!(rig.device.take_ops().len(), 2);
        rig.assert_idle();
    });
}

/// Red if `kick` does not look at data in flight.
#[test]
fn a_flush_waits_for_the_data_of_other_flush_sequences_and_serves_them_too() {
    each(emulated(), |mut rig| {
        for number in 0..3 {
            rig.submit(number, write(64 * number as u64, 8).with_flags(FUA));
        }
        rig.submit(0, Bio::flush());
        assert_eq!(rig.device.take_ops(), [Op::Write; 3]);
        assert!(rig.finish(Status::Ok).is_empty() && rig.finish(Status::Ok).is_empty());
        assert!(rig.device.take_ops().is_empty());
        assert!(rig.finish(Status::Ok).is_empty());
        assert_eq!(rig.device.take_ops(), [Op::Flush]);
        assert_eq!(rig.finish(Status::Ok).len(), 4);
        rig.assert_idle();
    });
}

/// Red if `kick` has no bound of 5 seconds or a shorter one, or if anything but an event of the flush machine calls it.
#[test]
fn after_five_seconds_the_next_event_starts_a_flush_although_data_is_in_flight() {
    each(emulated(), |mut rig| {
        rig.submit(0, write(0, 8).with_flags(FUA));
        rig.submit(1, Bio::flush());
        rig.clock.advance(5 * SECOND - 1);
        rig.submit(2, Bio::flush());
        assert_eq!(rig.device.take_ops(), [Op::Write]);
        rig.clock.advance(1);
        assert!(rig.poll().is_empty() && rig.device.take_ops().is_empty(), "no timer starts the flush");
        rig.submit(2, Bio::flush());
        assert_eq!(rig.device.take_ops(), [Op::Flush]);
        assert!(rig.finish(Status::Ok).is_empty(), "the data is there, and its flush is still to come");
        assert_eq!(rig.finish(Status::Ok).len(), 3);
        assert_eq!(rig.device.take_ops(), [Op::Flush]);
        assert_eq!(rig.finish(Status::Ok).len(), 1);
        rig.assert_idle();
    });
}

#[test]
fn a_failed_flush_fails_everybody_it_serves_and_no_other() {
    each(emulated(), |mut rig| {
        rig.submit(0, Bio::flush());
        rig.submit(0, Bio::flush());
        rig.submit(1, Bio::flush());
        rig.submit(2, write(0, 8).with_flags(BOTH));
        assert!(all_are(&rig.finish(Status::Ok), Status::Ok));
        rig.submit(1, Bio::flush());
        assert_eq!(rig.device.take_ops(), [Op::Flush; 2]);
        let done = rig.finish(Status::Medium);
        assert_eq!(done.len(), 3);
        assert!(all_are(&done, Status::Medium));
        assert_eq!(rig.device.take_ops(), [Op::Flush], "and the write whose flush failed is not made");
        let done = rig.finish(Status::Ok);
        assert_eq!((done.len(), all_are(&done, Status::Ok)), (1, true));
        rig.assert_idle();
    });
}

#[test]
fn failed_data_is_not_flushed_and_a_failed_flush_behind_data_fails_the_write() {
    each(emulated(), |mut rig| {
        rig.submit(0, write(0, 8).with_flags(FUA));
        let done = rig.finish(Status::NoSpace);
        assert_eq!((done.len(), all_are(&done, Status::NoSpace)), (1, true));
        assert_eq!(rig.device.take_ops(), [Op::Write]);
        rig.submit(0, write(0, 8).with_flags(FUA));
        assert!(rig.finish(Status::Ok).is_empty());
        assert_eq!(rig.device.take_ops(), [Op::Write, Op::Flush]);
        let done = rig.finish(Status::IoError);
        assert_eq!((done.len(), all_are(&done, Status::IoError)), (1, true));
        rig.assert_idle();
    });
}

/// What an operation becomes: the operations that reach the device, one after the other, and whether one of them says
/// FUA.
fn steps(limits: Limits, bio: impl Fn() -> Bio) -> (Vec<Op>, bool) {
    let mut all = blkmq::scheduler_names().into_iter().map(|scheduler| {
        let mut rig = Rig::new(limits, scheduler);
        rig.submit(0, bio());
        let (mut ops, mut fua) = (Vec::new(), false);
        let mut done = rig.poll();
        while done.is_empty() {
            for seen in rig.device.take_seen() {
                assert!(!seen.flags.preflush, "a driver need not know of flushes before data");
                ops.push(seen.op);
                fua |= seen.flags.fua;
            }
            done = rig.finish(Status::Ok);
        }
        assert_eq!((done.len(), done[0].status), (1, Status::Ok));
        assert_eq!(done[0].bio.flags, bio().flags, "the operation comes back as it was");
        rig.assert_idle();
        (ops, fua)
    });
    let first = all.next().expect("there are schedulers");
    all.for_each(|steps| assert_eq!(steps, first));
    first
}

/// A device's limits, an operation, its flags, the steps that the device gets, and whether one of them has FUA.
type Row = (Limits, fn() -> Bio, Flags, &'static [Op], bool);

/// Red if the flush before or behind data, zeroes or a discard is left out, or one is made that no device needs.
#[test]
fn each_device_gets_the_steps_that_it_needs() {
    use Op::{Discard, Flush, Read, Write, WriteZeroes};
    let write = || write(8, 8);
    let read = || crate::device::read(8, 8);
    let (zeroes, discard) = (|| Bio::write_zeroes(8, 8), || Bio::discard(8, 8));
    let rows: [Row; 15] = [
        (uncached(), Bio::flush, Flags::NONE, &[], false),
        (uncached(), write, BOTH, &[Write], false),
        (native(), Bio::flush, Flags::NONE, &[Flush], false),
        (native(), write, FUA, &[Write], true),
        (native(), write, PREFLUSH, &[Flush, Write], false),
        (native(), write, BOTH, &[Flush, Write], true),
        (native(), read, FUA, &[Read], false),
        (emulated(), Bio::flush, Flags::NONE, &[Flush], false),
        (emulated(), write, FUA, &[Write, Flush], false),
        (emulated(), write, PREFLUSH, &[Flush, Write], false),
        (emulated(), write, BOTH, &[Flush, Write, Flush], false),
        (emulated(), read, FUA, &[Read], false),
        (emulated(), zeroes, BOTH, &[Flush, WriteZeroes, Flush], false),
        (emulated(), zeroes, FUA, &[WriteZeroes, Flush], false),
        (emulated(), discard, FUA, &[Discard, Flush], false),
    ];
    for (limits, bio, flags, ops, fua) in rows {
        let (found, has_fua) = steps(limits, || bio().with_flags(flags));
        assert_eq!((&found[..], has_fua), (ops, fua), "{:?} with {flags:?} on {limits:?}", bio().op);
    }
}

/// Red if FUA is removed for a device without a write cache of its own.
#[test]
fn a_device_that_has_fua_is_told_of_it_also_without_a_write_cache() {
    for limits in [fua_alone(), limits(false, true)] {
        for bio in [|| write(8, 8), || Bio::write_zeroes(8, 8), || Bio::discard(8, 8)] {
            assert_eq!(steps(limits, || bio().with_flags(FUA)), (vec![bio().op], true), "{:?}", bio().op);
            assert_eq!(steps(limits, bio), (vec![bio().op], false));
        }
        assert_eq!(steps(limits, || crate::device::read(8, 8).with_flags(FUA)), (vec![Op::Read], false));
    }
    assert_eq!(steps(limits(false, true), Bio::flush), (vec![], false));
}

/// Red if an operation that must be durable merges with one that need not be: both would be durable, or neither.
#[test]
fn what_is_to_be_durable_merges_with_nothing() {
    each(fua_alone(), |mut rig| {
        for (sector, flags) in [(0, FUA), (8, Flags::NONE), (16, FUA), (24, Flags::NONE), (32, Flags::NONE)] {
            rig.submitters[0].submit(write(sector, 8).with_flags(flags)).expect("there is a slot");
        }
        rig.submitters[0].flush_plug();
        let mut seen: Vec<_> =
            rig.device.take_seen().iter().map(|seen| (seen.sector, seen.nr_sectors, seen.flags.fua)).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(0, 8, true), (8, 8, false), (16, 8, true), (24, 16, false)]);
        let nr_done: usize = (0..4).map(|_| rig.finish(Status::Ok).len()).sum();
        assert_eq!(nr_done, 5);
        rig.assert_idle();
    });
}

/// Red if a flush that no device makes, or FUA that no device has, is answered with success.
#[test]
fn what_the_device_cannot_keep_is_refused() {
    let neither = Limits { fua: false, ..fua_alone() };
    let data = |flags| write(0, 8).with_flags(flags);
    let asked: [(&dyn Fn() -> Bio, bool, bool); 8] = [
        (&Bio::flush, false, false),
        (&|| data(PREFLUSH), false, false),
        (&|| data(BOTH), false, false),
        (&|| data(FUA), true, false),
        (&|| Bio::write_zeroes(0, 8).with_flags(FUA), true, false),
        (&|| Bio::discard(0, 8).with_flags(FUA), true, false),
        (&|| crate::device::read(0, 8).with_flags(FUA), true, true),
        (&|| data(Flags::NONE), true, true),
    ];
    for (bio, with_fua, with_neither) in asked {
        for (limits, is_taken) in [(fua_alone(), with_fua), (neither, with_neither)] {
            let mut rig = Rig::new(limits, "none");
            let reason = rig.submitters[0].submit(bio()).map_err(|rejected| rejected.reason).err();
            let expected = (!is_taken).then_some(RejectReason::Bad(Status::Unsupported));
            assert_eq!(reason, expected, "{:?} with {:?}", bio().op, bio().flags);
            rig.submitters[0].flush_plug();
            (0..rig.device.nr_held()).for_each(|_| drop(rig.finish(Status::Ok)));
            rig.device.take_ops();
            rig.assert_idle();
        }
    }
}

#[test]
fn data_behind_a_flush_goes_in_the_order_in_which_it_came() {
    each(native(), |mut rig| {
        rig.submit(0, Bio::flush());
        let sectors = [640, 0, 320, 64, 128];
        for sector in sectors {
            rig.submit(1, write(sector, 8).with_flags(PREFLUSH));
        }
        rig.finish(Status::Ok);
        rig.finish(Status::Ok);
        let seen: Vec<_> = rig.device.take_seen().iter().map(|seen| (seen.op, seen.sector)).collect();
        assert_eq!(seen[..2], [(Op::Flush, 0); 2]);
        assert_eq!(seen[2..], sectors.map(|sector| (Op::Write, sector)));
        assert_eq!((0..5).map(|_| rig.finish(Status::Ok).len()).sum::<usize>(), 5);
        rig.assert_idle();
    });
}

/// Red if a write that is split is answered before all its parts are durable, or does not fail when one part fails.
#[test]
fn every_part_of_a_split_write_is_flushed() {
    each(emulated(), |mut rig| {
        for failing in [None, Some(64)] {
            rig.submit(0, write(0, 192).with_flags(FUA));
            let parts = rig.device.take_seen();
            assert_eq!(
                parts.iter().map(|part| (part.op, part.sector)).collect::<Vec<_>>(),
                [(Op::Write, 0), (Op::Write, 64), (Op::Write, 128)]
            );
            for part in parts.iter().rev() {
                let failed = failing == Some(part.sector);
                rig.device.finish(part, if failed { Status::Medium } else { Status::Ok });
                assert!(rig.poll().is_empty());
            }
            assert_eq!(rig.device.take_ops(), [Op::Flush], "one flush serves all parts");
            let done = rig.finish(Status::Ok);
            assert_eq!(done.len(), 1);
            assert_eq!(done[0].status, if failing.is_some() { Status::Medium } else { Status::Ok });
        }
        rig.assert_idle();
    });
}

/// When an operation was submitted, issued and completed.
fn times(done: &[Completion]) -> [Time; 3] {
    let [over] = done else { panic!("one operation is over: {done:?}") };
    [over.submitted, over.issued, over.completed]
}

/// Red before: a flush had issued and completed at `Time(0)`. Red too if a flush that waits gets the times of the one
/// that runs, or if an operation is complete when its data is and its flush is still to come.
#[test]
fn an_operation_with_a_flush_has_the_times_at_which_the_driver_had_it() {
    each(emulated(), |mut rig| {
        rig.clock.advance_to(Time(100));
        rig.submit(0, Bio::flush());
        rig.clock.advance_to(Time(150));
        rig.submit(1, Bio::flush());
        rig.clock.advance_to(Time(200));
        assert_eq!(times(&rig.finish(Status::Ok)), [100, 100, 200].map(Time));
        rig.clock.advance_to(Time(230));
        assert_eq!(times(&rig.finish(Status::Medium)), [150, 200, 230].map(Time), "a failed flush took time too");

        rig.submit(0, write(0, 8).with_flags(FUA));
        rig.clock.advance_to(Time(300));
        assert!(rig.finish(Status::Ok).is_empty());
        rig.clock.advance_to(Time(380));
        assert_eq!(times(&rig.finish(Status::Ok)), [230, 230, 380].map(Time), "the flush after the data");

        rig.submit(0, write(0, 8).with_flags(PREFLUSH));
        rig.clock.advance_to(Time(400));
        assert!(rig.finish(Status::Ok).is_empty());
        rig.clock.advance_to(Time(410));
        assert_eq!(times(&rig.finish(Status::Ok)), [380, 400, 410].map(Time), "the data after the flush");

        rig.submit(0, write(0, 8).with_flags(PREFLUSH));
        rig.clock.advance_to(Time(440));
        assert_eq!(times(&rig.finish(Status::Medium)), [410, 410, 440].map(Time), "the driver got the flush alone");
        rig.device.take_ops();
        rig.assert_idle();
    });
    each(uncached(), |mut rig| {
        rig.clock.advance_to(Time(100));
        rig.submit(0, Bio::flush());
        assert_eq!(times(&rig.poll()), [100, 0, 100].map(Time), "the device has nothing to do");
        rig.assert_idle();
    });
}
