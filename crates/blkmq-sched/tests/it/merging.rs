//! Each rule of merging, by itself.

use crate::bench::{Bench, MS, ROOMY, idle, of, read, write};
use blkmq_sched::{Info, InsertAt, Join, Merge, MergeHow, MergeLevel, MergeLimits, Op, RqId, Setting};

fn merged(into: u64, how: MergeHow) -> Option<Merge> {
    Some(Merge { into: RqId(into), how, joined: None })
}

fn joined(into: u64, how: MergeHow, survivor: u64, absorbed: u64) -> Option<Merge> {
    Some(Merge { into: RqId(into), how, joined: Some(Join { survivor: RqId(survivor), absorbed: RqId(absorbed) }) })
}

/// A bench on which a distant request was inserted last, so that only a look-up finds the requests inserted before.
fn bench_with(infos: &[Info], limits: MergeLimits) -> Bench {
    let mut bench = Bench::new(&[]);
    bench.scheduler.configure(Setting::MergeLimits(limits));
    for info in infos {
        bench.insert(*info, 0);
    }
    bench.insert(read(1 << 40), 0);
    bench
}

#[test]
fn a_newcomer_joins_the_request_that_ends_where_it_begins() {
    let mut bench = bench_with(&[read(0)], ROOMY);
    assert_eq!(bench.merge(read(8)), merged(0, MergeHow::Back));
    assert_eq!(bench.merge(read(16)), merged(0, MergeHow::Back));
    assert!(bench.shows("rq 0 Read sector 0 + 24"), "{}", bench.show());
}

/// Red if the request keeps its old place in the hash after a back merge.
#[test]
fn a_grown_request_is_found_by_its_new_end_only() {
    let mut bench = bench_with(&[read(0)], ROOMY);
    assert_eq!(bench.merge(read(8)), merged(0, MergeHow::Back));
    bench.insert(read(1 << 41), 0);
    assert_eq!(bench.merge(read(8)), None);
    assert_eq!(bench.merge(read(16)), merged(0, MergeHow::Back));
}

#[test]
fn a_newcomer_joins_the_request_that_begins_where_it_ends() {
    let mut bench = bench_with(&[read(100)], ROOMY);
    assert_eq!(bench.merge(read(92)), merged(0, MergeHow::Front));
    assert!(bench.shows("rq 0 Read sector 92 + 16"), "{}", bench.show());
}

/// Red if the request keeps its old place in the tree after a front merge.
#[test]
fn a_front_merge_moves_the_request_in_sector_order() {
    let mut bench = bench_with(&[read(100), read(95)], ROOMY);
    assert_eq!(bench.merge(Info { nr_sectors: 10, ..read(90) }), merged(0, MergeHow::Front));
    // The request now begins before the other one.
    assert_eq!(bench.dispatch_all(0), [0, 1, 2]);
}

#[test]
fn front_merges_0_stops_looking_but_not_the_last_request() {
    let mut bench = bench_with(&[read(100)], ROOMY);
    bench.scheduler.set_knob("front_merges", 0).unwrap();
    assert_eq!(bench.merge(read(92)), None);
    let last = bench.insert(read(200), 0);
    assert_eq!(bench.merge(read(192)), merged(last, MergeHow::Front));
}

#[test]
fn a_back_merge_is_preferred_to_a_front_merge() {
    let mut bench = bench_with(&[read(16), read(0)], MergeLimits { max_sectors: 16, ..ROOMY });
    assert_eq!(bench.merge(read(8)), merged(1, MergeHow::Back));
}

#[test]
fn of_several_that_end_there_the_latest_takes_the_newcomer_in() {
    let mut bench = bench_with(&[read(0), read(0), read(0)], ROOMY);
    assert_eq!(bench.merge(read(8)), merged(2, MergeHow::Back));
    assert_eq!(bench.merge(read(8)), merged(1, MergeHow::Back));
}

/// Red if the number of tries is not bounded: a look-up must not take linear time.
#[test]
fn a_look_up_tries_eight_requests_and_no_more() {
    for (others, found) in [(7, merged(0, MergeHow::Back)), (8, None)] {
        let mut infos = vec![read(0)];
        infos.extend((0..others).map(|_| Info { merge_key: 1, ..read(0) }));
        assert_eq!(bench_with(&infos, ROOMY).merge(read(8)), found, "behind {others} others");
    }
    for (others, found) in [(7, merged(7, MergeHow::Front)), (8, None)] {
        let mut infos = vec![Info { merge_key: 1, ..read(100) }; others];
        infos.push(read(100));
        assert_eq!(bench_with(&infos, ROOMY).merge(read(92)), found, "behind {others} others");
    }
}

