//! kyber keeps its order. Its kinds of requests have turns of 16 reads, 8 writes, 1 discard and 1 other request. A turn
//! ends early only if nothing of its kind waits or there is no token for it. Then the next kind has its turn that has
//! something waiting and gets a token. Requests of one software queue and one kind are chosen in the order in which
//! they came, and only such requests merge. No two submitters are one software queue. Each value of the scheduler keeps
//! its own turns and lists. Requests that go to the head are apart: `order` knows about them.

use std::collections::{BTreeMap, VecDeque};

use blkmq_sched::{Info, InsertAt, RqId, SchedDomain};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::lent::NR_KINDS;
use super::table::{Table, grown, pool};
use super::{Checker, Violation};

const RULE: &str = "turns";

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
#[derive(Debug)]
pub(super) struct Turns {
    is_watched: bool,
    values: Vec<Value>,
    /// The value, the software queue and the kind of a request that waits.
    places: Table<(u16, u8, SchedDomain)>,
}

impl Turns {
    pub(super) const fn new() -> Self {
        Self { is_watched: false, values: Vec::new(), places: Table::new() }
    }

    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    fn inserted(&mut self, value: u16, rq: RqId, info: &Info, at: InsertAt) -> Result<(), Violation> {
        let kind = SchedDomain::of(info.op);
        *self.places.entry(rq) = Some((rq, (value, info.ctx, kind)));
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

    fn merged(&self, into: RqId, info: &Info) -> Result<(), Violation> {
        let Some(&(_, ctx, kind)) = self.places.get(into) else { return Ok(()) };
        if (ctx, kind) == (info.ctx, SchedDomain::of(info.op)) {
            return Ok(());
        }
        let what = format!("{} of software queue {ctx} took in {info:?}", Request(into));
        Err(Violation::new(RULE, what).request(into))
    }

    fn chosen(&mut self, rq: RqId) -> Result<(), Violation> {
        let Some(&(value, ctx, kind)) = self.places.get(rq) else { return Ok(()) };
        let value = self.value(value);
        let asks = std::mem::take(&mut value.asks);
        if let Some(at) = value.heads.iter().position(|head| *head == rq) {
            value.heads.remove(at);
            return Ok(());
        }
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        let (turn, nr_had) = (value.turn.name(), value.nr_had);
        match value.choose(&asks) {
            Choice::Kind(of) if of == kind => {}
            Choice::Asks(of) => {
                return bad(format!(
                    "{} was chosen, and a {} token was to be asked for: {nr_had} {turn} requests had their turn, the \
                     scheduler asked for {asks:?}, and {:?} of the kinds wait",
                    Request(rq),
                    of.name(),
                    value.nr_waiting
                ));
            }
            other => return bad(format!("{} was chosen, and the turns say {other:?}", Request(rq))),
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

    fn held_back(&mut self, value: u16) -> Result<(), Violation> {
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

impl Checker for Turns {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        if let Event::Installed { scheduler } = *event {
            (self.is_watched, self.values) = (scheduler == Some("kyber"), Vec::new());
        }
        if !self.is_watched {
            return Ok(());
        }
        match *event {
            Event::Inserted { value, rq, info, at, .. } => self.inserted(value, rq, &info, at),
            Event::Merged { into, info, .. } => self.merged(into, &info),
            Event::Token { value, of, is_given } => {
                self.value(value).asks.push((of, is_given));
                Ok(())
            }
            Event::Chosen { rq, .. } => self.chosen(rq),
            Event::HeldBack { value, .. } => self.held_back(value),
            // Submitters come and go, and another one may have the place of one that is gone.
            Event::Left { .. } => {
                self.values.iter_mut().for_each(|value| value.submitters.clear());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{MergeHow, Op, Time};

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Turns> {
        let mut told = Told::new(Turns::new());
        told.good(Event::Installed { scheduler: Some("kyber") });
        told
    }

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    fn insert(told: &mut Told<Turns>, slots: std::ops::Range<u64>, op: Op) {
        slots.for_each(|slot| _ = told.good(inserted(rq(slot), info(op, 8 * slot, 8), 0)));
    }

    const fn token(of: SchedDomain, is_given: bool) -> Event<'static> {
        Event::Token { value: 0, of, is_given }
    }

    fn choose(told: &mut Told<Turns>, slot: u64, op: Op) -> Result<(), Violation> {
        told.good(token(SchedDomain::of(op), true));
        told.tell(chosen(rq(slot), 0))
    }

    const HELD_BACK: Event<'static> = Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None };

    #[test]
    fn a_turn_has_so_many_requests_and_then_the_next_kind_has_its_own() {
        let mut told = told();
        insert(&mut told, 0..20, Op::Read);
        insert(&mut told, 20..30, Op::Write);
        for slot in 0..16 {
            assert_eq!(choose(&mut told, slot, Op::Read), Ok(()));
        }
        assert!(choose(&mut told, 16, Op::Read).unwrap_err().what.contains("a write token was to be asked for"));
        assert_eq!(choose(&mut told, 20, Op::Write), Ok(()));
        assert!(choose(&mut told, 16, Op::Read).unwrap_err().what.contains("1 write requests had their turn"));
        (21..28).for_each(|slot| assert_eq!(choose(&mut told, slot, Op::Write), Ok(())));
        assert_eq!(choose(&mut told, 16, Op::Read), Ok(()));
    }

    #[test]
    fn a_turn_ends_where_there_is_no_token() {
        let mut told = told();
        insert(&mut told, 0..2, Op::Read);
        insert(&mut told, 2..4, Op::Write);
        told.good(token(SchedDomain::Read, false));
        assert_eq!(choose(&mut told, 2, Op::Write), Ok(()));
        told.good(token(SchedDomain::Write, false)).good(token(SchedDomain::Read, false));
        told.good(token(SchedDomain::Write, false)).good(HELD_BACK);
        told.good(token(SchedDomain::Read, false)).bad(HELD_BACK, "write requests wait, and none was chosen");
        told.good(token(SchedDomain::Write, true)).bad(HELD_BACK, "write requests wait, and none was chosen");
    }

    #[test]
    fn one_software_queue_keeps_its_order_and_shares_it_with_no_other() {
        let mut told = told();
        insert(&mut told, 0..2, Op::Read);
        assert!(choose(&mut told, 1, Op::Read).unwrap_err().what.contains("from the same software queue"));
        let mut told = self::told();
        told.good(inserted(rq(0), info(Op::Read, 0, 8), 0));
        let other = Info { ctx: 1, ..info(Op::Read, 8, 8) };
        told.good(inserted(id(2, 0, 0), other, 0)).bad(inserted(id(3, 0, 0), other, 0), "as 2's did");
        let merged = |info| Event::Merged { into: rq(0), info, how: MergeHow::Back };
        told.good(merged(info(Op::Read, 8, 8))).bad(merged(other), "took in");
        told.bad(merged(info(Op::Write, 8, 8)), "took in");
        let mut apart = self::told();
        apart.good(inserted(rq(0), info(Op::Read, 0, 8), 0)).good(inserted(id(2, 0, 0), other, 0));
        apart.good(token(SchedDomain::Read, true)).good(chosen(id(2, 0, 0), 0));
    }

    #[test]
    fn what_goes_to_the_head_has_no_turn_and_each_value_has_its_own() {
        let mut told = told();
        insert(&mut told, 0..1, Op::Write);
        let read = info(Op::Read, 64, 8);
        told.good(Event::Inserted { value: 0, rq: rq(8), info: read, at: InsertAt::Head, now: Time(0) });
        told.good(token(SchedDomain::Read, false)).good(HELD_BACK);
        assert_eq!(choose(&mut told, 8, Op::Read), Ok(()));
        told.good(Event::Inserted { value: 1, rq: rq(9), info: read, at: InsertAt::Sorted, now: Time(0) });
        assert_eq!(choose(&mut told, 0, Op::Write), Ok(()));
        told.bad(Event::HeldBack { value: 1, waiting: 1, now: Time(0), wakeup: None }, "read requests wait");
        told.good(Event::Token { value: 1, of: SchedDomain::Read, is_given: true }).good(chosen(rq(9), 0));
    }
}
