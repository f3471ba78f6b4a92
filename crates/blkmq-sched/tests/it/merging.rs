//! Rules of merging at their bounds, and merges that are forced. `mq_deadline_model` holds each merge against a naive
//! model.

use crate::bench::{Bench, ROOMY, idle, of, read, write};
use blkmq_sched::{Info, InsertAt, Join, Merge, MergeHow, MergeLimits, Op, RqId, Setting};

fn merged(into: u64, how: MergeHow) -> Option<Merge> {
    Some(Merge { into: RqId(into), how, joined: None })
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