#[test]
fn only_like_requests_merge() {
    let zeroes = of(Op::WriteZeroes, 8);
    let others = [write(8), idle(8), Info { merge_key: 1, ..read(8) }, of(Op::Discard, 8)];
    for other in others {
        assert_eq!(bench_with(&[read(0)], ROOMY).merge(other), None, "{other:?}");
    }
    assert_eq!(bench_with(&[write(0)], ROOMY).merge(zeroes), None, "directions are equal, operations are not");
    assert_eq!(bench_with(&[of(Op::WriteZeroes, 0)], ROOMY).merge(zeroes), merged(0, MergeHow::Back));
    assert_eq!(bench_with(&[of(Op::Flush, 0)], ROOMY).merge(of(Op::Flush, 8)), None);
}

#[test]
fn each_limit_stops_a_merge() {
    let nothing = MergeLimits::default();
    let (zeroes, discard) = (Op::WriteZeroes, Op::Discard);
    // The operation, limits that just allow 8 + 8 sectors in two segments, and limits one short of that.
    let cases = [
        (Op::Read, MergeLimits { max_sectors: 16, ..ROOMY }, MergeLimits { max_sectors: 15, ..ROOMY }),
        (Op::Write, MergeLimits { max_segments: 2, ..ROOMY }, MergeLimits { max_segments: 1, ..ROOMY }),
        (Op::Write, MergeLimits { boundary_sectors: 16, ..ROOMY }, MergeLimits { boundary_sectors: 8, ..ROOMY }),
        (zeroes, MergeLimits { max_write_zeroes_sectors: 16, ..nothing }, nothing),
        (discard, MergeLimits { max_discard_sectors: 16, ..nothing }, nothing),
    ];
    for (op, enough, short) in cases {
        assert_eq!(bench_with(&[of(op, 0)], enough).merge(of(op, 8)), merged(0, MergeHow::Back), "{enough:?}");
        assert_eq!(bench_with(&[of(op, 0)], short).merge(of(op, 8)), None, "{short:?}");
        assert_eq!(bench_with(&[of(op, 8)], enough).merge(of(op, 0)), merged(0, MergeHow::Front), "{enough:?}");
        assert_eq!(bench_with(&[of(op, 8)], short).merge(of(op, 0)), None, "{short:?}");
    }
}

#[test]
fn nothing_merges_before_limits_are_set() {
    let mut scheduler = blkmq_sched::scheduler("mq-deadline").unwrap();
    scheduler.insert(RqId(0), &read(0), InsertAt::Sorted, blkmq_sched::Time(0));
    assert_eq!(scheduler.merge(&read(8)), None);
}

#[test]
fn discards_merge_as_ranges_wherever_they_are() {
    // Ranges that lie apart cross no boundary when they become one request.
    let limits = MergeLimits { max_discard_segments: 3, boundary_sectors: 8, ..ROOMY };
    let mut bench = Bench::new(&[]);
    bench.scheduler.configure(Setting::MergeLimits(limits));
    let id = bench.insert(of(Op::Discard, 0), 0);
    assert_eq!(bench.merge(of(Op::Discard, 500)), merged(id, MergeHow::Discard));
    assert_eq!(bench.merge(of(Op::Discard, 300)), merged(id, MergeHow::Discard));
    assert_eq!(bench.merge(of(Op::Discard, 400)), None, "a fourth range is too many");
    // A look-up finds only ranges that touch. Ranges that touch also merge as separate ranges.
    let mut bench = bench_with(&[of(Op::Discard, 0)], limits);
    assert_eq!(bench.merge(of(Op::Discard, 500)), None);
    assert_eq!(bench.merge(of(Op::Discard, 8)), merged(0, MergeHow::Discard));
}

#[test]
fn discards_of_one_range_merge_only_where_they_touch() {
    let mut bench = Bench::new(&[]);
    let id = bench.insert(of(Op::Discard, 0), 0);
    assert_eq!(bench.merge(of(Op::Discard, 500)), None);
    assert_eq!(bench.merge(of(Op::Discard, 8)), merged(id, MergeHow::Back));
    assert_eq!(bench.merge(of(Op::Discard, 16)), merged(id, MergeHow::Back), "two that touch are one range");
}

