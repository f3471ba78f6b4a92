//! One thread of a job, which submits what the job's pattern says, and takes completions.
//!
//! A worker goes round by round ([`Worker::turn`]) and never blocks. So each worker can have a thread of its own, and
//! on a virtual clock one thread runs all of them. As fio does, it submits until as many operations as the job allows
//! are outstanding, and then takes at least as many completions as the job wants at once before it submits again.

mod buffers;
mod partial;
mod phase;
mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::{Buffer, Buffers, Clock, Completion, Flags, Op, Status, Submitter, Time};

use super::cpu::Usage;
use super::outcome::JobOutcome;
use super::pace::Pace;
use super::partial::Partials;
use super::pattern::{Operation, Pattern};
use super::plan::{Plan, SECTOR};
use super::progress::Cell;
use super::recorder::Recorder;
use super::stage::Stage;
use super::syncs::Syncs;
use super::verify::Verifier;
use super::waits;
use crate::job::{ByDirection, Direction, Operations};
use crate::think::Think;
use buffers::Fill;

/// The clock is read after this many rounds if no completion has set the time.
const CLOCK_ROUNDS: u32 = 64;

/// Stands for all writes, where writes that have to be read back are counted.
const ALL: u64 = u64::MAX;

/// The result of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundResult {
    /// Something was submitted or has completed.
    Busy,
    /// Nothing can be done until an operation completes, or until this time.
    Waits(Option<Time>),
    /// The job is done, and nothing is outstanding.
    Over,
}

/// Why no further operation was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halt {
    /// As many operations are outstanding as the job allows.
    Full,
    /// The next operation is not due before this time.
    Due(Time),
    /// The outstanding operations have to be over first.
    Drain,
}

/// What happens when nothing is outstanding any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextPhase {
    /// The next operation.
    Submit,
    /// A pause until this time, which begins when nothing is outstanding.
    Think,
    /// Another pass, or the end.
    EndPass,
    /// The last flush, and the end.
    End,
    /// The end.
    Over,
}

/// One thread of a job.
pub(super) struct Worker {
    pub(super) plan: Plan,
    pub(super) submitter: Submitter,
    clock: JobsClock,
    stage: Arc<Stage>,
    cell: Arc<Cell>,
    pattern: Pattern,
    pace: Option<Pace>,
    think: Option<Think>,
    syncs: Option<Syncs>,
    verifier: Option<Verifier>,
    /// The job's operations below the level of its own bytes, if not all of them go to the device as they are.
    partials: Option<Box<Partials>>,
    recorder: Recorder,
    /// Buffers that are not in use.
    spare: Vec<Buffer>,
    fill: Fill,
    flags: ByDirection<Flags>,
    /// Whether the job does more than submit what its pattern says: it has a rate, pauses, flushes, checks what it
    /// reads, or has partial operations.
    is_watched: bool,
    /// The next operation, chosen but not submitted.
    held: Option<Operation>,
    /// Outstanding operations; and how many of them are still in the plug.
    outstanding: u32,
    plugged: u32,
    /// Completions that have to be taken before more is submitted; and how many of this batch were taken.
    wanted: u32,
    taken: u32,
    /// Once the worker is full, it submits again when no more than this many operations are outstanding.
    floor: u32,
    then: NextPhase,
    /// No operation is submitted before this time.
    pause: Option<Time>,
    loops_left: u64,
    /// Writes that have to be read back before the pattern goes on; [`ALL`] stands for all of them. When the reading
    /// back began, and how long it has taken so far.
    read_back: u64,
    read_back_since: Time,
    read_back_ns: u64,
    /// Whether only reading back is left of the run.
    is_ending: bool,
    /// Operations that had completed when the runtime ended.
    in_time: Option<u64>,
    /// What is wrong with the first block that does not hold what was written.
    wrong: Option<String>,
    /// The time at the last reading of the clock.
    pub(super) now: Time,
    rounds: u32,
    /// The time of the next event that each round checks for: the end of the ramp, of a slice, or of the run.
    mark: Time,
    is_ramping: bool,
    end: Option<Time>,
    /// Operations and bytes of the ramp.
    before: (u64, u64),
    is_stopped: bool,
    is_over: bool,
    /// Whether the worker has a thread of its own; and what that thread had used when counting began.
    has_thread: bool,
    usage: Usage,
    outcome: JobOutcome,
}

