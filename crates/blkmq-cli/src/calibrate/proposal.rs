//! What to configure: a depth and a scheduler, as a block for `blkmq serve --config`.

use std::fmt::Write as _;

use serde::Serialize;

use super::flood::Flood;
use super::ground::{self, Ground};
use super::sweep::Swept;

/// A read that takes longer than this with nothing beside it waits for something that turns.
const SEEKS_NS: u64 = 3_000_000;
/// The least part of the best rate that a flood keeps under a scheduler that is proposed.
const KEEPS: f64 = 0.9;
/// A scheduler must be better than this part of a simpler one's latency.
const BETTER: f64 = 0.8;

/// What to configure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Proposal {
    /// The depth of each hardware queue. `None` if the device has no such parameter.
    pub(super) hw_queue_depth: Option<u32>,
    pub(super) scheduler: &'static str,
    /// A block of a file for `blkmq serve --config`.
    pub(super) toml: String,
}

/// The depth of each hardware queue that follows from the sweeps. `None` if none of them came to its end, or if the
/// device has no such parameter.
pub(super) fn depth(ground: &Ground, swept: &[Swept]) -> Option<u32> {
    let deepest = swept.iter().filter_map(|swept| swept.knee).max_by_key(|knee| knee.depth)?;
    // The depth of a device that has no knee stays as it is.
    let all = if deepest.is_beyond() { deepest.at_full.depth } else { deepest.depth };
    let depth = all.div_ceil(u32::from(ground.queues)).min(u32::from(ground.depth));
    ground.has_depth().then_some(depth)
}

/// The schedulers that may be proposed, the one first that is proposed where others are hardly better.
pub(super) fn schedulers(ground: &Ground, swept: &[Swept]) -> Vec<&'static str> {
    let least = swept.iter().find_map(|swept| swept.points.iter().find(|point| point.depth == 1));
    let seeks = least.is_some_and(|point| point.p50_ns >= SEEKS_NS);
    let is_rotational = ground.is_rotational || seeks && ground::of_sysfs(ground.device()) == Some(true);
    let first = if is_rotational { "mq-deadline" } else { "none" };
    let others = crate::schedulers::names().into_iter().filter(|name| *name != first);
    std::iter::once(first).chain(others).collect()
}

impl Proposal {
    /// What is proposed: among `schedulers`, the one with which the reader's p99 is the shortest beside all floods
    /// together, and the floods keep nearly the best rate. `None` without floods.
    pub(super) fn of(
        ground: &Ground,
        depth: Option<u32>,
        schedulers: &[&'static str],
        floods: &[Flood],
    ) -> Option<Self> {
        let scheduler = best(schedulers, floods)?;
        let device = depth.map_or_else(|| ground.device().to_owned(), |depth| ground.device_at(depth));
        let toml = format!("[[export]]\nname = \"disk\"\ndevice = {}\nscheduler = \"{scheduler}\"\n", quoted(&device));
        Some(Self { hw_queue_depth: depth, scheduler, toml })
    }
}

/// The best scheduler. An earlier one is preferred to a later one that is hardly better.
fn best(schedulers: &[&'static str], floods: &[Flood]) -> Option<&'static str> {
    // The product over the floods stands for their geometric mean.
    let product = |name: &str, figure: fn(&super::flood::Beside) -> f64| -> Option<f64> {
        let of = |flood: &Flood| Some(figure(flood.cases.iter().find(|beside| beside.is_of(name))?));
        floods.iter().map(of).product()
    };
    let powers = i32::try_from(floods.len()).ok().filter(|count| *count > 0)?;
    let figures = |name: &'static str| {
        Some((name, product(name, |beside| beside.p99_ns as f64)?, product(name, |beside| beside.flood_iops)?))
    };
    let all: Vec<_> = schedulers.iter().filter_map(|name| figures(name)).collect();
    let most = all.iter().map(|(.., rate)| *rate).fold(0.0, f64::max);
    let fast = all.iter().filter(|(.., rate)| *rate >= most * KEEPS.powi(powers));
    let better = |best: Option<(&'static str, f64)>, &(name, p99, _): &(&'static str, f64, f64)| match best {
        Some((_, least)) if p99 >= least * BETTER.powi(powers) => best,
        _ => Some((name, p99)),
    };
    fast.fold(None, better).map(|(name, _)| name)
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // Writing to a string cannot fail.
            c if c.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::super::flood::Beside;
    use super::*;

    /// What the reader's p99 and the flood's rate are in two floods.
    fn floods(cases: &[(&'static str, [u64; 2], f64)]) -> Vec<Flood> {
        let beside = |&(name, p99, flood_iops): &(&str, [u64; 2], f64), at: usize| Beside {
            case: name.to_owned(),
            scheduler: name.to_owned(),
            is_proposed: true,
            reads: 1,
            reads_per_second: 1.0,
            p50_ns: 1,
            p99_ns: p99[at],
            p99_9_ns: 1,
            flood_iops,
            flood_bytes_per_second: 1.0,
        };
        let flood = |at| Flood {
            way: "reads",
            bytes: 4096,
            reads_wanted: 1,
            cases: cases.iter().map(|case| beside(case, at)).collect(),
        };
        vec![flood(0), flood(1)]
    }

    /// Red if the scheduler is not the one with the shortest waits, or if it costs the flood much, or if a difference
    /// that may be noise decides.
    #[test]
    fn the_best_scheduler_is_quick_and_keeps_the_flood_going() {
        let names = ["none", "kyber", "bfq"];
        let of = |cases: &[(&'static str, [u64; 2], f64)]| best(&names, &floods(cases));
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [50, 40], 1e5), ("bfq", [20, 20], 5e4)]), Some("kyber"));
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [90, 95], 1e5), ("bfq", [99, 99], 1e5)]), Some("none"));
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [50, 300], 1e5), ("bfq", [60, 60], 95e3)]), Some("bfq"));
        assert_eq!(best(&names, &[]), None);
        assert_eq!(of(&[]), None, "nothing was measured to its end");
    }

    /// Red if a path that needs escapes breaks the block.
    #[test]
    fn a_path_is_quoted_as_toml_wants_it() {
        for text in ["file,path=disk.img", "file,path=a \"b\" \\ c", "file,path=a\tb\u{7f}"] {
            let parsed: toml::Table = toml::from_str(&format!("device = {}", quoted(text))).expect("it is TOML");
            assert_eq!(parsed["device"].as_str(), Some(text));
        }
    }
}