#[test]
fn a_newcomer_that_never_merges_does_not() {
    let mut bench = Bench::new(&[]);
    bench.insert(read(0), 0);
    assert_eq!(bench.merge(Info { merge: MergeLevel::Never, ..read(8) }), None);
}

#[test]
fn a_waiting_request_that_never_merges_is_left_alone() {
    let never = Info { merge: MergeLevel::Never, ..read(100) };
    let mut bench = Bench::new(&[]);
    bench.insert(never, 0);
    assert_eq!((bench.merge(read(108)), bench.merge(read(92))), (None, None));
    // The request does not join a neighbor either.
    let mut bench = bench_with(&[never, read(84)], ROOMY);
    assert_eq!(bench.merge(read(92)), merged(1, MergeHow::Back));
}

#[test]
fn last_only_tries_the_last_request_and_no_look_up() {
    let last_only = |sector| Info { merge: MergeLevel::LastOnly, ..read(sector) };
    let mut bench = bench_with(&[read(0)], ROOMY);
    assert_eq!(bench.merge(last_only(8)), None, "the newcomer does not look");
    let mut bench = bench_with(&[last_only(0)], ROOMY);
    assert_eq!((bench.merge(read(8)), bench.merge(read(1000))), (None, None), "a waiting one is not found");
    for (waiting, newcomer) in [(last_only(0), read(8)), (read(0), last_only(8))] {
        let mut bench = Bench::new(&[]);
        bench.insert(read(16), 0);
        let last = bench.insert(waiting, 0);
        assert_eq!(bench.merge(newcomer), merged(last, MergeHow::Back), "and no request looks for a neighbor");
    }
}

#[test]
fn what_was_merged_into_is_the_last_request() {
    let mut bench = bench_with(&[read(0)], ROOMY);
    assert_eq!(bench.merge(read(8)), merged(0, MergeHow::Back));
    assert_eq!(bench.merge(Info { merge: MergeLevel::LastOnly, ..read(16) }), merged(0, MergeHow::Back));
}

#[test]
fn a_dispatched_request_takes_nothing_in() {
    let mut bench = Bench::new(&[]);
    bench.insert(read(100), 0);
    assert_eq!(bench.dispatch_all(0), [0]);
    assert_eq!((bench.merge(read(108)), bench.merge(read(92))), (None, None));
}

#[test]
fn a_request_at_the_head_takes_nothing_in() {
    let mut bench = Bench::new(&[]);
    bench.insert_at(read(100), InsertAt::Head, 0);
    assert_eq!((bench.merge(read(108)), bench.merge(read(92))), (None, None));
}

#[test]
fn after_a_back_merge_the_following_request_is_absorbed() {
    let mut bench = bench_with(&[read(0), read(16)], ROOMY);
    assert_eq!(bench.merge(read(8)), joined(0, MergeHow::Back, 0, 1));
    assert!(bench.shows("rq 0 Read sector 0 + 24"), "{}", bench.show());
    assert!(bench.shows("level1: inserted 3 merged 1 "), "{}", bench.show());
    assert!(bench.shows("queued: 0 2 0"), "an absorbed request is not queued: {}", bench.show());
    assert_eq!(bench.merge(read(24)), merged(0, MergeHow::Back), "it is found by its new end");
    assert_eq!(bench.dispatch_all(0), [0, 2]);
}

#[test]
fn after_a_front_merge_the_preceding_request_absorbs() {
    let mut bench = bench_with(&[read(0)], ROOMY);
    bench.insert(read(16), 0);
    // The last request is tried first, so this is a front merge although another request ends where it begins.
    assert_eq!(bench.merge(read(8)), joined(2, MergeHow::Front, 0, 2));
    assert!(bench.shows("rq 0 Read sector 0 + 24"), "{}", bench.show());
    assert_eq!(bench.merge(Info { merge: MergeLevel::LastOnly, ..read(24) }), merged(0, MergeHow::Back));
}

#[test]
fn requests_join_only_within_the_limits() {
    let mut bench = bench_with(&[read(0), read(16)], MergeLimits { max_sectors: 23, ..ROOMY });
    assert_eq!(bench.merge(read(8)), merged(0, MergeHow::Back));
    assert!(bench.shows("level1: inserted 3 merged 0 "), "{}", bench.show());
}

