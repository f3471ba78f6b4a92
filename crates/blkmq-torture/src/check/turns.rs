//! kyber keeps its order. Its kinds of requests have turns of 16 reads, 8 writes, 1 discard and 1 other request. A turn
//! ends early only if nothing of its kind waits or there is no token for it. Then the next kind has its turn that has
//! something waiting and gets a token. Requests of one software queue and one kind are chosen in the order in which
//! they came, and only such requests merge. No two submitters are one software queue. Each value of the scheduler keeps
//! its own turns and lists. Requests that go to the head are apart: `order` knows about them.

use std::collections::{BTreeMap, VecDeque};

use blkmq_sched::{Info, InsertAt, RqId, SchedDomain};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::depth_tokens::NR_KINDS;
use super::table::{grown, pool};
use super::tracker::{Arrival, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "turns";

/// How many requests of each kind have a turn.
const TURNS: [u32; NR_KINDS] = [16, 8, 1, 1];

/// Software queues whose numbers differ.
const MOST_POOLS: u16 = 256;

/// A token that was asked for, and whether there was one.
type Ask = (SchedDomain, bool);

/// One value of the scheduler.
#[derive(Debug)]
struct Value {
    /// By software queue and kind: the requests that wait, in the order in which they came.
    lists: BTreeMap<(u8, usize), VecDeque<RqId>>,
    nr_waiting: [usize; NR_KINDS],
    /// Whose turn it is, and how many requests it has had in it.
    turn: SchedDomain,
    nr_had: u32,
    /// The requests that go to the head, the latest last.
    heads: Vec<RqId>,
    /// What was asked for the choice that is not told yet.
    asks: Vec<Ask>,
    /// The submitter whose software queue has this number.
    submitters: BTreeMap<u8, u16>,
}

impl Default for Value {
    fn default() -> Self {
        Self {
            lists: BTreeMap::new(),
            nr_waiting: [0; NR_KINDS],
            turn: SchedDomain::Read,
            nr_had: 0,
            heads: Vec::new(),
            asks: Vec::new(),
            submitters: BTreeMap::new(),
        }
    }
}

/// What a choice comes to.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Kind(SchedDomain),
    Nothing,
    /// Another token is to be asked for than was.
    Asks(SchedDomain),
}

