//! When a plug has been emptied into the scheduler, and which requests are still in a plug.

use std::collections::{HashMap, VecDeque};

use crate::blktrace::{Action, Event};

/// The most requests that are taken to be in one plug. Linux empties a plug long before.
const MOST_HELD: usize = 1024;

/// The plugs of all tasks.
///
/// Linux inserts the requests of a plug under one hold of the scheduler's lock and asks for a choice after it. A trace
/// announces a plug's number of requests (`U`) before it shows their insertions (`I`), or that they merged (`M`).
#[derive(Debug, Default)]
pub(super) struct Plugs {
    /// Requests that were allocated and not yet inserted, by task.
    held: HashMap<u32, VecDeque<PluggedRequest>>,
    /// How many insertions and merges a task is about to make.
    announced: HashMap<u32, u64>,
    /// The plug whose requests are being inserted.
    open: Option<OpenPlug>,
}

#[derive(Debug)]
struct PluggedRequest {
    sector: u64,
    end: u64,
    write: bool,
    /// When it was allocated, in nanoseconds.
    since: u64,
}

impl PluggedRequest {
    fn is(&self, event: &Event) -> bool {
        let end = event.sector + u64::from(event.nr_sectors());
        (self.sector, self.end, self.write) == (event.sector, end, event.is_write())
    }
}

#[derive(Debug)]
struct OpenPlug {
    pid: u32,
    /// How many insertions and merges are still to come. `None` if no announcement said it.
    left: Option<u64>,
    /// The time of the last event that a choice must wait for.
    time: u64,
}

impl Plugs {
    /// A request was allocated for a bio, and waits in its task's plug.
    pub(super) fn hold(&mut self, event: &Event) {
        let end = event.sector + u64::from(event.nr_sectors());
        let held = PluggedRequest { sector: event.sector, end, write: event.is_write(), since: event.time };
        let all = self.held.entry(event.pid).or_default();
        all.push_back(held);
        if all.len() > MOST_HELD {
            all.pop_front();
        }
    }

    /// Called when a task announces that it is about to insert requests, and the trace confirms so many insertions and
    /// merges.
    pub(super) fn announce(&mut self, count: u64, event: &Event) {
        self.announced.insert(event.pid, count);
    }

    /// Returns true if a merge goes into a request that is still in its task's plug, which no scheduler has seen.
    /// Returns false if a request leaves its plug because it merges into a request that waits; then the plug forgets
    /// it.
    pub(super) fn grow(&mut self, event: &Event) -> bool {
        let Some(held) = self.held.get_mut(&event.pid) else { return false };
        let end = event.sector + u64::from(event.nr_sectors());
        for rq in held.iter_mut().filter(|rq| rq.write == event.is_write()) {
            if event.action == Action::BackMerge && rq.end == event.sector {
                rq.end = end;
                return true;
            }
            if event.action == Action::FrontMerge && rq.sector == end {
                rq.sector = event.sector;
                return true;
            }
        }
        held.retain(|rq| !rq.is(event));
        false
    }

    /// True if the request that `event` is about is still in its task's plug.
    pub(super) fn holds(&self, event: &Event) -> bool {
        self.held.get(&event.pid).is_some_and(|held| held.iter().any(|rq| rq.is(event)))
    }

    /// Called when a request was issued that was never inserted.
    pub(super) fn forget(&mut self, event: &Event) {
        for held in self.held.values_mut() {
            if let Some(at) = held.iter().position(|rq| rq.sector == event.sector && rq.write == event.is_write()) {
                held.swap_remove_back(at);
                return;
            }
        }
    }

    /// When the request that is about to be inserted was allocated, in nanoseconds, if the trace says it.
    pub(super) fn allocated(&self, event: &Event) -> Option<u64> {
        let held = self.held.get(&event.pid)?;
        held.iter().find(|rq| rq.sector == event.sector && rq.write == event.is_write()).map(|rq| rq.since)
    }

    /// Called when a request was inserted. Returns true if it was the last one of its plug.
    pub(super) fn insert(&mut self, event: &Event) -> bool {
        if let Some(held) = self.held.get_mut(&event.pid)
            && let Some(at) = held.iter().position(|rq| rq.sector == event.sector && rq.write == event.is_write())
        {
            held.swap_remove_back(at);
        }
        let left = self.left(event).map(|left| left.saturating_sub(1));
        self.open = (left != Some(0)).then_some(OpenPlug { pid: event.pid, left, time: event.time });
        left == Some(0)
    }

    /// Called when a request or a bio merged into a request that waits. Returns true if it was a request, and the last
    /// one of its plug.
    pub(super) fn merge(&mut self, event: &Event) -> bool {
        let Some(left) = self.left(event).map(|left| left.saturating_sub(1)) else { return false };
        self.open = (left > 0).then_some(OpenPlug { pid: event.pid, left: Some(left), time: event.time });
        left == 0
    }

    /// How many insertions and merges of the plug that a task empties are still to come, if an announcement said it.
    fn left(&mut self, event: &Event) -> Option<u64> {
        match &self.open {
            Some(open) if open.pid == event.pid => open.left,
            _ => self.announced.remove(&event.pid),
        }
    }

    /// The time of the last insertion of the plug that `event` shows to be empty.
    ///
    /// Announced insertions are all made before the task does anything else, and before another task inserts. A
    /// completion may come in between, because it interrupts, and so may events of another CPU. If no number was
    /// announced, the run ends with the first event that is not a further insertion by the same task.
    pub(super) fn closed_by(&mut self, event: &Event) -> Option<u64> {
        let open = self.open.as_ref()?;
        let own = open.pid == event.pid;
        let goes_on = match event.action {
            Action::Insert => own,
            Action::BackMerge | Action::FrontMerge | Action::Complete => open.left.is_some(),
            _ => open.left.is_some() && !own,
        };
        if goes_on { None } else { self.open.take().map(|open| open.time) }
    }

    /// After an issue. Returns true if the next choice has to wait for insertions in progress, which hold the
    /// scheduler's lock.
    pub(super) fn postpone(&mut self, event: &Event) -> bool {
        if let Some(open) = &mut self.open {
            open.time = event.time;
        }
        self.open.is_some()
    }
}