#[test]
fn the_survivor_takes_the_earlier_deadline_and_its_place() {
    let knobs = [("fifo_batch", 0), ("read_expire", 10)];
    // The absorbed request is the oldest. So the request that absorbed it goes at the oldest deadline, before a younger
    // request.
    let mut bench = Bench::new(&knobs);
    for (sector, time) in [(916, 0), (400, MS), (900, 2 * MS)] {
        bench.insert(read(sector), time);
    }
    assert_eq!(bench.merge(read(908)), joined(2, MergeHow::Back, 2, 0));
    assert!(bench.shows("rq 2 Read sector 900 + 24 fifo_time 10000000 ns"), "{}", bench.show());
    assert_eq!(bench.dispatch_all(10 * MS), [2, 1]);
    // The survivor is the oldest, and keeps its own deadline.
    let mut bench = Bench::new(&knobs);
    for (sector, time) in [(900, 0), (400, MS), (916, 2 * MS)] {
        bench.insert(read(sector), time);
    }
    assert_eq!(bench.merge(read(908)), joined(2, MergeHow::Front, 0, 2));
    assert_eq!(bench.dispatch_all(10 * MS), [0, 1]);
}

#[test]
fn sectors_at_the_end_of_the_number_range_do_no_harm() {
    let last = Info { nr_sectors: u32::MAX, nr_segments: u16::MAX, ..read(u64::MAX) };
    assert_eq!(last.end(), u64::MAX);
    for op in [Op::Read, Op::Discard, Op::WriteZeroes] {
        for segments in [1, u16::MAX] {
            let limits = MergeLimits {
                max_sectors: u32::MAX,
                max_segments: u16::MAX,
                boundary_sectors: 8,
                max_discard_sectors: u32::MAX,
                max_discard_segments: segments,
                max_write_zeroes_sectors: u32::MAX,
            };
            let last = Info { op, ..last };
            let mut bench = bench_with(&[last, Info { sector: 0, ..last }], limits);
            assert_eq!(bench.merge(last), None, "what overflows touches nothing");
            assert_eq!(bench.merge(Info { sector: u64::MAX - u64::from(u32::MAX), ..last }), None);
            let ids = bench.dispatch_all(0);
            assert_eq!(ids.len(), 3, "{ids:?}");
        }
    }
}

/// Red if requests count as touching because both of their ends are cut to the last sector.
#[test]
fn requests_that_only_seem_to_end_at_the_last_sector_do_not_touch() {
    let overflowing = read(u64::MAX - 4);
    assert_eq!(bench_with(&[overflowing], ROOMY).merge(read(u64::MAX)), None);
    assert_eq!(bench_with(&[read(u64::MAX)], ROOMY).merge(overflowing), None);
    assert_eq!(bench_with(&[read(u64::MAX - 8)], ROOMY).merge(read(u64::MAX)), merged(0, MergeHow::Back));
}

/// Red if the request keeps an old place in hash, tree or list, or if the limits are applied.
#[test]
fn a_forced_merge_goes_where_it_is_told_to() {
    let mut bench = bench_with(&[read(0), read(100)], MergeLimits::default());
    assert!(bench.scheduler.force_merge(RqId(1), &read(92), MergeHow::Front));
    assert!(bench.shows("rq 1 Read sector 92 + 16"), "{}", bench.show());
    assert!(bench.scheduler.force_merge(RqId(0), &read(8), MergeHow::Back));
    assert!(bench.shows("rq 0 Read sector 0 + 16"), "{}", bench.show());
    assert!(!bench.scheduler.force_merge(RqId(77), &read(8), MergeHow::Back), "there is no such request");
    assert_eq!(bench.dispatch_all(0), [0, 1, 2]);
}

#[test]
fn a_forced_join_takes_one_of_the_two_away() {
    let mut bench = bench_with(&[read(0), read(8), write(16)], MergeLimits::default());
    let join = |survivor, absorbed| Join { survivor: RqId(survivor), absorbed: RqId(absorbed) };
    assert!(!bench.scheduler.force_join(join(0, 0)), "a request does not absorb itself");
    assert!(!bench.scheduler.force_join(join(1, 2)), "a read does not absorb a write");
    assert!(bench.scheduler.force_join(join(0, 1)));
    assert!(bench.shows("rq 0 Read sector 0 + 16"), "{}", bench.show());
    assert!(!bench.scheduler.force_join(join(0, 1)), "it is gone");
    assert_eq!(bench.scheduler.len(), 3);
}
