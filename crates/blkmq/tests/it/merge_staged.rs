//! What the lockings do to the merging of `merge-64x32`: 64 sequential writers on a model of a hard disk, on virtual
//! time.

use crate::jobs::Rig;
use blkmq::{Locking, QueueCounters};

const SECOND: u64 = 1_000_000_000;

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
    rig.sequential_writers(32, 4096);
    rig.run(2 * SECOND);
    let before = rig.q.counters();
    rig.run(4 * SECOND);
    (rig.q.counters() - before, rig.completed())
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
