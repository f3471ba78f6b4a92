//! Q6: how clients and groups share a device: equal ones and weighted ones, some in groups of groups, some with
//! requests of different sizes, one with many connections, and one that thinks between two requests.

use std::time::Duration;

use blkmq::Op;

use super::error::JudgeError;
use super::load::{End, Group, LARGE, Load, Pace, Plan, SMALL};
use super::measuring::{Measuring, Test, value};
use super::promises::{Promises, Resource};
use super::row::{Figure, INDEX, Target, aimed};
use super::world::Outcome;

pub(super) const TEST: Test = Test {
    id: "Q6",
    title: "readers at random places share the device, most of them with 16 reads of 4 KiB that wait",
    nr_runs: (2 * CLIENTS.len() + 1 + 1 + 1 + SIZES.len() + CONNECTIONS.len() + 1 + 2) as u32,
    needs_none: false,
    measure,
    judge,
};

const CLIENTS: [u32; 4] = [2, 16, 64, 256];
/// Reads of a client that wait.
const WAITING: u32 = 16;
/// A device that takes no more than this is full of one client's reads, and [`WAITING`] more wait. One that takes more
/// may have all of them.
const SHORT_QUEUE: u32 = 64;
/// The same where a scheduler promises shares of a full device only: no device does more reads at once, whatever it
/// takes.
const FULL: u32 = 128;
/// The weights that clients have in turn.
const WEIGHTS: [u16; 2] = [100, 1000];
/// The levels of priority of readers with one read each.
const LEVELS: [u8; 4] = [7, 6, 4, 0];
/// Bytes of a read of each of the clients that have reads of different sizes.
const SIZES: [(&str, u32); 3] = [("small", SMALL), ("large", LARGE), ("huge", 4 * LARGE)];
/// Connections of the aggressor, each of which asks for as much as the victim's only one.
pub(super) const CONNECTIONS: [u32; 5] = [1, 2, 4, 8, 16];
/// What a client thinks before it asks again.
const THINK_NS: u64 = 20_000;

/// Turns that the client with the least share has in a run.
const TURNS: f64 = 50.0;
/// The longest turn in seconds, and bytes of a turn where turns are short.
const TURN_SECONDS: f64 = 0.125;
const TURN_BYTES: f64 = 131_072.0;

/// Operations after which a run ends whose turns have any length.
const MOST_OPERATIONS: u64 = 1_000_000;

const LEAST_JAIN: f64 = 0.99;
const LEAST_WEIGHTED_JAIN: f64 = 0.97;
/// Percent of a client's share.
const MOST_ERROR: f64 = 5.0;
/// The part of its share that a client has to keep beside one that wants more than its own.
const KEPT: f64 = 0.9;

/// Jain's index of what clients got per share: 1 if all got the same, 1/n if one got everything.
fn jain(got: &[f64], shares: &[f64]) -> f64 {
    let per_share = || got.iter().zip(shares).map(|(got, share)| got / share);
    let sum: f64 = per_share().sum();
    let squares: f64 = per_share().map(|got| got * got).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (got.len() as f64 * squares) }
}

/// The largest difference between a client's part of everything and its share, in percent of its share.
fn largest_error(got: &[f64], shares: &[f64]) -> f64 {
    let all = got.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let errors = got.iter().zip(shares).map(|(got, share)| ((got / all) / share - 1.0).abs());
    100.0 * errors.fold(0.0, f64::max)
}

/// The index and the error, as figures of this case.
fn index_and_error(case: &str, got: &[f64], shares: &[f64]) -> [Figure; 2] {
    let meaning = "1 if every client got its share, 1/n if one client got everything.";
    let index = Figure::new(format!("{case}: Jain"), jain(got, shares), INDEX, meaning);
    let meaning = "How far the worst client was from its share.";
    [index, Figure::new(format!("{case}: {ERROR}"), largest_error(got, shares), "%", meaning)]
}

/// The bytes of each client.
fn bytes(outcome: &Outcome) -> Vec<f64> {
    outcome.clients.iter().map(|client| client.bytes as f64).collect()
}

/// How long the turns are in which clients get the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    /// As long as the scheduler makes them by itself, with requests of any size.
    Own,
    /// As short as its knobs allow, with requests of 4 KiB.
    Short,
}

/// Clients whose shares are known.
struct Sharing {
    clients: Vec<Plan>,
    groups: Vec<Group>,
    /// The part of the device that each client should get.
    shares: Vec<f64>,
    turns: Turns,
}

