//! How often our scheduler decided as Linux's BFQ did.

use std::collections::HashMap;

use serde::Serialize;

use super::matching::Matching;
use super::share::Share;
use crate::blktrace::{Action, Category, Event};
use crate::order::{Answer, Decision, Expired, Line, Queue, Replayed, Step};

/// A kind of choice that occurs less often is not judged by.
const FEWEST: usize = 20;

/// A waiting request is known by its place until it was served, or at least so many later ones were inserted.
const MOST_PLACES: u64 = 262_144;

/// What is counted of one recording.
///
/// A choice is contested if requests of several processes wait, or if Linux answered with nothing although a request
/// waits. Of what is waited for by nobody all is one process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Score {
    /// How often the device asked.
    pub asks: usize,
    /// Contested choices by which Linux stayed with the process that it served last.
    pub stay: Share,
    /// Contested choices by which it went to another one.
    pub switch: Share,
    /// Contested choices by which it answered with nothing.
    pub nothing: Share,
    /// Where both chose the same process, of which several requests wait: whether it is the same request.
    pub inside: Share,
    /// Linux's expirations, and those of them that our scheduler made by itself: of the same queue, for the same
    /// reason, within 4 ms.
    pub expired: Share,
    /// All that our scheduler expired by itself.
    pub made: usize,
}

impl Score {
    /// All contested choices.
    #[must_use]
    pub fn contested(&self) -> Share {
        let kinds = [self.stay, self.switch, self.nothing];
        Share { all: kinds.iter().map(|kind| kind.all).sum(), alike: kinds.iter().map(|kind| kind.alike).sum() }
    }

    /// The mean of the parts of those kinds of contested choice of which there are 20 or more; `None` if there is no
    /// such kind.
    #[must_use]
    pub fn balanced(&self) -> Option<f64> {
        let kinds = [self.stay, self.switch, self.nothing].into_iter().filter(|kind| kind.all >= FEWEST);
        let parts: Vec<f64> = kinds.filter_map(Share::part).collect();
        (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64)
    }
}

/// Counts the steps of a replay.
#[derive(Debug, Default)]
pub struct Scoring {
    score: Score,
    waiting_requests: WaitingRequests,
    matching: Matching,
    /// What our scheduler answered, until Linux does.
    asked: Option<Answer>,
}

impl Scoring {
    /// Counts the next step.
    pub fn add(&mut self, replayed: &Replayed) {
        self.score.made += replayed.expired.len();
        replayed.expired.iter().for_each(|expired| self.matching.ours(expired));
        let known = match &replayed.step {
            Step::Event(event) => {
                self.waiting_requests.apply(event);
                (event.action == Action::Complete).then_some(event.time)
            }
            Step::Line(line) => {
                self.decide(line, replayed.answer);
                replayed.answer.map(|answer| answer.time)
            }
        };
        // At a completion and a question our scheduler expires all that is due.
        if let Some(known) = known {
            self.matching.count_before(known, &mut self.score.expired);
        }
    }

    /// What was counted.
    #[must_use]
    pub fn finish(mut self) -> Score {
        self.matching.count_all(&mut self.score.expired);
        self.score
    }

    /// Linux decided something; `answer` is ours if the device asked.
    fn decide(&mut self, line: &Line, answer: Option<Answer>) {
        let sector = match line.what {
            Decision::Ask => {
                self.asked = answer;
                self.score.asks += 1;
                return;
            }
            Decision::Expire(queue, reason) => {
                return self.matching.linux(Expired { time: line.time, queue, reason });
            }
            Decision::Slot(_) => return,
            Decision::Serve(_, sector) => Some(sector),
            Decision::Nothing => None,
        };
        if let Some(ours) = self.asked.take() {
            self.answer(sector, ours);
        }
    }

    /// Linux answered: with the request at this sector, or with nothing.
    fn answer(&mut self, sector: Option<u64>, ours: Answer) {
        let Self { score, waiting_requests, .. } = self;
        let linux = match sector.map(|sector| waiting_requests.places.get(&sector).map(|(_, queue)| *queue)) {
            // The recording began with this request already waiting.
            Some(None) => return,
            Some(known) => known,
            None => None,
        };
        let is_alike = ours.rq.map(|(queue, _)| queue) == linux;
        if let (Some(queue), true) = (linux, is_alike)
            && waiting_requests.waiting.get(&queue).copied().unwrap_or(0) >= 2
        {
            score.inside.add(ours.rq.map(|(_, sector)| sector) == sector);
        }
        let processes = waiting_requests.waiting.values().filter(|count| **count != 0).count();
        if processes >= 2 || processes == 1 && linux.is_none() {
            let kind = match linux {
                None => &mut score.nothing,
                Some(_) if linux == waiting_requests.last => &mut score.stay,
                Some(_) => &mut score.switch,
            };
            kind.add(is_alike);
        }
        if let (Some(queue), Some(sector)) = (linux, sector) {
            *waiting_requests.waiting.entry(queue).or_default() -= 1;
            waiting_requests.places.remove(&sector);
            waiting_requests.last = Some(queue);
        }
    }
}

/// What waits, by a book of its own: whose request begins at a sector, and how many each process has.
#[derive(Debug, Default)]
struct WaitingRequests {
    /// Each with the number of its insertion.
    places: HashMap<u64, (u64, Queue)>,
    nr_insertions: u64,
    waiting: HashMap<Queue, i64>,
    /// The process that was served last.
    last: Option<Queue>,
}

impl WaitingRequests {
    fn apply(&mut self, event: &Event) {
        match event.action {
            Action::Insert => {
                let sync = !event.is_write() || event.category.contains(Category::SYNC);
                let queue = if sync { Queue::Sync(event.pid) } else { Queue::Async };
                self.places.insert(event.sector, (self.nr_insertions, queue));
                self.nr_insertions += 1;
                if self.nr_insertions.is_multiple_of(MOST_PLACES) {
                    // One that another request absorbed is never served.
                    let horizon = self.nr_insertions - MOST_PLACES;
                    self.places.retain(|_, (number, _)| *number >= horizon);
                }
                *self.waiting.entry(queue).or_default() += 1;
            }
            Action::FrontMerge => {
                let end = event.sector.saturating_add(u64::from(event.nr_sectors()));
                if let Some(queue) = self.places.remove(&end) {
                    self.places.insert(event.sector, queue);
                }
            }
            _ => {}
        }
    }
}
