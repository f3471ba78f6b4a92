//! Each rule by which mq-deadline chooses, by itself.

use crate::bench::{Bench, MS, NEVER, best_effort, idle, in_class, read, real_time, write};
use blkmq_sched::{Class, Feedback, FeedbackKind, Info, InsertAt, Op, RqId, Time};

#[test]
fn a_batch_follows_sector_order_and_not_arrival() {
    let mut bench = Bench::new(&[]);
    let ids = [24, 8, 16].map(|sector| bench.insert(read(sector), 0));
    assert_eq!(bench.dispatch_all(0), [ids[1], ids[2], ids[0]]);
}

#[test]
fn equal_sectors_go_in_order_of_arrival() {
    let mut bench = Bench::new(&[]);
    let ids = [8, 8, 8].map(|sector| bench.insert(read(sector), 0));
    assert_eq!(bench.dispatch_all(0), ids);
}

/// Red if the order goes on from the end of the last request. Linux keeps its beginning, so requests that overlap it
/// are still next in order.
#[test]
fn sector_order_goes_on_from_the_beginning_of_the_last_request() {
    let mut bench = Bench::new(&[]);
    let first = bench.insert(read(100), 0);
    assert_eq!(bench.dispatch(0), first);
    let [below, behind, within, same] = [99, 108, 104, 100].map(|sector| bench.insert(read(sector), 0));
    assert_eq!(bench.dispatch_all(0), [same, within, behind, below]);
}

/// Each direction of each class remembers its own place on the disk.
#[test]
fn writes_do_not_move_the_place_of_reads() {
    let mut bench = Bench::new(&[("fifo_batch", 1), ("writes_starved", 0)]);
    let first = bench.insert(read(100), 0);
    assert_eq!(bench.dispatch(0), first);
    let far = bench.insert(write(500), 0);
    assert_eq!(bench.dispatch(0), far);
    let [low, high] = [8, 200].map(|sector| bench.insert(read(sector), 0));
    assert_eq!([bench.dispatch(0), bench.dispatch(0)], [high, low]);
}

#[test]
fn at_the_end_of_the_disk_a_new_batch_starts_with_the_oldest() {
    let mut bench = Bench::new(&[]);
    let top = bench.insert(read(1000), 0);
    assert_eq!(bench.dispatch(0), top);
    let [oldest, lower] = [64, 8].map(|sector| bench.insert(read(sector), 0));
    assert_eq!([bench.dispatch(0), bench.dispatch(0)], [oldest, lower]);
}

#[test]
fn reads_go_before_writes() {
    let mut bench = Bench::new(&[]);
    let [a_write, a_read] = [write(8), read(0)].map(|info| bench.insert(info, 0));
    // The first batch is one of writes until another batch begins. Linux starts with that direction too.
    assert_eq!(bench.dispatch(0), a_write);
    let second_write = bench.insert(write(0), 0);
    assert_eq!([bench.dispatch(0), bench.dispatch(0)], [a_read, second_write]);
}

#[test]
fn a_batch_ends_after_fifo_batch_requests() {
    let mut bench = Bench::new(&[("fifo_batch", 3), ("writes_starved", 0)]);
    bench.begin_reads();
    let reads = [8, 16, 24, 32].map(|sector| bench.insert(read(sector), 0));
    let a_write = bench.insert(write(0), 0);
    // One read of the batch has gone, and two more belong to it. Then writes have their turn.
    assert_eq!(bench.dispatch_all(0), [reads[0], reads[1], a_write, reads[2], reads[3]]);
}

#[test]
fn a_fifo_batch_of_zero_makes_each_request_a_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 0), ("writes_starved", 1)]);
    let reads = [0, 8, 16].map(|sector| bench.insert(read(sector), 0));
    let writes = [0, 8].map(|sector| bench.insert(write(sector), 0));
    assert_eq!(bench.dispatch_all(0), [reads[0], writes[0], reads[1], writes[1], reads[2]]);
}

