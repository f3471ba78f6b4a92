//! Whatever a client does, it gets no more than its due of the device's time while another one is hungry.
//!
//! A client's part is its rate over its rate alone, without a scheduler. The trickster always asks for eight times as
//! much as its honest neighbour of the same weight, so without a scheduler it gets most of the device. Each test says
//! that first, or it would be vacuous.

use std::ops::Range;
use std::sync::Arc;

use blkmq::Op;
use blkmq::driver::Driver;

use super::cached::{CACHED, CachedDisk, UNCACHED};
use super::load::{MS, Outcome, Plan, Work, open, run_on};

/// Devices a tenth as fast as those that the models are by default, so that runs are short.
const SSD: &str = "ssd,iops=79000";
const CLOUD: &str = "cloud,iops=27500,mbps=200";

/// The part of its due that a trickster gets at most, and the part of its own that the other keeps.
const MOST: f64 = 1.1;
const LEAST: f64 = 0.9;

/// What the honest one has outstanding, and the trickster.
const FEW: usize = 64;
const MANY: usize = 8 * FEW;

/// Milliseconds: when what both get counts, and when it does where requests have to be priced. A run ends with it.
const SOON: Range<u64> = 500..1500;
const PRICED: Range<u64> = 4000..5000;

fn honest(work: Work) -> Plan {
    Plan { work, ..Plan::new("honest", FEW) }
}

fn trickster(work: Work) -> Plan {
    Plan { work, ..Plan::new("trickster", MANY) }
}

/// The parts that both have of the device's time: without a scheduler, and under `fair`.
fn parts(device: &dyn Fn() -> Arc<dyn Driver>, plans: &[Plan; 2], at: &Range<u64>) -> [[f64; 2]; 2] {
    let run = |scheduler: &str, plans: &[Plan]| -> Outcome { run_on(device(), scheduler, plans, &[], at.end) };
    let alone = plans.each_ref().map(|plan| run("none", std::slice::from_ref(plan)).rate(0, at.clone()));
    ["none", "fair"].map(|scheduler| {
        let both = run(scheduler, plans);
        let parts = [0, 1].map(|client| both.rate(client, at.clone()) / alone[client]);
        println!("{scheduler} {:?} beside {:?}: {parts:.3?}", plans[0].work, plans[1].work);
        parts
    })
}

/// The trickster gets at most its half of what both get and the honest one keeps its own, though not without a
/// scheduler. Both together may have more than one has alone, where they want different things of the device.
fn assert_no_gain(device: &dyn Fn() -> Arc<dyn Driver>, plans: &[Plan; 2], at: &Range<u64>) {
    let [none, fair] = parts(device, plans, at);
    assert!(none[0] < LEAST * 0.5, "it is no trick: without a scheduler the honest one has {none:.3?}");
    let half = (0.5 * (fair[0] + fair[1])).max(0.5);
    assert!(fair[1] <= MOST * half && fair[0] >= LEAST * 0.5, "{fair:.3?}, and {none:.3?} without a scheduler");
}

fn assert_no_gain_on(devices: &[&str], plans: &[Plan; 2]) {
    assert_no_gain_at(devices, plans, &SOON);
}

fn assert_no_gain_at(devices: &[&str], plans: &[Plan; 2], at: &Range<u64>) {
    for device in devices {
        println!("{device}");
        assert_no_gain(&|| open(device), plans, at);
    }
}

/// Red if clients count by connection: each is one of seventeen then, as without a scheduler.
#[test]
fn splitting_into_connections_gains_nothing() {
    let split = Plan { connections: 16, depth: FEW, ..trickster(Work::READ) };
    assert_no_gain_on(&[SSD, CLOUD], &[honest(Work::READ), split]);
}

/// Red if requests are counted instead of their costs: a read of 64 KiB takes eight times as long here.
#[test]
fn larger_reads_gain_nothing() {
    let large = trickster(Work::Data { op: Op::Read, bytes: 65536 });
    assert_no_gain_on(&["ssd,iops=79000,link_mbps=690"], &[honest(Work::READ), large]);
}

