//! Every way in which threads take turns at a scheduler, for promises that hold under all of them.

use std::fmt;

use blkmq::{Builder, Locking, RequestQueue};

/// How threads take turns at the scheduler, and whether one scheduler orders the whole queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) locking: Locking,
    pub(crate) stages_all: bool,
    pub(crate) is_split: bool,
}

impl Way {
    /// A builder of a queue of this way in front of a device. The caller sets the scheduler, unless the
    /// [one of this way](Self::scheduler) will do.
    pub(crate) fn builder(self, device: std::sync::Arc<dyn blkmq::driver::Driver>) -> Builder {
        let builder = RequestQueue::builder(device).scheduler(self.scheduler()).locking(self.locking);
        if self.stages_all { builder.stage_all() } else { builder }
    }

    /// A scheduler that orders the whole queue, or each hardware queue.
    pub(crate) fn scheduler(self) -> &'static str {
        if self.is_split { "kyber" } else { "mq-deadline" }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let staged = if self.stages_all { ", all staged" } else { "" };
        write!(f, "{}{staged}, {}", self.locking, if self.is_split { "split" } else { "whole" })
    }
}

/// Every locking with one scheduler for the whole queue, and those that suit a split queue with one too.
pub(crate) fn every() -> impl Iterator<Item = Way> {
    let of = |name: &str| name.parse().expect("there is such a locking");
    let one_measure = ["staged:dispatch", "staged:buckets", "staged:merges"].map(of);
    let lockings = Locking::ALL.into_iter().chain(one_measure).map(|locking| (locking, false));
    let ways = lockings.chain([(Locking::Combining, true)]);
    ways.flat_map(|(locking, stages_all)| {
        let splits = if matches!(locking, Locking::Staged(_)) { &[false][..] } else { &[false, true] };
        splits.iter().map(move |is_split| Way { locking, stages_all, is_split: *is_split })
    })
}

/// Those of them with one scheduler for the whole queue.
pub(crate) fn whole() -> impl Iterator<Item = Way> {
    every().filter(|way| !way.is_split)
}
