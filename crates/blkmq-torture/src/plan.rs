//! What a world is like, drawn from its seed.
//!
//! Each world switches some features on or off and makes others frequent. Some bugs need much of one feature, others
//! need that a feature is absent. Such bugs are found because worlds differ, not because one world has everything
//! (Groce, Zhang, Eide, Chen, Regehr: "Swarm testing", ISSTA 2012).

use blkmq_vcpu::Random;
use blkmq_vcpu::schedule::{Priorities, Schedule, Targeted, Uniform};
use blkmq_virtual::{Accounting, Locking, scheduler_names};

use super::client::Workload;
use super::control::{Alterable, Whims};
use super::device::DeviceConfig;
use super::pace::{Pace, magnitude, shallow, wbt_lat_usec};
use super::settings::{Settings, go_together, orders_all};
use super::tenancy::Beginning;

/// The cache lines that several threads write, by their names in the code.
const LINES: &[&str] = &[
    "ctx.lists",
    "hctx.ctx_map",
    "hctx.dispatch_busy",
    "hctx.gave_back",
    "hctx.inbox",
    "hctx.nr_limited_completed",
    "hctx.stalled",
    "issue.incoming",
    "issue.lock",
    "pool.word",
    "pools.fold_at",
    "pools.targets",
    "queue.dispatching",
    "queue.gate_meter",
    "queue.gauge",
    "queue.has_plans",
    "queue.hold",
    "queue.hold_counts",
    "queue.inserting",
    "queue.limiter_look",
    "queue.new_reports",
    "queue.nr_sleepers",
    "queue.policy_wakeup",
    "queue.settings",
    "queue.staging",
    "queue.timeout_scan",
    "queue.turn",
    "queue.word",
    "request.state",
    "ring.noted",
    "ring.taken",
    "submitter.activity",
    "submitter.bucket",
    "submitter.completions",
    "submitter.counters",
    "submitter.flows",
    "submitter.latencies",
    "submitter.service",
    "submitter.sleeping",
    "submitter.sums",
    "tags.word",
];