#[test]
fn writes_pass_after_writes_starved_read_batches() {
    let mut bench = Bench::new(&[("fifo_batch", 2), ("writes_starved", 2)]);
    bench.begin_reads();
    let reads = [8, 16, 24, 32, 40, 48, 56].map(|sector| bench.insert(read(sector), 0));
    let writes = [0, 8, 16].map(|sector| bench.insert(write(sector), 0));
    // First the batch that has begun, then two batches of reads, then one of writes. Batches are counted, not requests.
    let expected =
        [reads[0], reads[1], reads[2], reads[3], reads[4], writes[0], writes[1], reads[5], reads[6], writes[2]];
    assert_eq!(bench.dispatch_all(0), expected);
}

#[test]
fn batches_of_reads_count_only_while_writes_wait() {
    let mut bench = Bench::new(&[("fifo_batch", 1), ("writes_starved", 1)]);
    bench.begin_reads();
    for sector in [8, 16, 24] {
        let alone = bench.insert(read(sector), 0);
        assert_eq!(bench.dispatch(0), alone);
    }
    let [a_write, first, second] = [write(0), read(32), read(40)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), [first, a_write, second]);
}

#[test]
fn a_negative_writes_starved_lets_writes_always_pass() {
    let mut bench = Bench::new(&[("fifo_batch", 1), ("writes_starved", -1)]);
    let reads = [0, 8].map(|sector| bench.insert(read(sector), 0));
    let writes = [0, 8].map(|sector| bench.insert(write(sector), 0));
    assert_eq!(bench.dispatch_all(0), [writes[0], writes[1], reads[0], reads[1]]);
}

#[test]
fn expired_head_is_looked_at_only_when_a_batch_starts() {
    let mut bench = Bench::new(&[("fifo_batch", 3), ("read_expire", 10)]);
    bench.begin_reads();
    let old = bench.insert(read(900), 0);
    let [a, b, c] = [8, 16, 24].map(|sector| bench.insert(read(sector), 0));
    // All requests have expired, yet the batch that has begun ends first. The new batch starts with the oldest request
    // and goes on behind it.
    assert_eq!([bench.dispatch(11 * MS), bench.dispatch(11 * MS)], [a, b]);
    assert_eq!([bench.dispatch(11 * MS), bench.dispatch(11 * MS)], [old, c]);
}

#[test]
fn a_request_expires_at_its_deadline_and_not_before() {
    for (now, oldest_first) in [(10 * MS - 1, false), (10 * MS, true)] {
        let mut bench = Bench::new(&[("fifo_batch", 1), ("read_expire", 10)]);
        bench.begin_reads();
        let oldest = bench.insert(read(900), 0);
        let next = bench.insert(read(8), 0);
        assert_eq!(bench.dispatch(now), if oldest_first { oldest } else { next }, "at {now} ns");
    }
}

#[test]
fn each_direction_has_its_own_expiry() {
    let mut bench = Bench::new(&[("fifo_batch", 1), ("read_expire", 1000), ("write_expire", 10)]);
    let first = bench.insert(write(0), 0);
    assert_eq!(bench.dispatch(0), first);
    let [oldest, next] = [900, 8].map(|sector| bench.insert(write(sector), 0));
    assert_eq!([bench.dispatch(10 * MS), bench.dispatch(10 * MS)], [oldest, next]);
}

#[test]
fn a_lower_class_waits_while_a_higher_one_is_inside_the_driver() {
    let mut bench = Bench::new(&[]);
    let [high, middle, low] = [real_time(0), best_effort(8), idle(16)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), [high]);
    bench.complete(0);
    assert_eq!(bench.dispatch(0), NEVER, "a completion counts once it is folded in");
    bench.fold();
    assert_eq!(bench.dispatch_all(0), [middle]);
    bench.complete(1);
    bench.fold();
    assert_eq!(bench.dispatch_all(0), [low]);
}

