//! Tokens are conserved. No more requests of a kind are chosen, on their way or with the device than there are tokens
//! of that kind; what was out before a pool became shallower does not count. For each choice the scheduler takes one
//! token, of the kind of the request that it chooses, and none if it chooses no request. When the queue has drained,
//! all tokens are back, and each pool is as deep as was decided last.

use blkmq_sched::{RqId, SchedDomain};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::lent::{Lent, NR_KINDS};
use super::table::grown;
use super::{Checker, Facts, Violation};

const RULE: &str = "tokens";

/// This module's checker.
#[derive(Debug)]
pub(super) struct Tokens {
    lent: Lent,
    /// The token that each CPU took for a choice that is not told yet.
    taken: Vec<Option<SchedDomain>>,
}

impl Tokens {
    pub(super) fn new(facts: &Facts) -> Self {
        Self { lent: Lent::new(facts.limits), taken: Vec::new() }
    }

    fn taken(&mut self, cpu: u16) -> &mut Option<SchedDomain> {
        grown(&mut self.taken, cpu, || None)
    }

    fn given(&mut self, cpu: u16, of: SchedDomain) -> Result<(), Violation> {
        match self.taken(cpu).replace(of) {
            None => Ok(()),
            Some(before) => {
                let what =
                    format!("the scheduler took a {} token for a choice, and a {} token", before.name(), of.name());
                Err(Violation::new(RULE, what))
            }
        }
    }

    fn chosen(&mut self, cpu: u16, rq: RqId) -> Result<(), Violation> {
        let taken = self.taken(cpu).take();
        let bad = |what: String| Err(Violation::new(RULE, format!("{} {what}", Request(rq))).request(rq));
        let Some(kind) = self.lent.kind(rq) else { return Ok(()) };
        if self.lent.held_by(rq).is_some() {
            return bad("was chosen with a token, and has one already".to_owned());
        }
        match taken {
            Some(of) if of == kind => Ok(()),
            Some(of) => bad(format!("is a {} request, and was chosen with a {} token", kind.name(), of.name())),
            None => bad("was chosen without a token".to_owned()),
        }
    }

    /// Checks that there are as many tokens as requests with tokens, if one more request has one now.
    fn judge(&self, before: [u32; NR_KINDS]) -> Result<(), Violation> {
        let is_one_more = |of: &SchedDomain| self.lent.nr_out(*of) > before[of.index()];
        let Some(of) = SchedDomain::ALL.into_iter().find(is_one_more) else { return Ok(()) };
        let (nr_counted, limit) = (self.lent.nr_counted(of), self.lent.limit(of));
        if nr_counted <= limit {
            return Ok(());
        }
        Err(Violation::new(RULE, format!("{nr_counted} requests have {} tokens, and there are {limit}", of.name())))
    }

    /// Looks at the pools in a dump of the drained queue.
    fn dumped(&self, text: &str) -> Result<(), Violation> {
        let mut found = 0;
        for of in SchedDomain::ALL {
            let start = format!("{}_tokens: ", of.name());
            for line in text.lines().filter_map(|line| line.trim_start().strip_prefix(&start)) {
                found += 1;
                let expected = format!("depth={} busy=0", self.lent.depth(of));
                if line != expected {
                    let what =
                        format!("the queue has drained, and its {} tokens are {line}, not {expected}", of.name());
                    return Err(Violation::new(RULE, what));
                }
            }
        }
        let expected = if self.lent.is_watched() { NR_KINDS } else { 0 };
        if found == expected {
            return Ok(());
        }
        Err(Violation::new(RULE, format!("the dump shows {found} pools of tokens, not {expected}")))
    }
}