/// The clock that a worker uses.
#[derive(Debug, Clone)]
pub(super) struct JobsClock {
    pub(super) clock: Clock,
    /// Whether this clock is not the queue's, so that completions do not tell its time.
    pub(super) is_apart: bool,
}

impl Worker {
    pub(super) fn new(plan: Plan, submitter: Submitter, clock: JobsClock, stage: Arc<Stage>, cell: Arc<Cell>) -> Self {
        let now = clock.clock.now();
        let job = &plan.job;
        let plain = Flags { polled: job.hipri, ..Flags::default() };
        // A write of direct I/O is one that a thread waits for, as in Linux.
        let write = Flags { sync: true, fua: job.sync, ..plain };
        let pattern = Pattern::new(&plan);
        let only_reads = job.operations == Operations::Only(Direction::Read);
        let new = |_| Verifier::new(job.verify_interval, plan.seed, plan.is_alone, only_reads);
        let verifier = job.verify.map(new);
        let syncs = Syncs::new(job);
        let has_cmdprio = Direction::ALL.into_iter().any(|direction| job.cmdprio_percentage[direction] > 0);
        let mut worker = Self {
            pattern,
            pace: None,
            think: None,
            recorder: Recorder::new(job.measure, now),
            spare: Vec::with_capacity(job.iodepth as usize + 1),
            fill: Fill::new(plan.seed),
            flags: ByDirection { read: plain, write, trim: Flags::default() },
            is_watched: verifier.is_some() || syncs.is_some() || has_cmdprio,
            syncs,
            verifier,
            partials: None,
            held: None,
            outstanding: 0,
            plugged: 0,
            wanted: 0,
            taken: 0,
            floor: job.iodepth,
            then: NextPhase::Submit,
            pause: None,
            loops_left: job.loops,
            read_back: 0,
            read_back_since: now,
            read_back_ns: 0,
            is_ending: false,
            in_time: None,
            wrong: None,
            now,
            rounds: 0,
            mark: now,
            is_ramping: false,
            end: None,
            before: (0, 0),
            is_stopped: false,
            is_over: false,
            has_thread: false,
            usage: Usage::default(),
            outcome: JobOutcome {
                name: job.name.clone(),
                job: plan.index,
                thread: plan.thread,
                group: job.group,
                ..JobOutcome::default()
            },
            plan,
            submitter,
            clock,
            stage,
            cell,
        };
        worker.make_buffers();
        worker
    }

    /// Called when the worker's thread has spent this much CPU time on polls that found no completion.
    pub(super) fn waited(&mut self, ns: u64) {
        self.outcome.empty_polls_ns += ns;
    }

    /// One round: takes completions, then submits what may be submitted. Does not block.
    pub(super) fn turn(&mut self, stop: &AtomicBool) -> RoundResult {
        if self.is_over {
            return RoundResult::Over;
        }
        self.rounds += 1;
        if self.rounds >= CLOCK_ROUNDS {
            self.look_at_clock();
        }
        if stop.load(Ordering::Relaxed) {
            self.is_stopped = true;
            self.finish_early();
        }
        let taken = self.take_wanted();
        // The completions that were taken have set `now`.
        if self.now >= self.mark {
            self.pass_mark();
        }
        if self.wanted > 0 {
            return if taken { RoundResult::Busy } else { self.wait_for(None) };
        }
        if self.outstanding == 0 && self.then != NextPhase::Submit {
            return self.go_on();
        }
        let before = self.outstanding;
        let halt = self.submit();
        self.flush_plug();
        let is_busy = taken || self.outstanding > before;
        match halt {
            Halt::Full => self.want(self.plan.job.iodepth_batch_complete_min.max(1), self.plan.job.iodepth_low),
            Halt::Drain => self.want(self.outstanding, 0),
            Halt::Due(time) if !is_busy => {
                // Operations that complete during the pause are taken during the pause.
                let some = self.outstanding > 0 && self.take(u32::MAX) > 0;
                let spins = self.has_thread && self.think.as_ref().is_some_and(|think| think.spins(self.now));
                return if some || spins { RoundResult::Busy } else { self.wait_for(Some(time)) };
            }
            Halt::Due(_) => {}
        }
        RoundResult::Busy
    }