#[test]
fn a_higher_class_goes_first_whatever_the_running_batch() {
    let mut bench = Bench::new(&[]);
    bench.begin_reads();
    let [next, high] = [best_effort(8), real_time(0)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch(0), high);
    bench.complete(0);
    bench.fold();
    assert_eq!(bench.dispatch(0), next);
}

/// The batch that class real-time begins goes on in class best-effort, in the same direction and up to the same length.
#[test]
fn all_classes_share_one_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 2), ("writes_starved", 0)]);
    let first = bench.insert(real_time(0), 0);
    assert_eq!(bench.dispatch(0), first);
    bench.complete(0);
    bench.fold();
    let [a_write, a_read, next] = [write(0), read(8), read(16)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), [a_read, a_write, next]);
}

#[test]
fn sums_that_fall_are_not_believed() {
    let mut bench = Bench::new(&[]);
    let first = bench.insert(real_time(0), 0);
    assert_eq!(bench.dispatch(0), first);
    bench.complete(0);
    bench.fold();
    bench.scheduler.observe(Feedback::Sums(&blkmq_sched::Tally::default()));
    let low = bench.insert(idle(0), 0);
    assert_eq!(bench.dispatch(0), low);
}

#[test]
fn sums_that_are_too_large_strand_nothing() {
    let mut bench = Bench::new(&[]);
    bench
        .scheduler
        .observe(Feedback::Sums(&blkmq_sched::Tally { completed: [u64::MAX; 3], ..blkmq_sched::Tally::default() }));
    let ids = [real_time(0), best_effort(8), idle(16)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(0), ids);
}

#[test]
fn a_tally_is_wanted_only_while_two_classes_are_queued() {
    let mut bench = Bench::new(&[]);
    assert_eq!(bench.scheduler.feedback(), FeedbackKind::None);
    let high = bench.insert(real_time(0), 0);
    bench.insert(real_time(8), 0);
    assert_eq!(bench.scheduler.feedback(), FeedbackKind::None);
    bench.insert(best_effort(0), 0);
    assert_eq!(bench.scheduler.feedback(), FeedbackKind::Sums);
    assert_eq!(bench.dispatch(0), high);
    assert_ne!(bench.dispatch(0), NEVER);
    assert_eq!(bench.scheduler.feedback(), FeedbackKind::Sums, "what is inside the driver counts");
    bench.complete(0);
    bench.complete(0);
    bench.fold();
    assert_eq!(bench.scheduler.feedback(), FeedbackKind::None);
}

#[test]
fn a_request_that_waited_prio_aging_expire_passes_higher_classes() {
    for (now, passes) in [(150 * MS - 1, false), (150 * MS, true)] {
        let mut bench = Bench::new(&[("prio_aging_expire", 100)]);
        let low = bench.insert(idle(0), 50 * MS);
        let high = bench.insert(real_time(0), 50 * MS);
        assert_eq!(bench.dispatch(now), if passes { low } else { high }, "at {now} ns");
    }
}

#[test]
fn best_effort_ages_before_idle() {
    let mut bench = Bench::new(&[("prio_aging_expire", 100)]);
    let [low, middle, high] = [idle(0), best_effort(0), real_time(0)].map(|info| bench.insert(info, 0));
    assert_eq!(bench.dispatch_all(100 * MS), [middle, low, high]);
}

/// Linux begins the batch before it looks whether its first request has aged.
#[test]
fn trying_in_vain_to_age_begins_a_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 1), ("writes_starved", 1)]);
    bench.begin_reads();
    bench.complete(1);
    bench.fold();
    let [a_read, a_write] = [read(8), write(0)].map(|info| bench.insert(info, 0));
    bench.insert(real_time(0), 0);
    // Best-effort is tried because of its age. The reads of best-effort win against the writes, which uses up what
    // writes_starved allows.
    assert_ne!(bench.dispatch(0), NEVER);
    bench.complete(0);
    bench.fold();
    assert_eq!(bench.dispatch_all(0), [a_write, a_read]);
}

