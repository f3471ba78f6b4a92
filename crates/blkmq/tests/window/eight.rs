//! Eight clients that have one read outstanding each, beside two clients that have many requests outstanding, under
//! `bfq`: on a volume that has ten shares of its ceiling, and eight clients that need a third of theirs.

use blkmq::Op;

use crate::rig::{Control, Counts, Load, Rig, SECOND, device};
use crate::{CLOUD, NONE};

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

fn run(policy: &str, control: Control, loads: &[Load]) -> Counts {
    let mut rig = Rig::new(&[device(CLOUD)], policy, control, loads);
    rig.run(2 * SECOND);
    rig.run(2 * SECOND)
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

/// Red if one of eight clients that ask alike gets more than a tenth less than another one, or if a flood does, though
/// all have one weight. Red too if there is nothing to cure: without a window the floods' requests wait in the volume,
/// and a client's behind them.
#[test]
fn clients_that_ask_alike_get_alike() {
    for (op, think) in [Op::Write, Op::Read].into_iter().zip(THINKS) {
        let loads = beside(flood(op), think);
        let [none, window] = [NONE, Control::window()].map(|control| {
            let counts = run("bfq", control, &loads);
            print(&format!("{op:?} floods, {think} ns to think"), &counts);
            let rates = rates(&counts);
            assert!(rates[0] >= 0.9 * rates[NR - 1]);
            let [one, other] = [0, 1].map(|at| counts.sectors[NR + at] as f64);
            assert!((0.9..1.1).contains(&(one / other)));
            rates[0]
        });
        assert!(window >= 2.0 * none);
    }
}

/// Red if a client that the rig lets think is asked for more than it would ask.
#[test]
fn a_client_thinks_between_two_reads() {
    for think in THINKS {
        let held = Load { depth: 0, period: SECOND / (CEILING / 10), ..flood(Op::Write) };
        let counts = run("bfq", NONE, &beside(held, think));
        print(&format!("floods held, {think} ns to think"), &counts);
        // A read takes 99 us where nothing is over the ceiling.
        let most = 1e9 / (99_000 + think) as f64;
        let rates = rates(&counts);
        assert!(rates[0] >= 0.97 * most && rates[NR - 1] <= 1.03 * most, "{rates:?} {most}");
    }
}
