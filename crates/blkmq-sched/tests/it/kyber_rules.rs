//! The rules of kyber, one by one: turns, tokens, merging, and what is shown.

use crate::bench::{ROOMY, of, read, write};
use blkmq_sched::{
    Admission, Class, ClientId, DispatchContext, Info, InsertAt, Kyber, Merge, MergeHow, MergeLevel, Op, Outstanding,
    Passing, RqId, SchedDomain, Scheduler, Setting, Time,
};

/// Pools with so many tokens left, by [`SchedDomain::index`].
#[derive(Debug)]
struct Left {
    tokens: [u32; 4],
    /// The kinds that were asked for, in order.
    asked: Vec<SchedDomain>,
}

impl Left {
    fn new(tokens: [u32; 4]) -> Self {
        Self { tokens, asked: Vec::new() }
    }
}

impl DispatchContext for Left {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        self.asked.push(of);
        let left = &mut self.tokens[of.index()];
        let is_taken = *left > 0;
        *left -= u32::from(is_taken);
        is_taken
    }
}

/// A scheduler in which each of these waits, with its number as its id.
fn kyber(infos: &[Info]) -> Kyber {
    let mut kyber = Kyber::new();
    kyber.reserve(infos.len());
    kyber.configure(Setting::MergeLimits(ROOMY));
    for (number, info) in infos.iter().enumerate() {
        kyber.insert(RqId(number as u64), info, InsertAt::Sorted, Time(0));
    }
    kyber
}

fn ids(kyber: &mut Kyber, tokens: &mut Left) -> Vec<u64> {
    std::iter::from_fn(|| kyber.dispatch(tokens, Time(0))).map(|rq| rq.0).collect()
}

fn merged(into: u64, how: MergeHow) -> Option<Merge> {
    Some(Merge { into: RqId(into), how, joined: None })
}

/// Red if a batch has another size, or if the turns go round in another order.
#[test]
fn kinds_take_turns_in_batches_of_16_8_1_and_1() {
    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
    let infos: Vec<Info> = (0..40).flat_map(|number| ops.map(|op| of(op, number * 100))).collect();
    let mut kyber = kyber(&infos);
    let turns: Vec<usize> =
        std::iter::from_fn(|| kyber.dispatch(&mut (), Time(0))).map(|rq| rq.0 as usize % 4).collect();
    let mut expected = Vec::new();
    let mut left = [40_usize; 4];
    while left.iter().sum::<usize>() > 0 {
        for (kind, (left, batch)) in left.iter_mut().zip([16, 8, 1, 1]).enumerate() {
            let number = batch.min(*left);
            expected.extend(std::iter::repeat_n(kind, number));
            *left -= number;
        }
    }
    assert_eq!(turns, expected);
}

/// Red if a turn that has begun counts on behind one in which nothing was found.
#[test]
fn a_turn_begins_anew_when_it_comes_round() {
    let infos: Vec<Info> = (0..30).map(|number| read(number * 100)).collect();
    let mut kyber = kyber(&infos);
    (0..10).for_each(|_| assert!(kyber.dispatch(&mut (), Time(0)).is_some()));
    let mut none = Left::new([0; 4]);
    assert_eq!(kyber.dispatch(&mut none, Time(0)), None);
    kyber.insert(RqId(100), &write(0), InsertAt::Sorted, Time(0));
    let order: Vec<u64> = std::iter::from_fn(|| kyber.dispatch(&mut (), Time(0))).map(|rq| rq.0).collect();
    let position = order.iter().position(|id| *id == 100);
    assert_eq!(position, Some(16), "a choice in vain ended the turn of the reads, and they have a whole one now");
}

/// Red if software queues are not let in by number, or a list of theirs is not in order of arrival.
#[test]
fn what_is_let_in_goes_by_software_queue_and_then_by_arrival() {
    let infos: Vec<Info> = [200, 3, 3, 64, 0, 255, 3].into_iter().map(|ctx| Info { ctx, ..read(0) }).collect();
    let mut kyber = kyber(&infos);
    assert_eq!(kyber.dispatch(&mut (), Time(0)), Some(RqId(4)));
    // What comes later is let in behind them, whatever its software queue.
    kyber.insert(RqId(7), &Info { ctx: 1, ..read(0) }, InsertAt::Sorted, Time(0));
    kyber.insert(RqId(8), &Info { ctx: 0, ..read(0) }, InsertAt::Sorted, Time(0));
    let order: Vec<u64> = std::iter::from_fn(|| kyber.dispatch(&mut (), Time(0))).map(|rq| rq.0).collect();
    assert_eq!(order, [1, 2, 6, 3, 0, 5, 8, 7]);
}

