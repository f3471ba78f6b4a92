//! What kyber admits, takes and shows. `kyber_model` holds its turns, its tokens and its merges against a naive model.

use crate::bench::{ROOMY, of, read, shown, write};
use blkmq_sched::{
    Admission, DispatchContext, Info, InsertAt, Kyber, Merge, MergeHow, Op, Outstanding, RqId, SchedDomain, Scheduler,
    Setting, Time,
};

/// Pools with so many tokens left, by [`SchedDomain::index`].
#[derive(Debug)]
struct Left([u32; 4]);

impl DispatchContext for Left {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        let left = &mut self.0[of.index()];
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

/// Red if asynchronous requests get another part than three quarters.
#[test]
fn others_than_reads_may_have_three_quarters() {
    let mut kyber = Kyber::new();
    let admits = |kyber: &dyn Scheduler, info, others| {
        kyber.limit_depth(&info, Outstanding { others, nr_hctxs: 2, reserved: None }) != Admission::Refused
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
    let admits = |others| {
        other.limit_depth(&write(0), Outstanding { others, nr_hctxs: 1, reserved: None }) != Admission::Refused
    };
    assert!(admits(5) && !admits(6));
    other.reserve(1);
    other.insert(RqId(1), &read(8), InsertAt::Sorted, Time(0));
    assert_eq!(other.merge(&read(16)), Some(Merge { into: RqId(1), how: MergeHow::Back, joined: None }));
    assert!(blkmq_sched::scheduler("mq-deadline").unwrap().init_hctx().is_none());
    assert!(parts.throttle.is_some(), "kyber takes tokens");
}

/// Red if a name is not that of Linux's debugfs, or a list is not shown.
#[test]
fn every_list_is_shown_under_linux_s_names() {
    let mut kyber = kyber(&[read(0), read(100), Info { ctx: 9, ..write(8) }, of(Op::Discard, 0)]);
    kyber.insert(RqId(4), &of(Op::WriteZeroes, 16), InsertAt::Head, Time(0));
    let empty = "read_rqs:\nread_ctx_rqs:\n  rq 0 Read sector 0 + 8 ctx 0\n  rq 1 Read sector 100 + 8 ctx 0\n\
                 read_waiting: 0\nwrite_rqs:\n";
    assert!(shown(&kyber).starts_with(empty), "{}", shown(&kyber));
    assert!(shown(&kyber).contains("\ndispatch:\n  rq 4 WriteZeroes sector 16 + 8 ctx 0\ncur_domain: READ\n"));
    assert_eq!(ids(&mut kyber, &mut Left([1, 0, 1, 1])), [4, 0, 3]);
    let left = "read_rqs:\n  rq 1 Read sector 100 + 8 ctx 0\nread_ctx_rqs:\nread_waiting: 1\nwrite_rqs:\n\
                write_ctx_rqs:\n  rq 2 Write sector 8 + 8 ctx 9\nwrite_waiting: 1\n\
                discard_rqs:\ndiscard_ctx_rqs:\ndiscard_waiting: 0\n\
                other_rqs:\nother_ctx_rqs:\nother_waiting: 0\ndispatch:\ncur_domain: DISCARD\nbatching: 0\n\
                async_depth: 192\n";
    assert_eq!(shown(&kyber), left);
}