impl Value {
    /// What comes of these answers, one for each token that was asked for. Sets the turn.
    fn choose(&mut self, asks: &[Ask]) -> Choice {
        let at = self.turn.index();
        let is_own_turn = self.nr_had < TURNS[at];
        let others = (1..=NR_KINDS).map(|step| SchedDomain::ALL[(at + step) % NR_KINDS]);
        let tries =
            is_own_turn.then_some(self.turn).into_iter().map(|of| (of, true)).chain(others.map(|of| (of, false)));
        let mut answers = asks.iter();
        for (of, goes_on) in tries.filter(|(of, _)| self.nr_waiting[of.index()] > 0) {
            match answers.next() {
                Some(&(asked, true)) if asked == of => {
                    (self.turn, self.nr_had) = (of, if goes_on { self.nr_had + 1 } else { 1 });
                    return Choice::Kind(of);
                }
                Some(&(asked, false)) if asked == of => {}
                _ => return Choice::Asks(of),
            }
        }
        // Who asks where nothing waits does not end the turn.
        if self.nr_waiting != [0; NR_KINDS] {
            self.nr_had = 0;
        }
        Choice::Nothing
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Turns {
    values: Vec<Value>,
}

impl Turns {
    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    fn inserted(&mut self, value: u16, rq: RqId, info: &Info, at: InsertAt) -> Verdict {
        let kind = SchedDomain::of(info.op);
        let value = self.value(value);
        if at == InsertAt::Head {
            value.heads.push(rq);
        } else {
            value.nr_waiting[kind.index()] += 1;
            value.lists.entry((info.ctx, kind.index())).or_default().push_back(rq);
        }
        let submitter = *value.submitters.entry(info.ctx).or_insert(pool(rq));
        if submitter == pool(rq) || submitter.max(pool(rq)) >= MOST_POOLS {
            return Ok(());
        }
        let what = format!("{} came from software queue {}, as {submitter}'s did", Request(rq), info.ctx);
        Err(Violation::new(RULE, what).request(rq))
    }

    fn chosen(&mut self, rq: RqId, tracker: &Tracker) -> Verdict {
        let Some(&Arrival { info: Some(info), value }) = tracker.arrival(rq) else { return Ok(()) };
        let (ctx, kind) = (info.ctx, SchedDomain::of(info.op));
        let value = self.value(value);
        let asks = std::mem::take(&mut value.asks);
        if let Some(at) = value.heads.iter().position(|head| *head == rq) {
            value.heads.remove(at);
            return Ok(());
        }
        let fail = |what: String| Err(Violation::new(RULE, what).request(rq));
        let (turn, nr_had) = (value.turn.name(), value.nr_had);
        match value.choose(&asks) {
            Choice::Kind(of) if of == kind => {}
            Choice::Asks(of) => {
                return fail(format!(
                    "{} was chosen, and a {} token was to be asked for: {nr_had} {turn} requests had their turn, the \
                     scheduler asked for {asks:?}, and {:?} of the kinds wait",
                    Request(rq),
                    of.name(),
                    value.nr_waiting
                ));
            }
            other => return fail(format!("{} was chosen, and the turns say {other:?}", Request(rq))),
        }
        value.nr_waiting[kind.index()] -= 1;
        let list = value.lists.entry((ctx, kind.index())).or_default();
        match list.iter().position(|waiting| *waiting == rq) {
            Some(0) => _ = list.pop_front(),
            Some(_) => {
                let first = list[0];
                let what = format!("{} was chosen before {}, which came earlier", Request(rq), Request(first));
                return Err(Violation::new(RULE, format!("{what} from the same software queue"))
                    .request(rq)
                    .request(first));
            }
            None => {}
        }
        Ok(())
    }

    fn held_back(&mut self, value: u16) -> Verdict {
        let value = self.value(value);
        let asks = std::mem::take(&mut value.asks);
        if !value.heads.is_empty() {
            return Ok(());
        }
        match value.choose(&asks) {
            Choice::Nothing => Ok(()),
            Choice::Kind(of) | Choice::Asks(of) => {
                let what =
                    format!("{} requests wait, and none was chosen: the scheduler asked for {asks:?}", of.name());
                Err(Violation::new(RULE, what))
            }
        }
    }
}

/// Checks that only requests of one software queue and one kind merge.
fn merged(into: RqId, info: &Info, tracker: &Tracker) -> Verdict {
    let Some(host) = tracker.info(into) else { return Ok(()) };
    let agree = |info: &Info| (info.ctx, SchedDomain::of(info.op));
    if agree(host) == agree(info) {
        return Ok(());
    }
    let what = format!("{} of software queue {} took in {info:?}", Request(into), host.ctx);
    Err(Violation::new(RULE, what).request(into))
}

impl Checker for Turns {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Installed { .. } => self.values.clear(),
            _ if tracker.scheduler != Some("kyber") => {}
            Event::Inserted { value, rq, info, at, .. } => return self.inserted(value, rq, &info, at),
            Event::Merged { into, info, .. } => return merged(into, &info, tracker),
            Event::Token { value, of, is_given } => self.value(value).asks.push((of, is_given)),
            Event::Chosen { rq, .. } => return self.chosen(rq, tracker),
            Event::HeldBack { value, .. } => return self.held_back(value),
            // Submitters come and go, and another one may have the place of one that is gone.
            Event::Left { .. } => self.values.iter_mut().for_each(|value| value.submitters.clear()),
            _ => {}
        }
        Ok(())
    }
}
