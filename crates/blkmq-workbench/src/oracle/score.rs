//! How often our scheduler decided as Linux's BFQ did.

use std::collections::HashMap;

use serde::Serialize;

use crate::blktrace::{Action, Category, Event};
use crate::order::{Answers, Decision, Expired, Linux, Queue, Step};

/// A kind of choice that occurs less often is not judged by.
const FEWEST: usize = 20;

/// An expiry of ours is Linux's if it is no further from it, in nanoseconds.
const NEAR_NS: u64 = 4_000_000;

/// How many there were, and on how many both agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Share {
    /// All of them.
    pub all: usize,
    /// Those on which both agree.
    pub alike: usize,
}

impl Share {
    fn add(&mut self, is_alike: bool) {
        self.all += 1;
        self.alike += usize::from(is_alike);
    }

    /// The part on which both agree, from 0 to 1; `None` if there were none.
    #[must_use]
    pub fn part(self) -> Option<f64> {
        (self.all > 0).then(|| self.alike as f64 / self.all as f64)
    }
}

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

    /// Counts.
    #[must_use]
    pub fn of(linux: Linux<'_>, ours: &Answers) -> Self {
        let mut book = Book::default();
        let mut score = Self::default();
        let mut asked = None;
        let mut expired = Vec::new();
        for step in linux.steps() {
            let line = match step {
                Step::Event(event) => {
                    book.hear(event);
                    continue;
                }
                Step::Line(line) => line,
            };
            let sector = match line.what {
                Decision::Ask => {
                    asked = Some(score.asks);
                    score.asks += 1;
                    continue;
                }
                Decision::Expire(queue, reason) => {
                    expired.push(Expired { time: line.time, queue, reason });
                    continue;
                }
                Decision::Slot(_) => continue,
                Decision::Serve(_, sector) => Some(sector),
                Decision::Nothing => None,
            };
            if let Some(ask) = asked.take() {
                score.answer(&mut book, sector, ours, ask);
            }
        }
        score.expired = matched(&expired, &ours.expired);
        score.made = ours.expired.len();
        score
    }

    /// Linux answered: with the request at this sector, or with nothing.
    fn answer(&mut self, book: &mut Book, sector: Option<u64>, ours: &Answers, ask: usize) {
        let linux = match sector.map(|sector| book.places.get(&sector).copied()) {
            // The recording began with this request already waiting.
            Some(None) => return,
            Some(known) => known,
            None => None,
        };
        let rq = ours.answers.get(ask).and_then(|answer| answer.rq);
        let is_alike = ours.answers.get(ask).is_some() && rq.map(|(queue, _)| queue) == linux;
        if let (Some(queue), true) = (linux, is_alike)
            && book.waiting.get(&queue).copied().unwrap_or(0) >= 2
        {
            self.inside.add(rq.map(|(_, sector)| sector) == sector);
        }
        let processes = book.waiting.values().filter(|count| **count != 0).count();
        if processes >= 2 || processes == 1 && linux.is_none() {
            let kind = match linux {
                None => &mut self.nothing,
                Some(_) if linux == book.last => &mut self.stay,
                Some(_) => &mut self.switch,
            };
            kind.add(is_alike);
        }
        if let (Some(queue), Some(sector)) = (linux, sector) {
            *book.waiting.entry(queue).or_default() -= 1;
            book.places.remove(&sector);
            book.last = Some(queue);
        }
    }
}

/// What waits, by a book of its own: whose request begins at a sector, and how many each process has.
#[derive(Debug, Default)]
struct Book {
    places: HashMap<u64, Queue>,
    waiting: HashMap<Queue, i64>,
    /// The process that was served last.
    last: Option<Queue>,
}

impl Book {
    fn hear(&mut self, event: &Event) {
        match event.action {
            Action::Insert => {
                let sync = !event.is_write() || event.category.contains(Category::SYNC);
                let queue = if sync { Queue::Sync(event.pid) } else { Queue::Async };
                self.places.insert(event.sector, queue);
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

/// How many of Linux's expirations have one of ours near them that belongs to no other.
fn matched(linux: &[Expired], ours: &[Expired]) -> Share {
    let mut left: HashMap<_, Vec<u64>> = HashMap::new();
    for expired in ours {
        left.entry((expired.queue, expired.reason)).or_default().push(expired.time);
    }
    let mut share = Share::default();
    for expired in linux {
        let times = left.entry((expired.queue, expired.reason)).or_default();
        let nearest = (0..times.len()).min_by_key(|at| times[*at].abs_diff(expired.time));
        let nearest = nearest.filter(|at| times[*at].abs_diff(expired.time) <= NEAR_NS);
        if let Some(at) = nearest {
            times.remove(at);
        }
        share.add(nearest.is_some());
    }
    share
}
