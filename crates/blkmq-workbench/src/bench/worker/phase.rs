//! How a worker's run begins, passes through its phases, and ends.

use blkmq::Time;

use super::{ALL, NextPhase, RoundResult, Worker};
use crate::bench::cpu::Usage;
use crate::bench::pace::Pace;
use crate::bench::recorder::Recorder;
use crate::bench::waits;
use crate::job::Direction;
use crate::think::Think;

impl Worker {
    /// Begins the run. Called once, when all threads of the stage are ready. The measurement begins at `at` for all
    /// threads, however late a thread gets a processor. So the numbers of all threads are of the same stretch of time.
    pub(in crate::bench) fn begin(&mut self, at: Time, has_thread: bool) {
        self.has_thread = has_thread;
        self.now = self.time().max(at);
        let first = at.after(self.plan.delay_ns);
        self.pause = (self.plan.delay_ns > 0).then_some(first);
        self.pace = Pace::new(&self.plan.job, self.plan.seed, first);
        self.think = Think::new(&self.plan.job, first);
        self.is_watched |= self.pace.is_some() || self.think.is_some();
        self.is_ramping = self.plan.ramp_ns > 0;
        self.measure_from(first);
        self.cell.report(0, 0, 0.0);
    }

    /// Begins the counting, or the ramp before it.
    fn measure_from(&mut self, begin: Time) {
        self.recorder = Recorder::new(self.plan.job.measure, begin);
        let ramp_end = begin.after(self.plan.ramp_ns);
        self.end = match self.plan.run_ns {
            Some(ns) if !self.is_ramping => Some(begin.after(ns)),
            _ => None,
        };
        self.outcome.empty_polls_ns = 0;
        let _ = waits::take();
        if self.has_thread {
            self.usage = Usage::of_thread();
        }
        self.mark = if self.is_ramping { ramp_end } else { self.next_mark() };
    }

    pub(super) fn next_mark(&self) -> Time {
        self.end.map_or(self.recorder.slice_end(), |end| end.min(self.recorder.slice_end()))
    }

    /// Whether only the clock ends the job.
    pub(in crate::bench) fn waits_for_time(&self) -> bool {
        !self.is_over && self.plan.is_time_based()
    }

    /// Called when nothing is outstanding. Does what `then` says.
    pub(super) fn go_on(&mut self) -> RoundResult {
        self.look_at_clock();
        match self.then {
            NextPhase::Submit => {}
            NextPhase::Think => self.begin_pause(),
            NextPhase::EndPass if self.must_read_back() => self.begin_read_back(),
            NextPhase::EndPass if self.plan.is_time_based() => {
                self.end_read_back();
                self.pattern.begin_pass(false);
                self.then = NextPhase::Submit;
            }
            NextPhase::EndPass => {
                self.end_read_back();
                self.loops_left -= 1;
                if self.loops_left > 0 {
                    self.pattern.begin_pass(true);
                    self.then = NextPhase::Submit;
                } else {
                    self.then = NextPhase::End;
                }
            }
            NextPhase::End if self.must_read_back() => {
                self.is_ending = true;
                self.begin_read_back();
            }
            NextPhase::End => {
                self.end_read_back();
                self.then = NextPhase::Over;
                if self.plan.job.end_fsync && self.plan.job.operations.includes(Direction::Write) {
                    self.submit_flush();
                    self.flush_plug();
                    self.want(self.outstanding, 0);
                }
            }
            NextPhase::Over => {
                self.end();
                return RoundResult::Over;
            }
        }
        RoundResult::Busy
    }

    fn begin_pause(&mut self) {
        self.then = NextPhase::Submit;
        let Some(think) = &mut self.think else { return };
        self.pause = Some(think.begin(self.now));
    }

    pub(super) fn end_pause(&mut self) {
        self.pause = None;
        let ended = self.think.as_mut().and_then(|think| think.end(self.now));
        if let (Some((ns, direction)), Some(pace)) = (ended, &mut self.pace)
            && pace.ignores_thinktime
        {
            pace.pause(direction, ns);
        }
    }

    /// Whether there are writes that have to be checked.
    pub(super) fn must_read_back(&self) -> bool {
        let is_unread = self.verifier.as_ref().is_some_and(|verifier| verifier.nr_unread() > 0);
        is_unread && self.plan.job.do_verify && self.then != NextPhase::Over
    }

    fn begin_read_back(&mut self) {
        self.read_back = ALL;
        self.read_back_since = self.now;
        self.then = NextPhase::Submit;
    }

    fn end_read_back(&mut self) {
        if self.read_back == ALL {
            self.read_back = 0;
            self.read_back_ns += self.now.since(self.read_back_since);
        }
    }

    /// Called when the time `mark` has come.
    pub(super) fn pass_mark(&mut self) {
        let (ios, bytes) = self.recorder.done();
        if self.is_ramping {
            self.is_ramping = false;
            self.before = (ios, bytes);
            self.measure_from(self.now);
            self.stage.ramp_is_over(&self.submitter);
            return;
        }
        self.recorder.cut(self.now, false);
        let elapsed = self.now.since(self.recorder.begin) as f64;
        let of_time = self.plan.run_ns.map_or(0.0, |ns| elapsed / ns as f64);
        let of_passes = if self.plan.is_time_based() {
            0.0
        } else {
            let loops = self.plan.job.loops as f64;
            (loops - self.loops_left as f64 + self.pattern.fraction()) / loops
        };
        self.cell.report(self.before.0 + ios, self.before.1 + bytes, of_time.max(of_passes));
        if self.end.is_some_and(|end| self.now >= end) && self.then != NextPhase::Over {
            self.end = None;
            self.is_ending = true;
            self.in_time = Some(ios);
            // A worker that has begun to read back everything goes on until that is done.
            if self.read_back != ALL {
                self.held = None;
                self.pause = None;
                self.then = NextPhase::End;
                self.want(self.outstanding, 0);
            }
        }
        self.mark = self.next_mark();
    }

    /// The job is done.
    fn end(&mut self) {
        self.is_over = true;
        self.outcome.runtime_ns = self.now.since(self.recorder.begin);
        if self.has_thread {
            self.outcome.usage = Usage::of_thread() - self.usage;
        }
        self.recorder.cut(self.now, true);
        let (ios, bytes) = self.recorder.done();
        self.outcome.ios_in_time = self.in_time.unwrap_or(ios);
        self.cell.end(self.before.0 + ios, self.before.1 + bytes);
        if self.is_ramping {
            // The job ended before anything was to be counted.
            self.is_ramping = false;
            (self.outcome.runtime_ns, self.outcome.ios_in_time) = (0, 0);
            self.recorder = Recorder::new(self.plan.job.measure, self.now);
            self.stage.ramp_is_over(&self.submitter);
        }
    }
}
