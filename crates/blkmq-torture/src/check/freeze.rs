//! A frozen queue lets nothing in, and a quiesced queue gives nothing to its device. Freezes and quiescences of several
//! CPUs may overlap. Each CPU has at most one freeze and one quiescence that the checker is told of.

use std::collections::BTreeSet;

use blkmq_vcpu::CpuId;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "freeze";

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Freeze {
    /// The CPUs that hold the queue frozen, and have seen it drained.
    frozen: BTreeSet<CpuId>,
    /// The CPUs that hold the queue quiesced.
    quiesced: BTreeSet<CpuId>,
}

impl Freeze {
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

    /// Nothing may move in a drained, frozen queue, and no CPU may call the scheduler or the device of a quiesced one.
    fn judge(&self, event: &Event<'_>) -> Verdict {
        let (is_frozen, is_quiesced) = (!self.frozen.is_empty(), !self.quiesced.is_empty());
        let (what, rq) = match *event {
            Event::Inserted { rq, .. } if is_frozen => ("the scheduler got a request", Some(rq)),
            Event::Merged { into, .. } if is_frozen => ("an operation joined a request", Some(into)),
            Event::Chosen { rq, .. } => ("the scheduler chose a request", Some(rq)),
            Event::HeldBack { .. } if is_quiesced => ("the scheduler was asked for a request", None),
            Event::Offered { rq, .. } => ("the device was offered a request", Some(rq)),
            Event::Acted { action: Action::Stale, .. } if !is_quiesced => return Ok(()),
            Event::Acted { rq, .. } => ("the device had a request, or was asked about it", Some(rq)),
            _ => return Ok(()),
        };
        let of = if is_frozen { "frozen queue that had drained" } else { "quiesced queue" };
        Err(rq.into_iter().fold(Violation::new(RULE, format!("{what} of a {of}")), Violation::request))
    }
}

impl Checker for Freeze {
    fn see(&mut self, at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        match *event {
            Event::Changed { control, phase } => self.changed(at.cpu, control, phase),
            Event::Counted(_) => _ = self.frozen.insert(at.cpu),
            _ if !(self.frozen.is_empty() && self.quiesced.is_empty()) => return self.judge(event),
            _ => {}
        }
        Ok(())
    }
}
