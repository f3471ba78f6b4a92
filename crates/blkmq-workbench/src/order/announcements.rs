//! Which announcements of a plug's number of requests the trace confirms.

use std::collections::{HashMap, VecDeque};

use crate::TextError;
use crate::blktrace::{Action, Event};

/// How many events are read ahead to see whether a task inserts what it announced. A task inserts the requests of a
/// plug without a pause, so a plug whose insertions are further apart does not occur.
const LOOK_AHEAD: usize = 16_384;

/// Events, each with the number of insertions and merges that follow it if it is an announcement which the trace
/// confirms.
///
/// An announcement that the next events of its task contradict has no number. The plug then ends where the unbroken run
/// of its insertions ends.
#[derive(Debug)]
pub(super) struct Announcements<I> {
    events: I,
    ahead: VecDeque<(Event, Option<u64>)>,
    /// How many events were returned.
    returned: u64,
    /// The announcements of tasks that have done nothing since but insert and merge.
    open: HashMap<u32, Announcement>,
    /// The first error of `events`, which follows the events before it.
    fault: Option<TextError>,
}

#[derive(Debug)]
struct Announcement {
    /// The number of its event.
    event: u64,
    /// How many requests the plug has.
    count: u64,
    inserted: u64,
    merged: u64,
}

impl Announcement {
    /// The insertions and merges, if the announcement fits them. A request can merge, and the request that it merged
    /// into can then merge too.
    fn confirmed(&self) -> Option<u64> {
        let most = self.inserted + self.merged;
        (self.inserted > 0 && (self.inserted..=most).contains(&self.count)).then_some(most)
    }
}

impl<I: Iterator<Item = Result<Event, TextError>>> Announcements<I> {
    pub(super) fn new(events: I) -> Self {
        Self { events, ahead: VecDeque::new(), returned: 0, open: HashMap::new(), fault: None }
    }

    /// Reads until enough events are ahead, or there are no more.
    fn fill(&mut self) {
        while self.ahead.len() < LOOK_AHEAD && self.fault.is_none() {
            match self.events.next() {
                Some(Ok(event)) => self.note(event),
                Some(Err(fault)) => self.fault = Some(fault),
                None => return,
            }
        }
    }

    fn note(&mut self, event: Event) {
        match event.action {
            Action::Insert | Action::BackMerge | Action::FrontMerge => {
                if let Some(open) = self.open.get_mut(&event.pid) {
                    let is_insertion = event.action == Action::Insert;
                    *(if is_insertion { &mut open.inserted } else { &mut open.merged }) += 1;
                }
            }
            // A completion is an interrupt, and a notice is not about I/O.
            Action::Complete | Action::Notify | Action::Message => {}
            _ => {
                if let Some(open) = self.open.remove(&event.pid) {
                    self.close(&open);
                }
                if let Some(count) = event.plugged() {
                    let number = self.returned + self.ahead.len() as u64;
                    self.open.insert(event.pid, Announcement { event: number, count, inserted: 0, merged: 0 });
                }
            }
        }
        self.ahead.push_back((event, None));
    }

    /// Ends the run of insertions and merges behind an announcement.
    fn close(&mut self, announcement: &Announcement) {
        let at = usize::try_from(announcement.event - self.returned).expect("it is within the look-ahead");
        self.ahead[at].1 = announcement.confirmed();
    }
}

impl<I: Iterator<Item = Result<Event, TextError>>> Iterator for Announcements<I> {
    type Item = Result<(Event, Option<u64>), TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.fill();
        if let Some((event, _)) = self.ahead.front() {
            // The task has done nothing else within the look-ahead, or to the end of the trace.
            let is_this = |open: &&Announcement| open.event == self.returned;
            if self.open.get(&event.pid).filter(is_this).is_some()
                && let Some(open) = self.open.remove(&event.pid)
            {
                self.close(&open);
            }
        }
        match self.ahead.pop_front() {
            Some(next) => {
                self.returned += 1;
                Some(Ok(next))
            }
            None => self.fault.take().map(Err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(pid: u32, action: Action, payload: &[u8]) -> Event {
        Event { bytes: 4096, payload: payload.into(), ..Event::of_test(pid, action) }
    }

    /// What is said of the announcements of these events, in order.
    fn announced(events: Vec<Event>) -> Vec<Option<u64>> {
        let events = Announcements::new(events.into_iter().map(Ok)).map(|event| event.expect("none is an error"));
        events.filter(|(event, _)| event.action == Action::Unplug).map(|(_, announced)| announced).collect()
    }

    fn unplug(pid: u32, count: u64) -> Event {
        event(pid, Action::Unplug, &count.to_be_bytes())
    }

    /// Red if an announcement counts that the trace contradicts, or if events of other tasks, completions and messages
    /// cut the run of insertions.
    #[test]
    fn an_announcement_counts_if_the_next_events_of_its_task_fit_it() {
        let [insert, merge] = [Action::Insert, Action::BackMerge].map(|action| event(1, action, &[]));
        let others = [event(1, Action::Complete, &[]), event(1, Action::Message, &[]), event(2, Action::Issue, &[])];
        let queue = event(1, Action::Queue, &[]);
        let run = |count, then: &[&Event]| {
            let behind = then.iter().flat_map(|event| others.iter().cloned().chain([(*event).clone()]));
            [unplug(1, count)].into_iter().chain(behind).collect::<Vec<_>>()
        };
        assert_eq!(announced(run(2, &[&insert, &insert, &queue])), [Some(2)]);
        assert_eq!(announced(run(2, &[&insert, &insert])), [Some(2)], "the trace ends");
        assert_eq!(announced(run(2, &[&insert, &merge, &merge, &queue])), [Some(3)]);
        assert_eq!(announced(run(2, &[&insert, &queue, &insert])), [None]);
        assert_eq!(announced(run(1, &[&merge, &queue])), [None]);
        assert_eq!(announced([run(1, &[&insert]), run(2, &[&insert])].concat()), [Some(1), None]);
    }

    /// Red if events are held until a task that is silent does something else, which may be never.
    #[test]
    fn a_task_that_is_silent_is_not_waited_for_beyond_the_look_ahead() {
        let insert = event(1, Action::Insert, &[]);
        let beside = |number| vec![event(2, Action::Queue, &[]); number];
        let trace = |pause| [vec![unplug(1, 2), insert.clone()], beside(pause), vec![insert.clone()]].concat();
        assert_eq!(announced(trace(LOOK_AHEAD - 3)), [Some(2)]);
        assert_eq!(announced(trace(LOOK_AHEAD - 2)), [None]);
        let mut endless = Announcements::new(trace(5 * LOOK_AHEAD).into_iter().map(Ok));
        assert!(endless.next().is_some() && endless.ahead.len() < LOOK_AHEAD);
    }
}