/// Red if unlike requests are not priced by what each client gets alone: on the first device a read of 64 KiB takes as
/// long as one of 4 KiB, on the second 16 times as long, by its bytes, and so does a write there. Without prices the
/// large writes get 0.65 to 0.35 of the honest reads, and on the first device the honest reads 0.9 (tried).
#[test]
fn requests_of_another_price_gain_nothing() {
    for (op, devices) in [(Op::Read, &[SSD, CLOUD][..]), (Op::Write, &[CLOUD])] {
        let large = trickster(Work::Data { op, bytes: 65536 });
        assert_no_gain_at(devices, &[honest(Work::READ), large], &PRICED);
    }
}

/// A client that always stays for a short time, has its operations answered, leaves, and comes again under its name.
///
/// Red if one that comes goes before those that wait, as without a scheduler.
#[test]
fn leaving_and_joining_again_gains_nothing() {
    assert_no_gain_on(&[SSD, CLOUD], &[honest(Work::READ), Plan { stays: Some(20 * MS), ..trickster(Work::READ) }]);
}

/// Red if discards cost nothing.
#[test]
fn storms_of_discards_gain_nothing() {
    assert_no_gain_on(&[SSD, CLOUD], &[honest(Work::READ), trickster(Work::Discard { sectors: 8 })]);
}

/// A discard of 64 MiB takes these devices no longer than one of 4 KiB.
///
/// Red if discards cost by the sector: the reader then has 0.2 of the device's time (tried).
#[test]
fn storms_of_large_discards_gain_nothing() {
    assert_no_gain_on(&[SSD, CLOUD], &[honest(Work::READ), trickster(Work::Discard { sectors: 1 << 17 })]);
}

/// A client that alternates between two kinds of requests is charged for each by what that kind costs. Its honest
/// neighbour keeps 0.45 of the device's time and more, but 0.437 beside writes of 64 KiB to the volume each 200 ms.
///
/// Red if a price belongs to what the client asked for before: it then gains 1.3 of its due by changing in time.
#[test]
fn alternating_between_unlike_requests_gains_nothing() {
    let data = |op, bytes| Work::Data { op, bytes };
    let kinds = [
        (CLOUD, Work::READ, data(Op::Write, 65536)),
        (CLOUD, Work::READ, data(Op::Read, 65536)),
        (SSD, Work::READ, data(Op::Read, 65536)),
        (SSD, Work::READ, Work::Discard { sectors: 1 << 17 }),
    ];
    for (device, work, other) in kinds {
        let alone = run_on(open(device), "none", &[honest(Work::READ)], &[], SOON.end).rate(0, SOON);
        for period in [20, 60, 200, 1000] {
            let trick = Plan { alternates: Some((other.clone(), period * MS)), ..trickster(work.clone()) };
            let fair = run_on(open(device), "fair", &[honest(Work::READ), trick], &[], 8000);
            let part = fair.rate(0, 4000..8000) / alone;
            println!("{device}, {work:?} and {other:?} each {period} ms: {part:.3}");
            assert!(part >= 0.43, "{device}, {work:?} and {other:?} each {period} ms: {part:.3}");
        }
    }
}

/// Red if what is read to be written back is another client's, or nobody's.
#[test]
fn rewriting_parts_of_blocks_gains_nothing() {
    assert_no_gain_on(&[SSD, CLOUD], &[honest(Work::READ), trickster(Work::Rewrite)]);
}

/// Flushes wait for writes, so they hardly cost a reader anything; a writer's rows are filled up.
#[test]
fn storms_of_flushes_gain_nothing() {
    for work in [Work::READ, Work::WRITE] {
        let [none, fair] = parts(&|| open(SSD), &[honest(work), trickster(Work::Flush)], &SOON);
        assert!(fair[1] <= MOST * 0.5 && fair[0] >= LEAST * 0.5, "{fair:.3?}, and {none:.3?} without a scheduler");
    }
}