#[test]
fn what_is_inserted_at_the_head_goes_first_and_the_latest_before() {
    let mut bench = Bench::new(&[]);
    let sorted = bench.insert(real_time(0), 0);
    let [first, second] = [idle(8), best_effort(16)].map(|info| bench.insert_at(info, InsertAt::Head, 0));
    assert_eq!(bench.dispatch_all(0), [second, first, sorted]);
}

#[test]
fn what_goes_from_the_head_is_not_counted_in_the_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 2), ("writes_starved", 0)]);
    bench.begin_reads();
    let [second, third] = [8, 16].map(|sector| bench.insert(read(sector), 0));
    let a_write = bench.insert(write(0), 0);
    let at_head = bench.insert_at(write(0), InsertAt::Head, 0);
    assert_eq!(bench.dispatch_all(0), [at_head, second, a_write, third]);
}

#[test]
fn a_lowered_expiry_and_a_clock_that_steps_back_hold_nothing_up() {
    let mut bench = Bench::new(&[("read_expire", 500)]);
    let id = bench.insert(read(0), 100 * MS);
    bench.scheduler.set_knob("read_expire", 0).unwrap();
    assert_eq!(bench.dispatch(50 * MS), id);
}

#[test]
fn the_wake_up_is_when_the_held_back_request_has_aged() {
    let mut bench = Bench::new(&[("prio_aging_expire", 100)]);
    assert_eq!(bench.scheduler.next_wakeup(), None);
    let high = bench.insert(real_time(0), 0);
    let low = bench.insert(idle(0), 30 * MS);
    assert_eq!(bench.scheduler.next_wakeup(), None, "dispatch has something to give");
    assert_eq!(bench.dispatch_all(40 * MS), [high]);
    assert_eq!(bench.scheduler.next_wakeup(), Some(Time(130 * MS)));
    assert_eq!(bench.dispatch(130 * MS - 1), NEVER);
    assert_eq!(bench.dispatch(130 * MS), low);
    assert_eq!(bench.scheduler.next_wakeup(), None, "nothing waits");
}

#[test]
fn a_forced_choice_moves_the_batch_as_if_it_had_been_made() {
    let mut bench = Bench::new(&[("fifo_batch", 2), ("writes_starved", 5)]);
    bench.begin_reads();
    let [a_read, a_write, next_write] = [read(8), write(50), write(60)].map(|info| bench.insert(info, 0));
    assert!(bench.force(a_write, 0));
    assert!(!bench.force(a_write, 0), "it does not wait any more");
    assert_eq!(bench.dispatch_all(0), [next_write, a_read]);
}

/// Red if a forced request that is our own choice leaves another state than that choice. The read has aged, but the
/// look for aged requests saw only the write ahead in the batch, and then began a batch of reads in idle in vain. The
/// read goes on with that batch, and passes no write.
#[test]
fn a_forced_choice_that_is_ours_is_made_as_ours() {
    let mut bench = Bench::new(&[("prio_aging_expire", 100)]);
    let a_write = bench.insert(write(0), 0);
    assert_eq!(bench.dispatch(0), a_write);
    let a_read = bench.insert(read(8), 0);
    bench.insert(write(16), 50 * MS);
    bench.insert(idle(0), 50 * MS);
    assert_eq!(bench.scheduler.peek(&mut (), Time(100 * MS)), Some(RqId(a_read)));
    assert!(bench.force(a_read, 100 * MS));
    assert!(bench.shows("batching: 1\nstarved: 0\nlast_dir: read\n"), "{}", bench.show());
}