    /// Whether the worker waits for all outstanding operations.
    pub(super) const fn wants_all(&self) -> bool {
        self.wanted >= self.outstanding
    }

    /// Called when nothing more can be done now.
    fn wait_for(&mut self, time: Option<Time>) -> RoundResult {
        self.look_at_clock();
        let until = if self.is_over { None } else { Some(self.mark) };
        RoundResult::Waits(match (time, until) {
            (Some(time), Some(until)) => Some(time.min(until)),
            (time, until) => time.or(until),
        })
    }

    /// The time of the jobs' clock.
    pub(super) fn time(&self) -> Time {
        self.clock.clock.now()
    }

    fn look_at_clock(&mut self) {
        self.now = self.now.max(self.time());
        self.rounds = 0;
    }

    /// Requires that this many completions are taken before anything else is submitted.
    fn want(&mut self, wanted: u32, floor: u32) {
        self.wanted = wanted.min(self.outstanding);
        self.floor = floor;
        self.taken = 0;
    }

    /// Takes the wanted completions that are available. Returns whether there were any.
    fn take_wanted(&mut self) -> bool {
        let mut some = false;
        while self.wanted > 0 {
            let most = self.plan.job.iodepth_batch_complete_max.max(self.wanted);
            let got = self.take_here(most.saturating_sub(self.taken).max(1));
            if got == 0 {
                break;
            }
            some = true;
            self.taken += got;
            self.wanted = self.wanted.saturating_sub(got);
            if self.wanted == 0 && self.outstanding > self.floor {
                let next = self.plan.job.iodepth_batch_complete_min.max(1);
                self.want(next, self.floor);
            }
        }
        some
    }

    /// [`take_here`](Self::take_here) for calls that are not on the path of every operation.
    #[inline(never)]
    fn take(&mut self, most: u32) -> u32 {
        self.take_here(most)
    }

    /// Takes up to `most` completed operations. Polls if there is none at the start.
    ///
    /// COST: for each operation the notes about it, and its buffer put aside. No clock is read.
    #[inline(always)]
    fn take_here(&mut self, most: u32) -> u32 {
        let (mut got, mut last) = (0, Time(0));
        while got < most {
            let some =
                if self.is_watched { self.reap_watched(&mut last) } else { self.reap_plain(most - got, &mut last) };
            got += some;
            if some == 0 && (got > 0 || !self.submitter.poll()) {
                break;
            }
        }
        if got > 0 {
            self.outstanding -= got;
            if !self.clock.is_apart {
                self.now = self.now.max(last);
            }
            self.recorder.complete.note(got, 1);
        }
        got
    }

    /// Takes up to `most` operations of a job that only counts them. Returns how many there were.
    ///
    /// COST: not inlined, so that the closure has one call site and is itself inlined. Then the completion is not
    /// copied.
    #[inline(never)]
    fn reap_plain(&mut self, most: u32, last: &mut Time) -> u32 {
        let Self { submitter, recorder, spare, .. } = self;
        let mut failure = None;
        let nr = submitter.reap_up_to(most as usize, |done| {
            recorder.note(&done);
            *last = done.completed;
            if !done.status.is_ok() {
                failure.get_or_insert_with(|| describe_completion(&done));
            }
            if let Buffers::One(buffer) = done.bio.buffers {
                spare.push(buffer);
            }
        });
        if let Some(failure) = failure {
            self.fail(failure);
        }
        nr as u32
    }

