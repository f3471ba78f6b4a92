//! How many requests a look-up tries, merges at the end of the number range, and merges that are forced.
//! `mq_deadline_model` holds each other merge against a naive model.

use crate::bench::{Bench, ROOMY, read, write};
use blkmq_sched::{Info, InsertAt, Join, Merge, MergeHow, MergeLimits, Op, RqId};

/// A bench on which a distant request was inserted last, so that only a look-up finds the requests inserted before.
fn bench_with(infos: &[Info], limits: MergeLimits) -> Bench {
    let mut bench = Bench::new(limits);
    infos.iter().for_each(|info| _ = bench.insert(*info));
    bench.insert(read(1 << 40));
    bench
}

/// Red if the number of tries is not bounded: a look-up must not take linear time.
#[test]
fn a_look_up_tries_eight_requests_and_no_more() {
    let other = |sector| Info { merge_key: 1, ..read(sector) };
    for (others, is_found) in [(7, true), (8, false)] {
        for (sector, newcomer, how) in [(0, 8, MergeHow::Back), (100, 92, MergeHow::Front)] {
            // The request that ends there is tried last if it came first; of those that begin there, if it came last.
            let place = if how == MergeHow::Back { 0 } else { others };
            let mut infos = vec![other(sector); others];
            infos.insert(place, read(sector));
            let found = is_found.then_some(Merge { into: RqId(place as u64), how, joined: None });
            assert_eq!(bench_with(&infos, ROOMY).merge(read(newcomer)), found, "{how:?} behind {others} others");
        }
    }
}

#[test]
fn nothing_merges_before_limits_are_set() {
    let mut scheduler = blkmq_sched::scheduler("mq-deadline").unwrap();
    scheduler.insert(RqId(0), &read(0), InsertAt::Sorted, blkmq_sched::Time(0));
    assert_eq!(scheduler.merge(&read(8)), None);
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
            let ids = bench.dispatch_all();
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
    let behind = Merge { into: RqId(0), how: MergeHow::Back, joined: None };
    assert_eq!(bench_with(&[read(u64::MAX - 8)], ROOMY).merge(read(u64::MAX)), Some(behind));
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
    assert_eq!(bench.dispatch_all(), [0, 1, 2]);
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