fn reader(name: impl Into<String>, on: &Measuring<'_>) -> Plan {
    let in_device = match on.site.depth() {
        depth if depth <= SHORT_QUEUE => depth,
        depth if once_full(on).is_some() => depth.min(FULL),
        _ => 0,
    };
    Plan::new(name, Op::Read, SMALL, in_device + WAITING, on.site.area())
}

/// For how long the device has to be full before the scheduler keeps its promise, if it promises no more.
fn once_full(on: &Measuring<'_>) -> Option<u64> {
    on.contestant.promises.shares.and_then(|shares| shares.once_full)
}

impl Sharing {
    /// Clients in the root, each with this weight.
    fn flat(weights: &[u16], on: &Measuring<'_>) -> Self {
        let all: f64 = weights.iter().copied().map(f64::from).sum();
        let client = |(n, weight): (usize, &u16)| Plan { weight: *weight, ..reader(format!("client {n}"), on) };
        Self {
            clients: weights.iter().enumerate().map(client).collect(),
            groups: Vec::new(),
            shares: weights.iter().map(|weight| f64::from(*weight) / all).collect(),
            turns: Turns::Short,
        }
    }

    /// Two groups, 1:3, of which one has clients 1:3, and the other one a group of two clients beside one of one.
    fn nested(on: &Measuring<'_>) -> Self {
        let client = |name, group, weight| Plan { weight, ..reader(name, on).of(group) };
        Self {
            clients: vec![
                client("first", "one", 100),
                client("second", "one", 300),
                client("third", "inner", 100),
                client("fourth", "inner", 100),
                client("fifth", "single", 100),
            ],
            groups: vec![
                Group::new("one"),
                Group { weight: 300, ..Group::new("two") },
                Group { parent: "two", ..Group::new("inner") },
                Group { parent: "two", ..Group::new("single") },
            ],
            shares: vec![1.0 / 16.0, 3.0 / 16.0, 3.0 / 16.0, 3.0 / 16.0, 3.0 / 8.0],
            turns: Turns::Short,
        }
    }

