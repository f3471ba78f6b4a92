//! A frozen queue lets nothing in, and a quiesced queue gives nothing to its device. Freezes and quiescences of several
//! CPUs may overlap. Each CPU has at most one freeze and one quiescence that the checker is told of.

use std::collections::BTreeSet;

use blkmq_vcpu::CpuId;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::{Checker, Violation};

const RULE: &str = "freeze";

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Freeze {
    /// The CPUs that hold the queue frozen, and have seen it drained.
    frozen: BTreeSet<CpuId>,
    /// The CPUs that hold the queue quiesced.
    quiesced: BTreeSet<CpuId>,
}

impl Freeze {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn changed(&mut self, cpu: CpuId, control: Control, phase: Phase) {
        match (control, phase) {
            (Control::Freeze, Phase::Done) => _ = self.frozen.insert(cpu),
            (Control::Quiesce, Phase::Done) => _ = self.quiesced.insert(cpu),
            (Control::Unquiesce, Phase::Begun) => _ = self.quiesced.remove(&cpu),
            (Control::Thaw, Phase::Begun)
            | (
                Control::Scheduler(_)
                | Control::Locking(_)
                | Control::Bypass(_)
                | Control::NrRequests(_)
                | Control::Topology(..)
                | Control::Ranges(_),
                Phase::Done | Phase::Refused,
            ) => _ = self.frozen.remove(&cpu),
            _ => {}
        }
    }

    /// Nothing may move in a drained, frozen queue.
    fn judge_frozen(&self, event: &Event<'_>) -> Result<(), Violation> {
        let what = match *event {
            _ if self.frozen.is_empty() => return Ok(()),
            Event::Inserted { rq, .. } => Violation::new(RULE, "the scheduler got a request".into()).request(rq),
            Event::Merged { into, .. } => Violation::new(RULE, "an operation joined a request".into()).request(into),
            Event::Chosen { rq, .. } => Violation::new(RULE, "the scheduler chose a request".into()).request(rq),
            Event::Offered { rq, .. } => Violation::new(RULE, "the device was offered a request".into()).request(rq),
            Event::Acted { action: Action::Stale, .. } => return Ok(()),
            Event::Acted { rq, .. } => Violation::new(RULE, "the device had a request".into()).request(rq),
            _ => return Ok(()),
        };
        Err(Violation { what: format!("{} of a frozen queue that had drained", what.what), ..what })
    }

    /// No CPU may call the scheduler or the device of a quiesced queue.
    fn judge_quiesced(&self, event: &Event<'_>) -> Result<(), Violation> {
        let what = match *event {
            _ if self.quiesced.is_empty() => return Ok(()),
            Event::Chosen { rq, .. } => Violation::new(RULE, "the scheduler chose a request".into()).request(rq),
            Event::HeldBack { .. } => Violation::new(RULE, "the scheduler was asked for a request".into()),
            Event::Offered { rq, .. } => Violation::new(RULE, "the device was offered a request".into()).request(rq),
            Event::Acted { rq, .. } => Violation::new(RULE, "the device was asked about a request".into()).request(rq),
            _ => return Ok(()),
        };
        Err(Violation { what: format!("{} of a quiesced queue", what.what), ..what })
    }
}

impl Checker for Freeze {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Changed { control, phase } => self.changed(at.cpu, control, phase),
            Event::Counted(_) => _ = self.frozen.insert(at.cpu),
            _ if !(self.frozen.is_empty() && self.quiesced.is_empty()) => {
                self.judge_frozen(event)?;
                self.judge_quiesced(event)?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{MergeHow, Op, Time};
    use blkmq_virtual::{Locking, Status};

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Freeze> {
        Told::new(Freeze::new())
    }

    fn moves() -> [Event<'static>; 5] {
        let rq = id(1, 0, 0);
        [
            inserted(rq, info(Op::Read, 0, 1), 0),
            Event::Merged { into: rq, info: info(Op::Read, 0, 1), how: MergeHow::Back },
            chosen(rq, 0),
            offered(rq, Op::Read, 0, 1, &[]),
            completed(rq, Status::Ok),
        ]
    }

    #[test]
    fn nothing_moves_between_drained_and_thawed() {
        for event in moves() {
            let mut told = told();
            told.good(event).good(changed(Control::Freeze, Phase::Begun)).good(event);
            told.good(changed(Control::Freeze, Phase::Done)).bad(event, "of a frozen queue");
            told.good(acted(id(1, 0, 0), Action::Stale)).good(changed(Control::Thaw, Phase::Begun)).good(event);
        }
    }

    #[test]
    fn the_last_that_goes_lets_the_queue_go_on() {
        let [inserted, .., offered, _] = moves();
        let by = |told: &mut Told<Freeze>, cpu: u16, control: Control, phases: &[Phase]| {
            told.cpu = cpu;
            phases.iter().for_each(|phase| _ = told.good(changed(control, *phase)));
        };
        let both = [Phase::Begun, Phase::Done];
        let mut told = told();
        by(&mut told, 1, Control::Freeze, &both);
        by(&mut told, 2, Control::Freeze, &both);
        by(&mut told, 1, Control::Thaw, &both);
        told.bad(inserted, "of a frozen queue");
        by(&mut told, 3, Control::NrRequests(5), &both);
        told.bad(inserted, "of a frozen queue");
        by(&mut told, 2, Control::Thaw, &both);
        told.good(inserted);
        by(&mut told, 1, Control::Quiesce, &both);
        by(&mut told, 2, Control::Quiesce, &both);
        by(&mut told, 2, Control::Unquiesce, &both);
        told.bad(offered, "of a quiesced queue");
        by(&mut told, 1, Control::Unquiesce, &both);
        told.good(offered);
    }

    #[test]
    fn nothing_moves_while_a_change_is_made() {
        for control in [
            Control::Scheduler("none"),
            Control::Locking(Locking::Batch),
            Control::Bypass(true),
            Control::NrRequests(1),
            Control::Topology(1, 0, 0),
            Control::Ranges(1),
        ] {
            for end in [Phase::Done, Phase::Refused] {
                for event in moves() {
                    let mut told = told();
                    told.good(changed(control, Phase::Begun)).good(event).good(Event::Counted(&counts(0)));
                    told.bad(event, "of a frozen queue").good(changed(control, end)).good(event);
                }
            }
        }
    }

    #[test]
    fn a_quiesced_queue_takes_and_does_not_give() {
        let [inserted, merged, moves @ ..] = moves();
        let held_back = Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None };
        for event in moves.into_iter().chain([held_back, acted(id(1, 0, 0), Action::Stale)]) {
            let mut told = told();
            told.good(changed(Control::Quiesce, Phase::Begun)).good(event);
            told.good(changed(Control::Quiesce, Phase::Done)).good(inserted).good(merged);
            told.bad(event, "of a quiesced queue").good(changed(Control::Unquiesce, Phase::Begun)).good(event);
        }
    }
}