/// What decides which CPU goes on.
#[derive(Debug, Clone, Copy)]
enum Order {
    Uniform,
    Priorities,
    Targeted(&'static str),
}

/// What a world is like.
#[derive(Debug)]
pub(crate) struct Plan {
    order: Order,
    /// Steps between decisions on average.
    mean_steps: u64,
    order_random: Random,
    /// Virtual time of a step, in ns.
    pub(crate) step_ns: u64,
    pub(crate) scheduler: &'static str,
    pub(crate) locking: Locking,
    /// How often the depths of tokens were quartered before the scheduler is in place, if it takes tokens.
    pub(crate) shallow: u32,
    /// Knobs that the scheduler has from the beginning.
    pub(crate) knobs: Vec<(&'static str, i64)>,
    /// Requests may bypass the scheduler.
    pub(crate) bypass: bool,
    /// Requests of each hardware queue, if the plan sets this number.
    pub(crate) nr_requests: Option<u32>,
    /// Slots of each submitter.
    pub(crate) slots: u16,
    pub(crate) io_timeout_ms: u32,
    pub(crate) accounting: Accounting,
    pub(crate) device: DeviceConfig,
    pub(crate) device_random: Random,
    pub(crate) clients: Vec<Workload>,
    pub(crate) tenancy: Beginning,
    pub(crate) whims: Whims,
    /// The changes made by a second operator, which stops the queue now and then.
    pub(crate) second: Option<Whims>,
    /// The knob `wbt_lat_usec`. `None`: it stays 0.
    pub(crate) limiter: Option<i64>,
    /// Submitters that have joined and do nothing.
    pub(crate) nr_idle: u16,
}

/// What the clients of a world of a scheduler that shares want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Anything.
    Any,
    /// All of them want service all the time.
    Flood,
    /// They ask for little on one small disk, near each other or anywhere. So bfq merges their queues and splits them
    /// again, and requests of theirs bypass the scheduler.
    Joint,
}

impl Demand {
    fn draw(random: &mut Random, scheduler: &str) -> Self {
        match scheduler {
            "bfq" => match random.below(6) {
                0 | 3 => Self::Flood,
                1 => Self::Joint,
                _ => Self::Any,
            },
            "fair" if random.one_in(3) => Self::Flood,
            _ => Self::Any,
        }
    }
}

/// When the clients of some worlds come together, in ns. Until then no client does anything once its operations are
/// over. This finds a sleeper that was not woken, or that forgot when to look again, because no other client rescues
/// it.
fn period_ns(random: &mut Random) -> Option<u64> {
    random.one_in(4).then(|| random.within(20_000_000, 40_000_000) << random.below(7))
}

/// The knob `nr_requests` of a device of this depth, which is the most without a scheduler. In most worlds the number
/// is small, so that requests that wait do not always find room.
fn nr_requests(random: &mut Random, depth: u16, scheduler: &str) -> Option<u32> {
    let depth = u64::from(depth);
    let drawn = match random.below(4) {
        0 => None,
        1 => Some(magnitude(random, 4 * depth)),
        _ => Some(2 * depth.min(128)),
    };
    drawn.map(|drawn| if scheduler == "none" { drawn.min(depth) } else { drawn } as u32)
}

/// The knobs of bfq in some of its worlds: those with which it promises most, or others.
fn knobs_of_bfq(random: &mut Random, demand: Demand) -> Vec<(&'static str, i64)> {
    let max_budget = magnitude(random, 512) as i64;
    match random.below(4) {
        0 | 1 if demand == Demand::Joint => vec![("low_latency", 0), ("slice_idle", 0)],
        _ if demand == Demand::Flood => vec![("low_latency", 0), ("slice_idle", 0), ("max_budget", max_budget)],
        0 => vec![("strict_guarantees", 1), ("low_latency", random.below(2) as i64)],
        1 => vec![("low_latency", 0), ("slice_idle_us", random.below(2000) as i64)],
        2 => vec![("low_latency", 0), ("slice_idle", 0), ("max_budget", max_budget)],
        _ => Vec::new(),
    }
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn draw(seed: u64, settings: &Settings) -> Self {
        let random = &mut Random::new(seed);
        let order_random = random.fork();
        let (order, most_steps) = match random.below(4) {
            0 => (Order::Uniform, 1000),
            1 => (Order::Priorities, 1000),
            // Here a completion, the timeout scan and the owner of the request meet, once in a while and for a few
            // steps.
            2 if random.one_in(3) => (Order::Targeted("request.state"), 64),
            // The CPU that is held back waits for a few decisions each time.
            _ => (Order::Targeted(random.pick::<&str>(LINES)), 64),
        };
        let known = scheduler_names();
        let is_possible = |name: &&str| settings.locking.is_none_or(|locking| go_together(name, locking));
        let possible: Vec<_> = known.iter().copied().filter(is_possible).collect();
        let drawn = *random.pick(&possible);
        let period_ns = period_ns(random);
        let pace = match period_ns {
            Some(period_ns) => Pace::Together(period_ns),
            None if random.one_in(2) => Pace::Patient,
            None => Pace::Any,
        };
        let io_timeout_ms = pace.io_timeout_ms(random);
        let device = DeviceConfig::draw(&mut random.fork(), io_timeout_ms, period_ns.is_some());
        let topology = device.topology;
        let is_owned = random.one_in(8);
        let scheduler = settings.scheduler.as_ref().and_then(|name| known.iter().find(|known| *known == name));
        let scheduler = scheduler.copied().unwrap_or(drawn);
        let demand = Demand::draw(random, scheduler);
        let (is_flood, is_joint) = (demand == Demand::Flood, demand == Demand::Joint);
        let (device, is_owned) = match demand {
            Demand::Any => (device, is_owned),
            Demand::Flood => (device.steady(&mut random.fork()), false),
            Demand::Joint => (device.disk(&mut Random::new(!seed)), false),
        };
        // Drawn apart, so that worlds without a limiter are the same as before there were any.
        let limiters = &mut Random::new(seed.rotate_left(32));
        let has_limiters = demand == Demand::Any && orders_all(scheduler) && !limiters.one_in(3);
        let limiter = has_limiters.then(|| wbt_lat_usec(limiters));
        let limited_step_ns = (has_limiters && !limiters.one_in(4)).then(|| limiters.within(10, 60));
        let device = match limited_step_ns {
            Some(step_ns) => device.limited(limiters, step_ns),
            None => device,
        };
        let is_crowd = limited_step_ns.is_some() && !limiters.one_in(3);
        let device = if is_crowd { device.deep(limiters) } else { device };
        let capacity = device.limits.capacity_sectors;
        let clients = match demand {
            Demand::Any if is_crowd => Workload::flood_all(&mut random.fork(), settings.cpus, capacity),
            Demand::Any => Workload::draw_all(&mut random.fork(), settings.cpus, capacity, period_ns),
            Demand::Flood => Workload::flood_all(&mut random.fork(), settings.cpus, capacity),
            Demand::Joint => Workload::join_all(&mut random.fork(), settings.cpus, capacity),
        };
        // In most worlds of one client, that client alone drives the queue. The order is exact in these worlds.
        let nr_owners = clients.len() as u16;
        let nr_tenants = clients.iter().map(Workload::tenant).max().map_or(0, |last| usize::from(last) + 1);
        let device = if is_owned { device.owned_by(nr_owners) } else { device };
        let is_alone = clients.len() == 1 && !random.one_in(4);
        // One of them twice: the one in which threads leave the most to each other.
        let mut lockings: Vec<_> = Locking::ALL.into_iter().chain([Locking::Combining]).collect();
        lockings.retain(|locking| go_together(scheduler, *locking));
        let locking = *random.pick(&lockings);
        let may_change = Alterable { scheduler: settings.scheduler.is_none(), locking: settings.locking.is_none() };
        let whims = |whims: Whims| match demand {
            Demand::Flood | Demand::Joint => whims.of_shares(),
            Demand::Any if is_owned => whims.of_owners(nr_owners),
            Demand::Any => whims,
        };
        let changes_limiters = has_limiters && limiters.one_in(2);
        let whims = |drawn| if changes_limiters { whims(drawn).of_limiters() } else { whims(drawn) };
        let mean_steps = magnitude(random, most_steps);
        let step_ns = magnitude(random, 100);
        Self {
            order,
            mean_steps,
            order_random,
            step_ns: limited_step_ns.unwrap_or(step_ns),
            scheduler,
            locking: settings.locking.unwrap_or(locking),
            shallow: shallow(random),
            knobs: if scheduler == "bfq" { knobs_of_bfq(random, demand) } else { Vec::new() },
            bypass: (random.one_in(2) || is_joint) && !is_flood,
            nr_requests: if is_flood || is_joint || is_crowd {
                None
            } else {
                nr_requests(random, topology.depth, scheduler)
            },
            slots: if is_flood || is_joint || is_crowd { 64 } else { *random.pick(&[4, 8, 16, 32, 64, 256]) },
            io_timeout_ms,
            accounting: *random.pick(&[Accounting::PerThread, Accounting::Shared]),
            device_random: random.fork(),
            whims: whims(Whims::draw(&mut random.fork(), may_change, pace, is_alone)),
            tenancy: match demand {
                Demand::Any => Beginning::draw(&mut random.fork(), nr_tenants),
                Demand::Flood => Beginning::apart(&mut random.fork(), nr_tenants),
                Demand::Joint => Beginning::alike(nr_tenants),
            },
            clients,
            device,
            second: Whims::draw_second(&mut random.fork(), pace).filter(|_| !is_flood),
            limiter,
            // More submitters than one word of marks has room for.
            nr_idle: if random.one_in(16) && !is_owned { random.within(57, 80) as u16 } else { 0 },
        }
    }

    /// What decides which CPU goes on.
    pub(crate) fn schedule(&self) -> Box<dyn Schedule> {
        let (random, mean) = (self.order_random.clone(), self.mean_steps);
        match self.order {
            Order::Uniform => Box::new(Uniform::new(random, mean)),
            Order::Priorities => Box::new(Priorities::new(random, mean)),
            Order::Targeted(line) => Box::new(Targeted::new(random, line, mean)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The names in `text` that stand as the first argument of one of these calls.
    fn names(text: &str, found: &mut BTreeSet<String>) {
        for call in ["Line::new(", "on_line(", "TryLock::new(", "SlotStack::new(", "Staging::new("] {
            let after = text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            let names = after.filter_map(|rest| rest.split('"').next());
            found.extend(names.filter(|name| !name.starts_with("test.")).map(str::to_owned));
        }
    }

    fn names_under(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // Drivers of the product are not in a world.
            if path.is_dir() && path.file_name().is_some_and(|name| name != "driver") {
                names_under(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                names(&fs::read_to_string(&path).unwrap(), found);
            }
        }
    }

    #[test]
    fn the_lines_are_those_of_the_code() {
        let mut found = BTreeSet::new();
        for sources in ["../blkmq/src", "../blkmq-sync/src"] {
            names_under(&Path::new(env!("CARGO_MANIFEST_DIR")).join(sources), &mut found);
        }
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), LINES);
    }
}