/// Red if the oldest request, forced before it has expired by our clock, counts in the batch that was over: the next
/// batch would end one request early.
#[test]
fn a_forced_oldest_request_begins_a_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 2), ("read_expire", 10), ("writes_starved", 0)]);
    bench.begin_reads();
    let [oldest, a_read, passed, next_read] = [900, 8, 500, 910].map(|sector| bench.insert(read(sector), 0));
    assert_eq!(bench.dispatch(0), a_read);
    assert!(bench.force(oldest, 9 * MS));
    let a_write = bench.insert(write(0), 9 * MS);
    assert_eq!(bench.dispatch_all(9 * MS), [next_read, a_write, passed]);
}

/// Red if a forced request that lies ahead in the running batch begins another one: 300 would then belong to it.
#[test]
fn a_forced_request_ahead_belongs_to_the_running_batch() {
    let mut bench = Bench::new(&[("fifo_batch", 3), ("writes_starved", 0)]);
    bench.begin_reads();
    let [unseen, ahead, next, last] = [8, 100, 200, 300].map(|sector| bench.insert(read(sector), 0));
    let a_write = bench.insert(write(0), 0);
    assert!(bench.force(ahead, 0));
    assert_eq!(bench.dispatch_all(0), [next, a_write, last, unseen]);
}

/// Red if the classes that are tried for aged requests before the forced one are not tried, or others are. Idle has
/// only a write, so trying it ends the batch of reads, and the forced read begins another. Best-effort is tried before
/// idle, so a forced read of best-effort that had aged goes on with the batch. It had if real-time is queued, or if it
/// has aged by our clock.
#[test]
fn a_forced_choice_begins_the_batches_that_were_begun_in_vain() {
    let forced = |class: Class, is_real_time_queued: bool, now: u64| {
        let mut bench = Bench::new(&[("fifo_batch", 4), ("prio_aging_expire", 100)]);
        bench.begin_reads();
        let reads = [8, 16].map(|sector| bench.insert(in_class(class, sector), 0));
        bench.insert(Info { op: Op::Write, ..idle(0) }, 0);
        if is_real_time_queued {
            bench.insert(real_time(900), 0);
        }
        assert!(bench.force(reads[1], now));
        bench.show()
    };
    for (shown, what) in [
        (forced(Class::RealTime, true, 0), "batching: 1"),
        (forced(Class::BestEffort, false, 99 * MS), "batching: 1"),
        (forced(Class::BestEffort, false, 100 * MS), "batching: 2"),
        (forced(Class::BestEffort, true, 99 * MS), "batching: 2"),
    ] {
        assert!(shown.contains(what) && shown.contains("last_dir: read"), "no {what} in\n{shown}");
    }
}

#[test]
fn reserving_more_room_forgets_nothing() {
    let mut bench = Bench::new(&[]);
    let mut ids = Vec::new();
    for step in 0..500 {
        ids.push(bench.insert(read(step * 8), 0));
        if step % 100 == 50 {
            bench.scheduler.reserve(step as usize * 4);
        }
    }
    assert_eq!(bench.dispatch_all(0), ids);
}

#[test]
fn every_list_and_counter_is_shown() {
    let mut bench = Bench::new(&[]);
    bench.begin_reads();
    bench.insert(read(8), 0);
    bench.insert(idle(16), 0);
    bench.insert_at(real_time(24), InsertAt::Head, 0);
    let lines = [
        "read1_fifo_list:\n  rq 1 Read sector 8 + 8 fifo_time 500000000 ns\n",
        "read2_next_rq:\n  rq 2 Read sector 16 + 8",
        "batching: 1\nstarved: 0\nlast_dir: read\n",
        "dispatch:\n  rq 3 Read sector 24 + 8 fifo_time 0 ns\n",
        "owned_by_driver: 0 1 0\nqueued: 1 2 1\n",
        "level1: inserted 2 merged 0 dispatched 1 completed 0\n",
    ];
    for line in lines {
        assert!(bench.shows(line), "{line} is not in\n{}", bench.show());
    }
}
