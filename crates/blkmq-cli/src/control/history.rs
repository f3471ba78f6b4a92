//! What each client of a queue has received, and what was its due, second by second for a minute. The watch over a
//! server's queues looks at them and writes here; answers read.

use std::collections::{BTreeMap, VecDeque};

use blkmq::{ClientId, IoPriority};

use super::due::{Demand, Weighing, due};
use super::schema::{Parts, Share};

/// Seconds that are kept.
const KEPT: u64 = 60;

/// A client at one look.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Another one when it has come again.
    pub(crate) id: ClientId,
    pub(crate) name: String,
    pub(crate) weight: u16,
    pub(crate) priority: IoPriority,
    /// The path of its group; empty for the root.
    pub(crate) group: String,
    pub(crate) connections: u32,
    /// Operations that are not over.
    pub(crate) outstanding: u64,
    /// Requests that the device does not have yet.
    pub(crate) waiting: u64,
    /// Sectors that were read, written and discarded since the client came.
    pub(crate) sectors: u64,
}

/// A second in which a client had something outstanding.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Second {
    number: u64,
    received: u64,
    due: f64,
    /// The looks at which the client had something outstanding, and something waiting, of all looks of the second.
    busy: u32,
    waited: u32,
    looks: u32,
}

/// What is known of a client.
#[derive(Debug, Default)]
struct Past {
    /// The client at the latest look at which it was there.
    seen: Option<Seen>,
    is_here: bool,
    /// Its sectors when the present second began, or 0 if it has come since.
    before: u64,
    /// What it received in the present second before it came again.
    left: u64,
    busy: u32,
    waited: u32,
    seconds: VecDeque<Second>,
}

/// What a queue's clients received, and their due.
#[derive(Debug, Default)]
pub(crate) struct History {
    clients: BTreeMap<String, Past>,
    /// Looks in the present second.
    looks: u32,
    /// The second that ended last.
    latest: u64,
    /// Sectors of each second in which there were any.
    sums: VecDeque<(u64, u64)>,
}

impl Second {
    /// Whether the client had something outstanding so often that more would not have helped it. A client that asks
    /// again as soon as it is answered has nothing outstanding while the answer is under way; so not each look has to
    /// find something.
    fn takes_all(&self) -> bool {
        self.busy > 0 && 4 * self.busy >= self.looks
    }

    /// Whether the client used all of its service, and its requests waited for those of others.
    fn waits(&self) -> bool {
        self.takes_all() && 2 * self.waited >= self.looks
    }
}

impl History {
    /// Notes the clients that are there. Returns whether something is outstanding, so that there is more to see in the
    /// present second.
    pub(crate) fn look(&mut self, seen: Vec<Seen>) -> bool {
        self.looks += 1;
        let is_busy = seen.iter().any(|seen| seen.outstanding > 0);
        self.clients.values_mut().for_each(|past| past.is_here = false);
        for seen in seen {
            let past = self.clients.entry(seen.name.clone()).or_default();
            past.busy += u32::from(seen.outstanding > 0);
            past.waited += u32::from(seen.waiting > 0);
            // One that has come again counts from 0.
            if let Some(gone) = past.seen.as_ref().filter(|gone| gone.id != seen.id) {
                past.left += gone.sectors - std::mem::take(&mut past.before);
            }
            (past.is_here, past.seen) = (true, Some(seen));
        }
        is_busy
    }

    /// Ends the second `now`, at a look. `groups`: paths and weights, each behind its parent.
    pub(super) fn end_second(&mut self, now: u64, groups: &[(String, u16)], weighing: Weighing) {
        let looks = std::mem::take(&mut self.looks);
        self.latest = now;
        let mut seconds = BTreeMap::new();
        for (name, past) in &mut self.clients {
            let Some(seen) = &past.seen else { continue };
            let received = std::mem::take(&mut past.left) + seen.sectors - past.before;
            let (busy, waited) = (std::mem::take(&mut past.busy), std::mem::take(&mut past.waited));
            past.before = seen.sectors;
            if received > 0 || busy > 0 {
                seconds.insert(name.clone(), Second { number: now, received, due: 0.0, busy, waited, looks });
            }
        }
        let sum: u64 = seconds.values().map(|second| second.received).sum();
        let demands: Vec<_> = seconds
            .iter()
            .filter_map(|(name, second)| {
                let seen = self.clients.get(name)?.seen.as_ref()?;
                let sectors = (!second.takes_all()).then_some(second.received as f64);
                Some(Demand { group: &seen.group, weight: seen.weight, priority: seen.priority, sectors })
            })
            .collect();
        let parts = due(sum as f64, groups, &demands, weighing);
        for ((name, second), due) in seconds.into_iter().zip(parts) {
            if let Some(past) = self.clients.get_mut(&name) {
                past.seconds.push_back(Second { due, ..second });
            }
        }
        if sum > 0 {
            self.sums.push_back((now, sum));
        }
        let is_old = |number: u64| number + KEPT <= now;
        while self.sums.front().is_some_and(|(number, _)| is_old(*number)) {
            self.sums.pop_front();
        }
        for past in self.clients.values_mut() {
            while past.seconds.front().is_some_and(|second| is_old(second.number)) {
                past.seconds.pop_front();
            }
        }
        self.clients.retain(|_, past| past.is_here || !past.seconds.is_empty());
    }

