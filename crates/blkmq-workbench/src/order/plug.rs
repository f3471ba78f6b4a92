//! When a plug has been emptied into the scheduler, and which requests are still in a plug.

use std::collections::HashMap;

use crate::blktrace::{Action, Event};

/// The plugs of all tasks.
///
/// Linux inserts the requests of a plug under one hold of the scheduler's lock and asks for a choice after it. A trace
/// announces a plug's number of requests (`U`) before it shows their insertions (`I`), or that they merged (`M`).
#[derive(Debug)]
pub(super) struct Plugs {
    /// How many insertions and merges follow each announcement, for announcements that the trace confirms.
    believed: HashMap<usize, u64>,
    /// Requests that were allocated and not yet inserted, by task.
    held: HashMap<u32, Vec<Held>>,
    /// How many insertions and merges a task is about to make.
    announced: HashMap<u32, u64>,
    /// The plug whose requests are being inserted.
    open: Option<Open>,
}

#[derive(Debug)]
struct Held {
    sector: u64,
    end: u64,
    write: bool,
    /// When it was allocated, in nanoseconds.
    since: u64,
}

impl Held {
    fn is(&self, event: &Event<'_>) -> bool {
        let end = event.sector + u64::from(event.nr_sectors());
        (self.sector, self.end, self.write) == (event.sector, end, event.is_write())
    }
}

#[derive(Debug)]
struct Open {
    pid: u32,
    /// How many insertions and merges are still to come. `None` if no announcement said it.
    left: Option<u64>,
    /// The time of the last event that a choice must wait for.
    time: u64,
}

impl Plugs {
    /// The plugs of a trace. An announcement that the next events of its task contradict is ignored. The plug then ends
    /// where the unbroken run of its insertions ends.
    pub(super) fn new(events: &[Event<'_>]) -> Self {
        let mut believed = HashMap::new();
        // For each task, from the end of the trace backwards: the insertions and merges until the task does anything
        // else.
        let mut runs: HashMap<u32, (u64, u64)> = HashMap::new();
        for (index, event) in events.iter().enumerate().rev() {
            let (inserted, merged) = runs.entry(event.pid).or_default();
            match event.action {
                Action::Insert => *inserted += 1,
                Action::BackMerge | Action::FrontMerge => *merged += 1,
                // A completion is an interrupt, and a notice is not about I/O.
                Action::Complete | Action::Notify | Action::Message => {}
                _ => {
                    // A request can merge, and the request that it merged into can then merge too.
                    let fits = |count: u64| *inserted > 0 && (*inserted..=*inserted + *merged).contains(&count);
                    if event.plugged().is_some_and(fits) {
                        believed.insert(index, *inserted + *merged);
                    }
                    (*inserted, *merged) = (0, 0);
                }
            }
        }
        Self { believed, held: HashMap::new(), announced: HashMap::new(), open: None }
    }

    /// A request was allocated for a bio, and waits in its task's plug.
    pub(super) fn hold(&mut self, event: &Event<'_>) {
        let end = event.sector + u64::from(event.nr_sectors());
        let held = Held { sector: event.sector, end, write: event.is_write(), since: event.time };
        self.held.entry(event.pid).or_default().push(held);
    }

    /// Called for the event of this number, by which a task announces how many requests it is about to insert.
    pub(super) fn announce(&mut self, index: usize, event: &Event<'_>) {
        if let Some(count) = self.believed.remove(&index) {
            self.announced.insert(event.pid, count);
        }
    }

    /// Returns true if a merge goes into a request that is still in its task's plug, which no scheduler has seen.
    /// Returns false if a request leaves its plug because it merges into a request that waits; then the plug forgets
    /// it.
    pub(super) fn grow(&mut self, event: &Event<'_>) -> bool {
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
    pub(super) fn holds(&self, event: &Event<'_>) -> bool {
        self.held.get(&event.pid).is_some_and(|held| held.iter().any(|rq| rq.is(event)))
    }

    /// Called when a request was issued that was never inserted.
    pub(super) fn forget(&mut self, event: &Event<'_>) {
        for held in self.held.values_mut() {
            if let Some(at) = held.iter().position(|rq| rq.sector == event.sector && rq.write == event.is_write()) {
                held.swap_remove(at);
                return;
            }
        }
    }

    /// When the request that is about to be inserted was allocated, in nanoseconds, if the trace says it.
    pub(super) fn allocated(&self, event: &Event<'_>) -> Option<u64> {
        let held = self.held.get(&event.pid)?;
        held.iter().find(|rq| rq.sector == event.sector && rq.write == event.is_write()).map(|rq| rq.since)
    }

    /// Called when a request was inserted. Returns true if it was the last one of its plug.
    pub(super) fn insert(&mut self, event: &Event<'_>) -> bool {
        if let Some(held) = self.held.get_mut(&event.pid)
            && let Some(at) = held.iter().position(|rq| rq.sector == event.sector && rq.write == event.is_write())
        {
            held.swap_remove(at);
        }
        let left = self.left(event).map(|left| left.saturating_sub(1));
        self.open = (left != Some(0)).then_some(Open { pid: event.pid, left, time: event.time });
        left == Some(0)
    }

    /// Called when a request or a bio merged into a request that waits. Returns true if it was a request, and the last
    /// one of its plug.
    pub(super) fn merge(&mut self, event: &Event<'_>) -> bool {
        let Some(left) = self.left(event).map(|left| left.saturating_sub(1)) else { return false };
        self.open = (left > 0).then_some(Open { pid: event.pid, left: Some(left), time: event.time });
        left == 0
    }

    /// How many insertions and merges of the plug that a task empties are still to come, if an announcement said it.
    fn left(&mut self, event: &Event<'_>) -> Option<u64> {
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
    pub(super) fn closed_by(&mut self, event: &Event<'_>) -> Option<u64> {
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
    pub(super) fn postpone(&mut self, event: &Event<'_>) -> bool {
        if let Some(open) = &mut self.open {
            open.time = event.time;
        }
        self.open.is_some()
    }
}