impl Checker for Tokens {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Token { of, is_given: true, .. } => self.given(at.cpu, of)?,
            Event::Chosen { rq, .. } if self.lent.is_watched() => self.chosen(at.cpu, rq)?,
            Event::HeldBack { .. } if self.taken(at.cpu).is_some() => {
                let what = "the scheduler took a token and chose no request".to_owned();
                return Err(Violation::new(RULE, what));
            }
            Event::Dumped(text) => self.dumped(text)?,
            _ => {}
        }
        let before = SchedDomain::ALL.map(|of| self.lent.nr_out(of));
        self.lent.see(event);
        self.judge(before)
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{NewDepths, Op, Sums, Time};
    use blkmq_virtual::Status;

    use super::super::super::event::{Action, Control, DeviceState, Phase};
    use super::super::testing::*;
    use super::*;

    const IDLE: Event<'static> = Event::Idle { until: None, device: DeviceState { held: 0, hung: 0, next_due: None } };

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    fn adjust(told: &mut Told<Tokens>, depths: NewDepths) {
        told.good(Event::Adjusted { sums: &Sums::default(), now: Time(0), depths });
    }

    /// There are two tokens for reads, and one for others.
    fn told() -> Told<Tokens> {
        let mut told = Told::new(Tokens::new(&FACTS));
        told.good(Event::Throttled);
        adjust(&mut told, [Some(2), None, None, Some(1)]);
        told.good(Event::Installed { scheduler: Some("kyber") });
        told
    }

    const fn token(of: SchedDomain, is_given: bool) -> Event<'static> {
        Event::Token { value: 0, of, is_given }
    }

    fn choose(told: &mut Told<Tokens>, slot: u64, op: Op) {
        told.good(inserted(rq(slot), info(op, 8 * slot, 8), 0)).good(token(SchedDomain::of(op), true));
    }

    #[test]
    fn no_more_tokens_are_out_than_there_are() {
        let mut told = told();
        for slot in 0..2 {
            choose(&mut told, slot, Op::Read);
            told.good(chosen(rq(slot), 0));
        }
        choose(&mut told, 2, Op::Write);
        told.good(chosen(rq(2), 0)).good(completed(rq(0), Status::Ok));
        choose(&mut told, 3, Op::Read);
        told.good(chosen(rq(3), 0));
        choose(&mut told, 4, Op::Read);
        told.bad(chosen(rq(4), 0), "3 requests have read tokens, and there are 2");
    }

    #[test]
    fn what_passes_the_scheduler_takes_a_token_too_and_what_is_given_back_keeps_its_own() {
        let mut told = told();
        let offer = |slot| offered(rq(slot), Op::Read, 8 * slot, 8, &[]);
        told.good(offer(0)).good(acted(rq(0), Action::GivenBack)).good(offer(1)).good(offer(0));
        told.bad(offer(2), "3 requests have read tokens").good(completed(rq(2), Status::Ok));
        told.good(acted(rq(0), Action::GaveUp)).good(offer(3)).bad(offer(4), "3 requests have read tokens");
        let mut none = Told::new(Tokens::new(&FACTS));
        none.good(Event::Installed { scheduler: Some("mq-deadline") }).good(offer(1));
        assert!(!none.checker.lent.is_watched() && none.checker.lent.held_by(rq(1)).is_none());
    }

    #[test]
    fn a_pool_that_becomes_shallower_is_so_when_every_cpu_has_slept() {
        let of_depth_one = |events: &[Event<'_>]| {
            let mut told = told();
            let offer = |slot| offered(rq(slot), Op::Read, 8 * slot, 8, &[]);
            told.good(offer(0));
            adjust(&mut told, [Some(1), None, None, None]);
            events.iter().for_each(|event| _ = told.good(*event));
            told.good(offer(1));
            told.tell(offer(2))
        };
        // The depth before was 2, and request 0 counts until every CPU has slept.
        assert!(of_depth_one(&[]).unwrap_err().what.contains("3 requests have read tokens, and there are 2"));
        assert!(of_depth_one(&[IDLE]).unwrap_err().what.contains("2 requests have read tokens, and there are 1"));
        assert!(of_depth_one(&[changed(Control::Quiesce, Phase::Begun), IDLE]).unwrap_err().what.contains("are 2"));
        assert_eq!(of_depth_one(&[completed(rq(0), Status::Ok)]), Ok(()));
        let mut deeper = told();
        adjust(&mut deeper, [Some(3), None, None, None]);
        (0..3).for_each(|slot| _ = deeper.good(offered(rq(slot), Op::Read, 8 * slot, 8, &[])));
    }

    #[test]
    fn each_choice_takes_one_token_of_its_kind() {
        let held_back = Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None };
        told().good(inserted(rq(0), info(Op::Read, 0, 8), 0)).bad(chosen(rq(0), 0), "without a token");
        let mut wrong = told();
        wrong.good(inserted(rq(0), info(Op::Read, 0, 8), 0)).good(token(SchedDomain::Write, true));
        wrong.bad(chosen(rq(0), 0), "is a read request, and was chosen with a write token");
        told().good(token(SchedDomain::Read, true)).bad(token(SchedDomain::Read, true), "and a read token");
        told().good(token(SchedDomain::Read, true)).bad(held_back, "chose no request");
        told().good(token(SchedDomain::Read, false)).good(held_back);
        let mut twice = told();
        choose(&mut twice, 0, Op::Read);
        twice.good(chosen(rq(0), 0)).good(token(SchedDomain::Read, true)).bad(chosen(rq(0), 0), "has one already");
    }

    #[test]
    fn a_drained_queue_shows_its_pools_as_they_were_decided_and_whole() {
        let good = "read_tokens: depth=2 busy=0\nwrite_tokens: depth=128 busy=0\ndiscard_tokens: depth=64 busy=0\n\
                    other_tokens: depth=1 busy=0\n";
        told().good(Event::Dumped(good));
        told().bad(Event::Dumped(&good.replace("64 busy=0", "64 busy=1")), "discard tokens are depth=64 busy=1");
        told().bad(Event::Dumped(&good.replace("depth=2 ", "depth=3 ")), "not depth=2");
        told().bad(Event::Dumped("no pools"), "shows 0 pools of tokens, not 4");
        let mut other = told();
        other.good(Event::Installed { scheduler: None }).good(Event::Dumped("")).bad(Event::Dumped(good), "not 0");
    }
}