    /// Returns the shares of these clients of a queue, which are there now.
    pub(super) fn shares(&self, queue: &str, now: Vec<Seen>) -> Vec<Share> {
        let last = self.sums.back().filter(|(number, _)| *number == self.latest).map_or(0, |(_, sum)| *sum);
        let minute = self.sums.iter().map(|(_, sum)| sum).sum();
        let share = |seen: Seen| {
            let seconds = self.clients.get(&seen.name).map(|past| &past.seconds);
            let second = seconds.and_then(|seconds| seconds.back()).filter(|second| second.number == self.latest);
            Share {
                queue: queue.to_owned(),
                client: seen.name,
                group: Some(seen.group).filter(|path| !path.is_empty()),
                weight: seen.weight,
                connections: seen.connections,
                second: Parts::of(second.into_iter(), last),
                minute: Parts::of(seconds.into_iter().flatten(), minute),
                outstanding: seen.outstanding,
                waiting: seen.waiting,
                waits: second.is_some_and(Second::waits),
                asks_for_less: second.is_some_and(|second| !second.takes_all()),
            }
        };
        now.into_iter().map(share).collect()
    }
}

impl Parts {
    fn of<'a>(seconds: impl Iterator<Item = &'a Second>, sum: u64) -> Self {
        let (received, due) =
            seconds.fold((0, 0.0), |(received, due), second| (received + second.received, due + second.due));
        let part = |sectors: f64| (sum > 0).then(|| sectors / sum as f64);
        Self { due: part(due), received: part(received as f64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has something outstanding at each look, if `outstanding` is not 0.
    fn seen(name: &str, weight: u16, outstanding: u64, sectors: u64) -> Seen {
        let (name, group, waiting) = (name.to_owned(), String::new(), outstanding.saturating_sub(1));
        let (id, priority) = (ClientId::new(0, 1), IoPriority::default());
        Seen { id, name, weight, priority, group, connections: 1, outstanding, waiting, sectors }
    }

    /// Looks four times in a second, each time at the same.
    fn second(history: &mut History, now: u64, clients: &[Seen]) {
        (0..4).for_each(|_| _ = history.look(clients.to_vec()));
        history.end_second(now, &[], Weighing::Plain);
    }

    /// Whether a client waits, and whether it asks for less.
    type Doing = (bool, bool);
    const WAITS: Doing = (true, false);
    const ASKS_FOR_LESS: Doing = (false, true);
    const NEITHER: Doing = (false, false);

    /// What a client does, and its due and received parts of the last second and minute, in percent.
    fn shares_of(history: &History, name: &str) -> (Doing, [Option<u32>; 4]) {
        let Share { waits, asks_for_less, second, minute, .. } =
            history.shares("q", vec![seen(name, 1, 0, 0)]).remove(0);
        let percent = |part: Option<f64>| part.map(|part| (part * 100.0).round() as u32);
        ((waits, asks_for_less), [second.due, second.received, minute.due, minute.received].map(percent))
    }

    /// Red if the minute is not what its seconds were together, weighed by what went in each, or if a second that is
    /// over counts as the last one.
    #[test]
    fn shares_are_of_the_last_second_and_of_the_last_minute() {
        let mut history = History::default();
        assert_eq!(shares_of(&history, "a"), (NEITHER, [None; 4]), "it has just come");
        second(&mut history, 1, &[seen("a", 300, 9, 600), seen("b", 100, 9, 400)]);
        assert_eq!(shares_of(&history, "a"), (WAITS, [Some(75), Some(60), Some(75), Some(60)]));
        assert_eq!(shares_of(&history, "b"), (WAITS, [Some(25), Some(40), Some(25), Some(40)]));
        // 3000 sectors more for a alone, which has one request at a time.
        second(&mut history, 2, &[seen("a", 300, 1, 3600), seen("b", 100, 0, 400)]);
        assert_eq!(shares_of(&history, "a"), (NEITHER, [Some(100), Some(100), Some(94), Some(90)]));
        assert_eq!(shares_of(&history, "b"), (NEITHER, [Some(0), Some(0), Some(6), Some(10)]));
        second(&mut history, 3, &[seen("a", 300, 0, 3600), seen("b", 100, 0, 400)]);
        assert_eq!(shares_of(&history, "a"), (NEITHER, [None, None, Some(94), Some(90)]));
        second(&mut history, 61, &[seen("a", 300, 0, 3600), seen("b", 100, 0, 400)]);
        assert_eq!(shares_of(&history, "b"), (NEITHER, [None, None, Some(0), Some(0)]), "the first second is past");
        second(&mut history, 62, &[seen("a", 300, 0, 3600), seen("b", 100, 0, 400)]);
        assert_eq!(shares_of(&history, "b").1, [None; 4]);
        assert!(
            history.sums.is_empty() && history.clients.values().all(|past| past.seconds.is_empty()),
            "nothing is kept"
        );
    }

    /// Red if a client that pauses between requests is taken for one that is kept from more, or if one that pauses for
    /// the way of an answer is taken for one that wants no more.
    #[test]
    fn who_asks_for_less_gets_what_it_asks_for() {
        let mut history = History::default();
        let flood = seen("flood", 100, 9, 900);
        for look in 0..16 {
            history.look(vec![
                flood.clone(),
                seen("calm", 100, u64::from(look % 8 == 0), 100),
                seen("eager", 100, look % 2, 200),
            ]);
        }
        history.end_second(1, &[], Weighing::Plain);
        assert_eq!(shares_of(&history, "calm"), (ASKS_FOR_LESS, [Some(8), Some(8), Some(8), Some(8)]));
        assert_eq!(shares_of(&history, "eager"), (NEITHER, [Some(46), Some(17), Some(46), Some(17)]));
        assert_eq!(shares_of(&history, "flood"), (WAITS, [Some(46), Some(75), Some(46), Some(75)]));
    }

    /// Red if what a client received before it left is lost to the others' shares, if a client that is gone is kept for
    /// ever, or if one that comes again receives what it had received before.
    #[test]
    fn a_client_that_leaves_counts_for_the_past() {
        let mut history = History::default();
        history.look(vec![seen("a", 100, 1, 100), seen("b", 100, 1, 300)]);
        history.look(vec![seen("a", 100, 1, 100)]);
        history.end_second(1, &[], Weighing::Plain);
        assert_eq!(shares_of(&history, "a"), (NEITHER, [Some(50), Some(25), Some(50), Some(25)]));
        let again = Seen { id: ClientId::new(0, 2), ..seen("b", 100, 1, 100) };
        second(&mut history, 2, &[seen("a", 100, 1, 200), again]);
        assert_eq!(shares_of(&history, "b"), (NEITHER, [Some(50), Some(50), Some(50), Some(67)]));
        second(&mut history, 3, &[]);
        second(&mut history, 100, &[]);
        assert!(history.clients.is_empty());
    }

    /// Red if a client that has come again, and has received as much as before or more, counts as the one before; or if
    /// what the one before received in this second is lost.
    #[test]
    fn a_client_that_has_come_again_begins_anew() {
        let again = |id, sectors| Seen { id: ClientId::new(0, id), ..seen("a", 100, 1, sectors) };
        let mut history = History::default();
        second(&mut history, 1, &[again(1, 1000), seen("b", 100, 1, 1000)]);
        // Each second another connection of the client reads as much.
        second(&mut history, 2, &[again(2, 1000), seen("b", 100, 1, 2000)]);
        assert_eq!(shares_of(&history, "a").1, [Some(50); 4]);
        for one in [again(2, 1500), again(3, 500), again(4, 3000)] {
            history.look(vec![one, seen("b", 100, 1, 2000)]);
        }
        history.end_second(3, &[], Weighing::Plain);
        assert_eq!(shares_of(&history, "a").1[1], Some(100));
        assert_eq!(history.sums.back(), Some(&(3, 4000)));
    }

    /// Red if a second is written in which nothing was asked for.
    #[test]
    fn nothing_is_noted_while_nothing_happens() {
        let mut history = History::default();
        second(&mut history, 1, &[seen("a", 100, 9, 600)]);
        for now in 2..9 {
            assert!(!history.look(vec![seen("a", 100, 0, 600)]), "there is nothing more to see");
            history.end_second(now, &[], Weighing::Plain);
        }
        assert_eq!((history.clients["a"].seconds.len(), history.sums.len()), (1, 1));
    }
}