/// A client that pauses again and again has its half while it asks, and no more. One that pauses for 2 ms has requests
/// waiting all the time.
///
/// Red if a client that was away may have what it did not ask for, if bounding begins anew after each pause, or if what
/// it lent comes back only at the end of a window (tried: it then has 29 % in 100 ms).
#[test]
fn pauses_neither_gain_nor_lose() {
    for (asks, pauses) in [(2, 2), (20, 20), (100, 100), (300, 50), (200, 300)] {
        let trick = Plan { rhythm: Some((asks * MS, pauses * MS)), ..trickster(Work::READ) };
        let run = |scheduler| run_on(open(SSD), scheduler, &[honest(Work::READ), trick.clone()], &[], SOON.end);
        let asking: Vec<_> = match asks {
            2 => vec![SOON],
            _ => (0..SOON.end).step_by((asks + pauses) as usize).map(|from| from..from + asks).collect(),
        };
        let counted = || asking.iter().filter(|at| at.start >= SOON.start && at.end <= SOON.end);
        let rate = |of: &Outcome, client| counted().map(|at| of.rate(client, at.clone())).sum::<f64>();
        let [none, fair] = ["none", "fair"].map(|scheduler| {
            let outcome = run(scheduler);
            let [kept, taken] = [0, 1].map(|client| rate(&outcome, client));
            [kept, taken].map(|rate| rate / (kept + taken))
        });
        println!("{asks} ms and {pauses} ms: {fair:.3?}, and {none:.3?} without a scheduler");
        assert!(none[1] > MOST * 0.5, "{asks} ms and {pauses} ms: it is no trick: {none:.3?}");
        assert!((LEAST * 0.5..=MOST * 0.5).contains(&fair[1]), "{asks} ms and {pauses} ms: {fair:.3?}");
    }
}

/// The trickster's hits come from many connections, which take turns at a device that has few requests at once.
///
/// Red if misses wait for hits, as without a scheduler.
#[test]
fn reading_what_is_cached_takes_nothing_from_a_neighbour() {
    let honest = Plan { area: UNCACHED, ..honest(Work::READ) };
    let trick = Plan { area: CACHED, connections: 16, depth: FEW, ..trickster(Work::READ) };
    assert_no_gain(&|| Arc::new(CachedDisk::default()), &[honest, trick], &SOON);
}

/// Milliseconds: how soon who was away has its due again.
const PERIOD: u64 = 500;

/// One group floods the device alone, and all its requests pass, until the other one comes back.
///
/// Red if nothing holds back a flood that passes: without a scheduler the other gets a seventeenth.
#[test]
fn a_group_that_returns_while_requests_pass_has_its_due_soon() {
    let groups = [("left", "", 100), ("right", "", 100)];
    let plans = [
        Plan { group: "left", delay: 1000 * MS, ..honest(Work::READ) },
        Plan { group: "right", depth: 1000, ..trickster(Work::READ) },
    ];
    for device in [SSD, CLOUD] {
        let [none, fair] = ["none", "fair"].map(|scheduler| run_on(open(device), scheduler, &plans, &groups, 2000));
        let at = 1000 + PERIOD..2000;
        let part = |of: &Outcome| of.rate(0, at.clone()) / of.total(at.clone());
        for from in (1000..2000).step_by(100) {
            println!("{device} {from}: {:.3}", fair.rate(0, from..from + 100) / fair.total(from..from + 100));
        }
        assert!(fair.bypassed as f64 > 0.9 * fair.total(0..1000), "{device}: the flood passes");
        assert!(part(&none) < 0.1 && part(&fair) >= LEAST * 0.5, "{device}: {:.3} of {:.3}", part(&fair), part(&none));
    }
}