/// Red if a choice takes a second token, takes one for nothing, or returns a request without one.
#[test]
fn each_request_has_one_token_and_nothing_takes_none() {
    let mut kyber = kyber(&[read(0), read(100), write(0), of(Op::Discard, 0)]);
    let mut tokens = Left::new([1, 5, 0, 5]);
    assert_eq!(ids(&mut kyber, &mut tokens), [0, 2]);
    assert_eq!((tokens.tokens, kyber.len()), ([0, 4, 0, 5], 2));
    tokens.asked.clear();
    assert_eq!(kyber.dispatch(&mut tokens, Time(0)), None);
    tokens.asked.dedup();
    assert!(
        !tokens.asked.iter().any(|of| matches!(of, SchedDomain::Write | SchedDomain::Other)),
        "nothing of it waits"
    );
    let mut tokens = Left::new([1, 0, 1, 0]);
    assert_eq!(ids(&mut kyber, &mut tokens), [3, 1]);
    tokens.asked.clear();
    assert_eq!((kyber.dispatch(&mut tokens, Time(0)), tokens.asked), (None, vec![]));
}

/// Red if the software queues' lists are emptied before a token was got.
#[test]
fn what_waits_for_a_token_can_still_merge() {
    let mut kyber = kyber(&[read(0)]);
    assert_eq!(kyber.dispatch(&mut Left::new([0; 4]), Time(0)), None);
    assert_eq!(kyber.merge(&read(8)), merged(0, MergeHow::Back));
    // One token lets all in: the second one does not merge any more.
    kyber.insert(RqId(1), &read(100), InsertAt::Sorted, Time(0));
    assert_eq!(ids(&mut kyber, &mut Left::new([1, 0, 0, 0])), [0]);
    assert_eq!(kyber.merge(&read(108)), None);
    assert_eq!(kyber.len(), 1);
}

/// Red if another software queue's requests, another kind's, or more than eight are looked at.
#[test]
fn a_newcomer_is_tried_with_the_latest_eight_of_its_own_software_queue() {
    for (others, is_reached) in [(7, true), (8, false)] {
        let mut infos = vec![read(1000)];
        infos.extend((0..others).map(|number| read(number * 100)));
        let mut kyber = kyber(&infos);
        assert_eq!(kyber.merge(&read(1008)), is_reached.then_some(merged(0, MergeHow::Back)).flatten(), "{others}");
    }
    let mut kyber = kyber(&[read(0), Info { ctx: 1, ..read(100) }, write(200)]);
    assert_eq!([read(108), read(208)].map(|info| kyber.merge(&info)), [None, None]);
    assert_eq!(kyber.merge(&Info { ctx: 1, ..read(92) }), merged(1, MergeHow::Front));
    assert_eq!(kyber.merge(&Info { ctx: 1, ..read(84) }), merged(1, MergeHow::Front), "it has grown");
    // Two requests that touch stay two, as in Linux's kyber.
    assert_eq!(kyber.merge(&Info { ctx: 0, ..write(192) }), merged(2, MergeHow::Front));
    assert_eq!(kyber.len(), 3);
}

#[test]
fn the_latest_that_fits_takes_a_newcomer_in() {
    let mut kyber = kyber(&[read(0), read(0), read(16)]);
    assert_eq!(kyber.merge(&read(8)), merged(2, MergeHow::Front));
}

/// Red if `nomerges` is not respected.
#[test]
fn how_hard_to_look_is_the_newcomer_s() {
    let mut kyber = kyber(&[read(0), read(100)]);
    let with = |merge, sector| Info { merge, ..read(sector) };
    assert_eq!(kyber.merge(&with(MergeLevel::LastOnly, 8)), None);
    assert_eq!(kyber.merge(&with(MergeLevel::Never, 108)), None);
    assert_eq!(kyber.merge(&with(MergeLevel::LastOnly, 108)), merged(1, MergeHow::Back));
    assert_eq!(kyber.merge(&with(MergeLevel::Full, 8)), merged(0, MergeHow::Back));
}

/// Red if anything passes a request at the head, even one of another kind that has tokens.
#[test]
fn the_head_is_in_front_of_everything() {
    let mut kyber = kyber(&[read(0), write(0)]);
    for (id, info) in [(10, read(0)), (11, write(0))] {
        kyber.insert(RqId(id), &info, InsertAt::Head, Time(0));
    }
    let mut tokens = Left::new([9, 0, 0, 0]);
    assert_eq!((kyber.dispatch(&mut tokens, Time(0)), tokens.tokens), (None, [9, 0, 0, 0]));
    assert_eq!(ids(&mut kyber, &mut Left::new([9; 4])), [11, 10, 0, 1]);
}