    /// Takes an operation of a job that examines each one. Returns how many there were, 0 or 1.
    #[inline(never)]
    fn reap_watched(&mut self, last: &mut Time) -> u32 {
        if self.partials.is_some() {
            return self.reap_partial(last);
        }
        let Some(done) = self.submitter.reap() else { return 0 };
        self.recorder.note(&done);
        *last = done.completed;
        let (at, bytes) = (done.bio.sector * SECTOR, done.bio.nr_sectors * SECTOR);
        self.look_at(done.bio.op, at, bytes, done.status, &done.bio.buffers);
        if let Buffers::One(buffer) = done.bio.buffers {
            self.spare.push(buffer);
        }
        1
    }

    /// Examines a completed operation more closely.
    fn look_at(&mut self, op: Op, at: u64, bytes: u64, status: Status, buffers: &Buffers) {
        if !status.is_ok() {
            self.fail(describe_failure(op, at, bytes, status));
        }
        if op != Op::Flush {
            self.think.iter_mut().for_each(Think::completed);
            self.syncs.iter_mut().for_each(Syncs::completed);
        }
        let Some(verifier) = &mut self.verifier else { return };
        verifier.over(at, bytes);
        if let (Op::Read, Buffers::One(buffer), true) = (op, buffers, status.is_ok()) {
            let (wrong, what) = verifier.check(at, buffer);
            self.outcome.verify_errors += wrong;
            if let Some(what) = what {
                self.wrong.get_or_insert(what);
                if self.plan.job.verify_fatal {
                    self.finish_early();
                }
            }
        }
    }

    /// Ends the job with an error. The first error is kept.
    fn fail(&mut self, what: String) {
        self.outcome.error.get_or_insert(what);
        self.finish_early();
    }

    /// Makes the worker submit nothing more.
    fn finish_early(&mut self) {
        self.held = None;
        self.pause = None;
        self.read_back = 0;
        if self.then != NextPhase::Over {
            self.then = NextPhase::Over;
            // Completions that are being taken at this moment may count as wanted ones. The floor of 0 makes sure that
            // the worker waits for all operations.
            self.want(self.outstanding, 0);
        }
    }

    /// The results of the job.
    pub(super) fn into_outcome(self) -> (JobOutcome, bool) {
        let Self { mut outcome, recorder, is_stopped, read_back_ns, wrong, plan, .. } = self;
        (outcome.depth_level, outcome.depth_submit, outcome.depth_complete) =
            (recorder.level, recorder.submit, recorder.complete);
        outcome.waits = waits::take();
        let [read, write, trim, sync] = recorder.into_kinds();
        outcome.directions = [read, write, trim];
        outcome.sync = sync;
        for (direction, kind) in Direction::ALL.into_iter().zip(&mut outcome.directions) {
            kind.runtime_ns = match direction {
                _ if kind.ios == 0 => 0,
                Direction::Read if !plan.job.operations.includes(Direction::Read) => read_back_ns,
                Direction::Read => outcome.runtime_ns,
                _ => outcome.runtime_ns.saturating_sub(read_back_ns),
            };
        }
        if let Some(wrong) = wrong {
            let others = outcome.verify_errors.saturating_sub(1);
            let and = if others > 0 { format!("; and {others} more") } else { String::new() };
            outcome.error.get_or_insert(wrong + &and);
        }
        (outcome, is_stopped)
    }
}

/// Why an operation that went to the device as it is failed.
#[cold]
#[inline(never)]
fn describe_completion(Completion { bio, status, .. }: &Completion) -> String {
    describe_failure(bio.op, bio.sector * SECTOR, bio.nr_sectors * SECTOR, *status)
}

/// Why an operation failed.
#[cold]
#[inline(never)]
fn describe_failure(op: Op, at: u64, bytes: u64, status: Status) -> String {
    format!("{}: {status}", describe(op, at, bytes))
}

/// An operation, in the words of an error.
fn describe(op: Op, at: u64, bytes: u64) -> String {
    let name = match op {
        Op::Read => "a read",
        Op::Write | Op::WriteZeroes => "a write",
        Op::Discard => "a trim",
        Op::Flush => return "a flush".to_owned(),
    };
    format!("{name} of {bytes} bytes at byte {at}")
}