    /// Clients with reads of different sizes, each in a group of its own.
    fn of_sizes(sizes: &[(&'static str, u32)], on: &Measuring<'_>) -> Self {
        let client = |&(name, bytes): &(&'static str, u32)| Plan { bytes, ..reader(name, on).of(name) };
        Self {
            clients: sizes.iter().map(client).collect(),
            groups: sizes.iter().map(|(name, _)| Group::new(name)).collect(),
            shares: vec![1.0 / sizes.len() as f64; sizes.len()],
            turns: Turns::Own,
        }
    }

    /// A client and others, each side in a group of its own.
    fn victim(others: Vec<Plan>, depth: u32, on: &Measuring<'_>) -> Self {
        let victim = Plan { depth, ..reader("victim", on) }.of("victim");
        let others = others.into_iter().map(|plan| Plan { depth, ..plan }.of("aggressor"));
        Self {
            clients: std::iter::once(victim).chain(others).collect(),
            groups: vec![Group::new("victim"), Group::new("aggressor")],
            // The others count together.
            shares: vec![0.5, 0.5],
            turns: Turns::Short,
        }
    }

    /// Runs until the client with the least share has had its turns.
    fn run(&self, on: &mut Measuring<'_>) -> Result<Outcome, JudgeError> {
        let is_short = self.turns == Turns::Short;
        let knobs = on.contestant.promises.shares.map_or_else(Vec::new, |shares| {
            if is_short { [shares.knobs, shares.short_turns].concat() } else { shares.knobs.to_vec() }
        });
        let nr_turns = TURNS / self.shares.iter().copied().fold(1.0, f64::min);
        let end = if is_short {
            let operations = nr_turns * (on.speed.iops * TURN_SECONDS).clamp(1.0, TURN_BYTES / f64::from(SMALL));
            let operations = operations.max(20_000.0);
            // A scheduler that serves few clients at a time may be slower than the device.
            on.end(Duration::from_secs_f64(4.0 * operations / on.speed.iops), operations as u64)
        } else {
            let time = Duration::from_secs_f64(nr_turns * TURN_SECONDS / on.shorter as f64);
            on.end(time, MOST_OPERATIONS)
        };
        // On a real device each run has its slice of time.
        let end = match once_full(on).filter(|_| on.slice.is_none()) {
            Some(warm_ns) => End { warm_ns, warm_operations: u64::MAX, time_ns: warm_ns + end.time_ns, ..end },
            None => end,
        };
        // A scheduler may learn from its first turns how long turns should be.
        let openers = (0..2).map(|n| Plan { depth: 1, ..reader(format!("opener {n}"), on) }).collect();
        let groups = self.groups.clone();
        on.run_load(&Load { openers, groups, knobs, ..Load::new(self.clients.clone(), end) })
    }
}

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    for nr_clients in CLIENTS {
        for (weights, kind) in [([WEIGHTS[0]; 2], EQUAL), (WEIGHTS, WEIGHTED)] {
            let weights: Vec<u16> = weights.into_iter().cycle().take(nr_clients as usize).collect();
            let load = Sharing::flat(&weights, on);
            figures.extend(index_and_error(&format!("{nr_clients} {kind}"), &bytes(&load.run(on)?), &load.shares));
        }
    }
    let load = Sharing::nested(on);
    figures.extend(index_and_error(NESTED, &bytes(&load.run(on)?), &load.shares));
    figures.extend(of_levels(on)?);
    figures.extend(of_sizes(on)?);
    figures.extend(victims(on)?);
    figures.push(thinking(on)?);
    Ok(figures)
}

/// Readers of different levels of priority, each of which waits for its read before it asks for the next one. How a
/// scheduler charges short turns decides what they get.
fn of_levels(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let client = |level: u8| Plan { level, depth: 1, ..reader(format!("level {level}"), on) };
    let clients = LEVELS.map(client).into();
    let load = Sharing { clients, shares: vec![0.25; LEVELS.len()], turns: Turns::Own, ..Sharing::flat(&[], on) };
    let got = bytes(&load.run(on)?);
    let all = got.iter().sum::<f64>().max(1.0);
    let meaning = "What a reader with one read gets beside those of the other levels.";
    let figure = |(level, bytes): (&u8, f64)| Figure::new(level_case(*level), 100.0 * bytes / all, "%", meaning);
    Ok(LEVELS.iter().zip(got).map(figure).collect())
}

/// Clients with reads of different sizes: what they get in bytes, and in time.
fn of_sizes(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let load = Sharing::of_sizes(&SIZES, on);
    let outcome = load.run(on)?;
    let mut times = Vec::new();
    for (place, size) in SIZES.iter().enumerate() {
        let alone = Sharing::of_sizes(std::slice::from_ref(size), on).run(on)?;
        times.push(outcome.rate(place..place + 1) / alone.rate(0..1).max(1.0));
    }
    let in_bytes = index_and_error(&of_sizes_case(Resource::Bytes), &bytes(&outcome), &load.shares);
    let in_time = index_and_error(&of_sizes_case(Resource::Time), &times, &load.shares);
    Ok(in_bytes.into_iter().chain(in_time).collect())
}

/// What a client keeps beside another one with several connections, or beside several.
fn victims(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let depth = on.site.depth().clamp(WAITING, 128);
    let mut figures = Vec::new();
    let mut figure = |case, others, on: &mut Measuring<'_>| {
        let got = bytes(&Sharing::victim(others, depth, on).run(on)?);
        let share = 100.0 * got[0] / got.iter().sum::<f64>().max(1.0);
        figures.push(Figure::new(case, share, "%", VICTIM));
        Ok::<(), JudgeError>(())
    };
    for connections in CONNECTIONS {
        let aggressor = (0..connections).map(|_| reader("aggressor", on)).collect();
        figure(victim_case(connections), aggressor, on)?;
    }
    let aggressors = (0..NR_TOGETHER).map(|n| reader(format!("aggressor {n}"), on)).collect();
    figure(format!("victim beside {NR_TOGETHER} clients of one group"), aggressors, on)?;
    Ok(figures)
}

/// What a client that thinks between two reads keeps beside a flood, with ten times its weight.
fn thinking(on: &mut Measuring<'_>) -> Result<Figure, JudgeError> {
    let depth = on.site.depth().min(WAITING);
    let thinker = Plan { weight: WEIGHTS[1], depth, pace: Pace::Thinking(THINK_NS), ..reader("thinker", on) };
    let flood = Plan { depth: (2 * on.site.depth()).min(128), ..reader("flood", on) };
    let both = Sharing { clients: vec![thinker.clone(), flood], ..Sharing::flat(&[WEIGHTS[1], WEIGHTS[0]], on) };
    let alone = Sharing { clients: vec![thinker], ..Sharing::flat(&WEIGHTS[1..], on) };
    let (beside, alone) = (both.run(on)?.rate(0..1), alone.run(on)?.rate(0..1));
    let meaning = "What a client keeps of its own rate that thinks for 20 us between two reads; its share is 10 of 11.";
    Ok(Figure::new(THINKING, 100.0 * beside / alone.max(1.0), "%", meaning))
}

const ERROR: &str = "largest error";
const EQUAL: &str = "equal clients";
const WEIGHTED: &str = "clients 1:10";
const ONE_READ: &str = "one read at a time, level";
const NESTED: &str = "groups of groups";
const THINKING: &str = "thinker 10:1 beside a flood";
const VICTIM: &str = "What one client keeps beside the others, which are one group; half is its share.";

/// Clients of one group beside the victim.
const NR_TOGETHER: u32 = 16;

/// The case in which the aggressor has so many connections.
pub(super) fn victim_case(connections: u32) -> String {
    format!("victim beside {connections} connections")
}

/// The case of the reader of this level.
fn level_case(level: u8) -> String {
    format!("{ONE_READ} {level}")
}

/// The case in which requests have different sizes, and shares are parts of this.
fn of_sizes_case(of: Resource) -> String {
    let of = match of {
        Resource::Bytes => "bytes",
        Resource::Time => "time",
    };
    format!("sizes 1:16:64, in {of}")
}

fn judge(own: Vec<Figure>, _: &[Figure], promises: &Promises) -> Vec<Figure> {
    let Some(shares) = promises.shares else { return own };
    let error = |of: Resource| value(&own, &format!("{}: {ERROR}", of_sizes_case(of)));
    let charged = shares.of.iter().copied().min_by(|one, other| error(*one).total_cmp(&error(*other)));
    let is_charged = |case: &str| {
        let of_sizes = [Resource::Bytes, Resource::Time].into_iter().find(|of| case.starts_with(&of_sizes_case(*of)));
        of_sizes.is_none() || of_sizes == charged
    };
    let target = |case: &str| match case {
        _ if case.starts_with("victim") => Target::AtLeast(50.0 * KEPT),
        THINKING => Target::AtLeast(100.0 * KEPT * 10.0 / 11.0),
        _ if case.ends_with(ERROR) => Target::AtMost(MOST_ERROR),
        _ if case.contains(WEIGHTED) => Target::AtLeast(LEAST_WEIGHTED_JAIN),
        _ => Target::AtLeast(LEAST_JAIN),
    };
    let is_aimed = |figure: &Figure| is_charged(&figure.case) && !figure.case.starts_with(ONE_READ);
    aimed(own, |figure| is_aimed(figure).then(|| target(&figure.case)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use blkmq::driver::spec::Opener;

    use super::super::site::Speed;
    use super::super::{Contestant, Site};
    use super::*;

    /// Red if the index or the error is not that of the definition, or if shares are left out.
    #[test]
    fn shares_are_judged_by_jain_and_by_the_worst_client() {
        let quarters = [0.25; 4];
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0], &quarters), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0], &quarters), 0.25);
        assert_eq!(jain(&[0.0, 0.0], &[0.5, 0.5]), 0.0);
        let weighted = [1.0 / 11.0, 10.0 / 11.0];
        assert!(largest_error(&[10.0, 100.0], &weighted) < 1e-9);
        // Equal parts, where one should have 10/11: the other one gets 5.5 times its share.
        assert!((largest_error(&[1.0, 1.0], &weighted) - 450.0).abs() < 1e-9);
    }
    /// Red if bfq does not give clients their shares that have requests of several sizes. The disk takes one request,
    /// because with 32 in the disk, what a client asked for in its turn is done in the next turns too. The other loads
    /// need longer runs on such a disk.
    #[test]
    fn bfq_keeps_its_promise_of_shares_to_requests_of_several_sizes() {
        let site = Site::open("hdd,hw_queue_depth=1", false, &Opener::SILENT).expect("the device is good");
        let (contestant, stop, pool) = (Contestant::named("bfq"), AtomicBool::new(false), &mut site.pool());
        let speed = Speed::of(&site, Duration::from_secs(60), pool, &stop).expect("the runs end");
        let on =
            &mut Measuring { site: &site, contestant: &contestant, speed, slice: None, shorter: 2, pool, stop: &stop };
        let figures = judge(of_sizes(on).expect("the runs end"), &[], &contestant.promises);
        let rows: Vec<_> = figures.into_iter().map(|figure| figure.row(TEST.id, "bfq")).collect();
        let judged: Vec<_> = rows.iter().filter(|row| row.pass.is_some()).collect();
        // In half of the turns an error may be twice as large.
        let is_small = |case: &str, value| case.ends_with(ERROR) && value <= 2.0 * MOST_ERROR;
        assert!(
            judged.len() == 2 && judged.iter().all(|row| row.pass == Some(true) || is_small(&row.case, row.value)),
            "{rows:?}"
        );
    }
}
