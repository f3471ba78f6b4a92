//! Eight clients that have one read outstanding each, beside two clients that have many requests outstanding, under
//! `bfq`: on a volume that has ten shares of its ceiling, and eight clients that need a third of theirs.

use blkmq::Op;

use crate::limiter::rig::{Control, Counts, Load, Rig, SECOND, device};
use crate::limiter::{CLOUD, NONE};

/// How many clients have one read outstanding. Their loads come first.
const NR: usize = 8;

/// How long a client has none between two reads, in nanoseconds: not at all, and for a while.
const THINKS: [u64; 2] = [0, 20_000];

/// Operations a second: what the volume does of 4 KiB.
const CEILING: u64 = 1_100_000_000 / 4096;

/// What a client of the floods always has outstanding.
fn flood(op: Op) -> Load {
    Load { sync: true, ..Load::flood(op, 8, 64) }
}

/// The eight clients beside two such floods.
fn beside(flood: Load, think: u64) -> Vec<Load> {
    let client = Load { think, ..Load::flood(Op::Read, 8, 1) };
    [client; NR].into_iter().chain([flood; 2]).collect()
}

fn run(volume: &str, policy: &str, control: Control, loads: &[Load]) -> Counts {
    let mut rig = Rig::new(&[device(volume)], policy, control, loads);
    rig.run(2 * SECOND);
    rig.run(SECOND)
}

/// Reads a second, by client, from the least to the most.
fn rates(counts: &Counts) -> Vec<f64> {
    let done = counts.latencies[..NR].iter().map(Vec::len);
    let mut rates: Vec<f64> = done.map(|done| done as f64 * SECOND as f64 / counts.ns as f64).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

fn print(name: &str, counts: &Counts) {
    let rates = rates(counts);
    let (worst, best) = (rates[0], rates[NR - 1]);
    println!(
        "{name}: each {worst:.0} to {best:.0} reads/s, p99.9 {:.0} us; all {:.1} MB/s",
        counts.us(0, 9990),
        counts.all()
    );
}

/// Red if one of eight clients gets less than nine tenths of what it would have with the floods held to a tenth of the
/// ceiling by hand, or if the floods do not get all that is left. What a client leaves is lent to the floods one way
/// only: they have it until the client is back, and not for as long as they would be served otherwise. To lend it both
/// ways is the planted mistake: then `bfq` is not told of the slice, and some client gets less. Red too if a client
/// that comes back goes on with its last budget where the slice is long: then the floods lag behind, and are served
/// for a whole slice now and then (0.95).
#[test]
fn each_client_gets_what_it_would_beside_floods_that_are_held_by_hand() {
    let asynchronous = Load { sync: false, ..flood(Op::Write) };
    let deep = Load { depth: 256, ..flood(Op::Write) };
    // Of reads that take longer, more of the floods' requests go meanwhile: the slice is 60 requests, and not 12.
    let far = format!("{CLOUD},latency=220us");
    for (volume, flood, think, least) in [
        (CLOUD, flood(Op::Write), 0, 0.9),
        (CLOUD, flood(Op::Read), 20_000, 0.9),
        (CLOUD, asynchronous, 5000, 0.9),
        (&far, deep, 0, 0.97),
    ] {
        let held = Load { depth: 0, period: SECOND / (CEILING / 10), ..flood };
        let held = run(volume, "mq-deadline", NONE, &beside(held, think));
        print("floods held by hand", &held);
        let [worst, worst_both_ways] = [true, false].map(|one_way| {
            let mut rig = Rig::new(&[device(volume)], "bfq", Control::limiter(), &beside(flood, think));
            rig.tells_slice = one_way;
            rig.run(2 * SECOND);
            let counts = rig.run(SECOND);
            print(if one_way { "limiter" } else { "limiter, lent both ways" }, &counts);
            assert!(counts.all() >= 0.98 * 1100.0);
            let parts = (0..NR).map(|of| counts.sectors[of] as f64 / held.sectors[of] as f64);
            parts.fold(f64::INFINITY, f64::min)
        });
        println!("the worst client gets {worst:.3}, and {worst_both_ways:.3} with lending both ways");
        assert!(worst >= least && worst_both_ways < 0.9);
    }
}

/// A client gets four times the weight of the others while the limiter paces. Red if the floods do not share as their
/// weights say, or if `bfq` lets the volume wait for a client, as it does without a limiter where weights differ: the
/// eight had 4000 reads a second, and the floods 5.5:1. A client that comes back goes first anyway.
#[test]
fn weights_are_kept_and_no_client_is_waited_for() {
    for (heavy, ratio) in [(NR, 4.0), (0, 1.0)] {
        let mut rig = Rig::new(&[device(CLOUD)], "bfq", Control::limiter(), &beside(flood(Op::Write), 0));
        rig.run(2 * SECOND);
        rig.set_weight(heavy, 400);
        rig.run(SECOND / 2);
        let counts = rig.run(SECOND);
        print(&format!("load {heavy} weighs four times as much"), &counts);
        let found = counts.sectors[NR] as f64 / counts.sectors[NR + 1] as f64;
        assert!((0.95..1.05).contains(&(found / ratio)), "{found}");
        // A read takes 99 us where it waits for nothing.
        assert!(rates(&counts)[0] >= 0.9 * 1e9 / 99_000.0 && counts.all() >= 0.98 * 1100.0);
    }
}

/// Red if one of eight clients that ask alike gets more than a tenth less than another one, or if a flood does, though
/// all have one weight. Red too if there is nothing to cure: without a limiter the floods' requests wait in the volume,
/// and a client's behind them.
#[test]
fn clients_that_ask_alike_get_alike() {
    for (op, think) in [Op::Write, Op::Read].into_iter().zip(THINKS) {
        let loads = beside(flood(op), think);
        let [none, limiter] = [NONE, Control::limiter()].map(|control| {
            let counts = run(CLOUD, "bfq", control, &loads);
            print(&format!("{op:?} floods, {think} ns to think"), &counts);
            let rates = rates(&counts);
            assert!(rates[0] >= 0.9 * rates[NR - 1]);
            let [one, other] = [0, 1].map(|at| counts.sectors[NR + at] as f64);
            assert!((0.9..1.1).contains(&(one / other)));
            rates[0]
        });
        assert!(limiter >= 2.0 * none);
    }
}
