//! What the lockings do to the merging of `merge-64x32`: 64 sequential writers on a model of a hard disk, on virtual
//! time.

use std::collections::VecDeque;

use crate::device::{open, virtual_queue};
use crate::jobs::Rig;
use blkmq::{Bio, Buffer, Client, Locking, QueueCounters, Submitter, Time};

const SECOND: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
const WRITERS: u64 = 64;
const IODEPTH: usize = 32;

/// The place of a writer's next 4 KiB: sequential in 1 GiB of its own, 2 GiB apart.
fn sector(writer: u64, written: u64) -> u64 {
    (writer * 2 * GIB + written * 4096 % GIB) / 512
}

/// The share of operations that joined another one, and the share of these that did so in the plug.
fn merged(stats: QueueCounters) -> (f64, f64) {
    let merges = stats.merges_plug + stats.merges_insert;
    (merges as f64 / (stats.issued + merges) as f64, stats.merges_plug as f64 / (merges as f64))
}

/// The queue's counts of four seconds after the write cache has filled, and the operations that completed in that time.
fn run(locking: Locking, stages_all: bool) -> (QueueCounters, u64) {
    let mut rig = Rig::with("hdd", |q| {
        let q = q.scheduler("mq-deadline").locking(locking);
        if stages_all { q.stage_all() } else { q }
    });
    rig.q.change_knob("nr_requests", "64").expect("it is in range").wait().expect("there is a scheduler");
    for writer in 0..WRITERS {
        let mut written = 0;
        rig.job(IODEPTH, 4096, move |buffer| {
            written += 1;
            Bio::write(sector(writer, written - 1), buffer)
        });
    }
    rig.run(2 * SECOND);
    let before = rig.q.counters();
    rig.run(4 * SECOND);
    (rig.q.counters() - before, rig.jobs.iter().map(|job| job.completed).sum())
}

/// Red if staged requests are not merged before the combiner chooses, or if staged requests that find no room do not
/// merge.
#[test]
fn all_lockings_but_staged_merge_as_single_does() {
    let (stats, alone) = run(Locking::Single, false);
    let (single, _) = merged(stats);
    // Under `staged` what was left in a bucket looks for no merge.
    let whole = Locking::ALL.into_iter().filter(|locking| !matches!(locking, Locking::Single | Locking::Staged(_)));
    for (locking, stages_all) in whole.map(|locking| (locking, false)).chain([(Locking::Combining, true)]) {
        let (stats, completed) = run(locking, stages_all);
        let ((share, in_plug), ratio) = (merged(stats), completed as f64 / alone as f64);
        println!("{locking}, all staged {stages_all}: {:.2} % merged, {ratio:.4} of single; {stats:?}", 100.0 * share);
        assert!(share >= 0.95 && (share - single).abs() < 0.005, "{locking} {stages_all}: {share} to {single}");
        assert!(in_plug <= 0.05, "{in_plug} of them in the plug");
        assert!((0.99..=1.01).contains(&ratio), "{locking} {stages_all}: {ratio}");
        assert_eq!(stats.staged > 0, stages_all, "{stats:?}");
    }
}

/// The writers whose next bio waits for a tag, in order, and the requests that hold the tags. On a disk this way to
/// merge lost 72.9 %.
struct EarlyTags {
    waiters: VecDeque<usize>,
    free: usize,
}

/// The same load, but a bio takes one of `nr_requests` tags before it may go on to be merged. The bio gives the tag
/// back when it is over.
fn run_with_early_tags(nr_requests: usize) -> QueueCounters {
    let (q, clock) = virtual_queue(open("hdd"), |q| q.scheduler("mq-deadline").locking(Locking::Combining));
    let join = |_| q.submitter(&Client::new("writer")).expect("there is a place");
    let mut writers: Vec<(Submitter, u64)> = (0..WRITERS).map(join).map(|submitter| (submitter, 0)).collect();
    let mut tags = EarlyTags { waiters: (0..writers.len()).collect(), free: nr_requests };
    let (mut before, end) = (None, Time(6 * SECOND));
    while clock.now() < end {
        let mut moved = false;
        while tags.free > 0
            && let Some(writer) = tags.waiters.pop_front()
        {
            let (submitter, written) = &mut writers[writer];
            submitter
                .submit(Bio::write(sector(writer as u64, *written), Buffer::zeroed(4096)))
                .expect("there is a slot");
            submitter.flush_plug();
            (*written, tags.free, moved) = (*written + 1, tags.free - 1, true);
            if submitter.nr_outstanding() < IODEPTH {
                tags.waiters.push_back(writer);
            }
        }
        for (writer, (submitter, _)) in writers.iter_mut().enumerate() {
            let was_full = submitter.nr_outstanding() == IODEPTH;
            submitter.poll();
            let over = submitter.reap_all(|completion| assert!(completion.status.is_ok()));
            tags.free += over;
            moved |= over > 0;
            if was_full && over > 0 {
                tags.waiters.push_back(writer);
            }
        }
        if !moved {
            let next = writers.iter().filter_map(|(submitter, _)| submitter.next_wakeup()).min();
            clock.advance_to(next.expect("something is outstanding").max(clock.now().after(1)).min(end));
        }
        if before.is_none() && clock.now() >= Time(2 * SECOND) {
            before = Some(q.counters());
        }
    }
    q.counters() - before.expect("two seconds have passed")
}

/// Red if the check of the test above cannot fail.
#[test]
fn tags_that_are_taken_before_merging_keep_it_from_happening() {
    let (share, _) = merged(run_with_early_tags(64));
    println!("{:.1} % merged", 100.0 * share);
    assert!(share < 0.6, "{share}");
}