#[test]
fn classes_do_not_matter_and_any_may_pass_while_nothing_waits() {
    let idle = Info { priority: blkmq_sched::IoPriority { class: Class::Idle, level: 0 }, ..read(0) };
    let mut kyber = kyber(&[idle, read(100)]);
    let gates = |kyber: &Kyber| Class::ALL.map(|class| kyber.may_pass(class, ClientId::default()));
    assert_eq!(gates(&kyber), [Passing::Nobody; 3]);
    assert_eq!(ids(&mut kyber, &mut Left::new([9; 4])), [0, 1]);
    assert_eq!(gates(&kyber), [Passing::All; 3]);
}

/// Red if asynchronous requests get another part than three quarters.
#[test]
fn others_than_reads_may_have_three_quarters() {
    let mut kyber = Kyber::new();
    let admits = |kyber: &dyn Scheduler, info, others| {
        kyber.limit_depth(&info, Outstanding { others, nr_hctxs: 2 }) != Admission::Refused
    };
    assert!(admits(&kyber, write(0), 383) && !admits(&kyber, write(0), 384) && admits(&kyber, read(0), 384));
    for (nr_requests, depth) in [(64, 48), (65_536, 49_152), (5, 3), (1, 1), (0, 1), (u32::MAX, 3_221_225_471_u32)] {
        kyber.configure(Setting::NrRequests(nr_requests));
        let most = 2 * u64::from(depth);
        assert_eq!([most - 1, most].map(|others| admits(&kyber, write(0), others)), [true, false], "{depth}");
    }
}

#[test]
fn another_hardware_queue_gets_an_empty_one_of_the_same_settings() {
    let mut first = kyber(&[read(0)]);
    first.configure(Setting::NrRequests(8));
    let parts = first.init_hctx().expect("kyber keeps no order across hardware queues");
    let mut other = parts.scheduler;
    assert!(other.is_empty() && other.name() == "kyber");
    let admits = |others| other.limit_depth(&write(0), Outstanding { others, nr_hctxs: 1 }) != Admission::Refused;
    assert!(admits(5) && !admits(6));
    other.reserve(1);
    other.insert(RqId(1), &read(8), InsertAt::Sorted, Time(0));
    assert_eq!(other.merge(&read(16)), merged(1, MergeHow::Back));
    assert!(blkmq_sched::scheduler("mq-deadline").unwrap().init_hctx().is_none());
    assert!(parts.throttle.is_some(), "kyber takes tokens");
}

/// Red if a name is not that of Linux's debugfs, or a list is not shown.
#[test]
fn every_list_is_shown_under_linux_s_names() {
    let show = |kyber: &Kyber| {
        let mut shown = String::new();
        kyber.show(&mut shown).expect("a string takes everything");
        shown
    };
    let mut kyber = kyber(&[read(0), read(100), Info { ctx: 9, ..write(8) }, of(Op::Discard, 0)]);
    kyber.insert(RqId(4), &of(Op::WriteZeroes, 16), InsertAt::Head, Time(0));
    let empty = "read_rqs:\nread_ctx_rqs:\n  rq 0 Read sector 0 + 8 ctx 0\n  rq 1 Read sector 100 + 8 ctx 0\n\
                 read_waiting: 0\nwrite_rqs:\n";
    assert!(show(&kyber).starts_with(empty), "{}", show(&kyber));
    assert!(show(&kyber).contains("\ndispatch:\n  rq 4 WriteZeroes sector 16 + 8 ctx 0\ncur_domain: READ\n"));
    assert_eq!(ids(&mut kyber, &mut Left::new([1, 0, 1, 1])), [4, 0, 3]);
    let left = "read_rqs:\n  rq 1 Read sector 100 + 8 ctx 0\nread_ctx_rqs:\nread_waiting: 1\nwrite_rqs:\n\
                write_ctx_rqs:\n  rq 2 Write sector 8 + 8 ctx 9\nwrite_waiting: 1\n\
                discard_rqs:\ndiscard_ctx_rqs:\ndiscard_waiting: 0\n\
                other_rqs:\nother_ctx_rqs:\nother_waiting: 0\ndispatch:\ncur_domain: DISCARD\nbatching: 0\n\
                async_depth: 192\n";
    assert_eq!(show(&kyber), left);
}
