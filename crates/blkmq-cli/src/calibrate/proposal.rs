//! What to configure: a depth and a scheduler, as a block for `blkmq serve --config`.

use serde::Serialize;

use super::flood::{Beside, Flood};
use super::ground::{self, AUTO, Ground, LIMITER};
use super::sweep::Swept;
use crate::schedulers;

/// A read that takes longer than this with nothing beside it waits for something that turns.
const SEEKS_NS: u64 = 3_000_000;
/// The least part of the best rate that a flood keeps under a scheduler that is proposed.
const KEEPS: f64 = 0.9;
/// A scheduler must be better than this part of a simpler one's latency.
const BETTER: f64 = 0.8;

/// The least part of a flood's rate without any bound that it keeps under a limiter that is proposed.
const LIMITER_KEEPS: f64 = 0.95;

/// What to configure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Proposal {
    /// The depth of each hardware queue. `None`: the device's own, because a limiter is proposed or because the device
    /// has no such parameter.
    pub(super) hw_queue_depth: Option<u32>,
    pub(super) scheduler: &'static str,
    /// The knob of this name, if a limiter is proposed.
    pub(super) wbt_lat_usec: Option<i64>,
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
    let others = blkmq::scheduler_names().into_iter().filter(|name| *name != first);
    std::iter::once(first).chain(others).collect()
}

impl Proposal {
    /// What is proposed: among `schedulers`, the one with which the reader's p99 is the shortest beside all floods
    /// together, and the floods keep nearly the best rate; or a limiter, if it is as good. `None` without floods.
    pub(super) fn of(
        ground: &Ground,
        depth: Option<u32>,
        schedulers: &[&'static str],
        floods: &[Flood],
    ) -> Option<Self> {
        let scheduler = best(schedulers, floods, false)?;
        if let Some(scheduler) = limiter(scheduler, floods) {
            let device = quoted(ground.device());
            let toml = format!(
                "[[export]]\nname = \"disk\"\ndevice = {device}\nscheduler = \"{scheduler}\"\nset = {{ {LIMITER} = {AUTO} }}\n"
            );
            return Some(Self { hw_queue_depth: None, scheduler, wbt_lat_usec: Some(AUTO), toml });
        }
        let device = depth.map_or_else(|| ground.device().to_owned(), |depth| ground.device_at(depth));
        let toml = format!("[[export]]\nname = \"disk\"\ndevice = {}\nscheduler = \"{scheduler}\"\n", quoted(&device));
        Some(Self { hw_queue_depth: depth, scheduler, wbt_lat_usec: None, toml })
    }
}

/// The scheduler with a limiter, if one is at least as good for the reader as `scheduler` at the proposed depth, and no
/// flood loses much. A limiter that found nothing to hold back is none.
fn limiter(scheduler: &'static str, floods: &[Flood]) -> Option<&'static str> {
    let cases = |name| -> Option<Vec<(&Beside, &Beside)>> {
        floods.iter().map(|flood| flood.as_it_is().zip(flood.case(name, true))).collect()
    };
    let is_good = |name: &&'static str| {
        cases(name).is_some_and(|cases| {
            cases.iter().all(|(without, with)| with.flood_iops >= LIMITER_KEEPS * without.flood_iops)
                && cases.iter().any(|(_, with)| with.limiter.as_ref().is_some_and(|found| found.bound_ns.is_some()))
        })
    };
    // Where another one is hardly better, the one that comes first in the registry is proposed.
    let good: Vec<_> = schedulers::with_limiter().filter(is_good).collect();
    let name = best(&good, floods, true)?;
    let p99 = |name, has_limiter| product(floods, name, has_limiter, |beside| beside.p99_ns as f64);
    (p99(name, true)? <= p99(scheduler, false)?).then_some(name)
}

/// A figure of a case in all floods. The product stands for the geometric mean.
fn product(floods: &[Flood], name: &str, has_limiter: bool, figure: fn(&Beside) -> f64) -> Option<f64> {
    let of = |flood: &Flood| Some(figure(flood.case(name, has_limiter)?));
    floods.iter().map(of).product()
}

/// The best scheduler, with a limiter or at the proposed depth. An earlier one is preferred to a later one that is
/// hardly better.
fn best(schedulers: &[&'static str], floods: &[Flood], has_limiter: bool) -> Option<&'static str> {
    let product = |name: &str, figure: fn(&Beside) -> f64| product(floods, name, has_limiter, figure);
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

/// A string of TOML, which is one of JSON but for the character that TOML wants escaped.
fn quoted(text: &str) -> String {
    serde_json::json!(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use super::super::flood::LimiterFound;
    use super::*;

    /// What the reader's p99 and the flood's rate are in two floods.
    fn floods(cases: &[(&'static str, [u64; 2], f64)]) -> Vec<Flood> {
        let beside = |&(name, p99, flood_iops): &(&str, [u64; 2], f64), at: usize| Beside {
            case: name.to_owned(),
            scheduler: name.to_owned(),
            is_proposed: true,
            has_target: false,
            reads: 1,
            reads_per_second: 1.0,
            p50_ns: 1,
            p99_ns: p99[at],
            p99_9_ns: 1,
            flood_iops,
            flood_bytes_per_second: 1.0,
            limiter: None,
        };
        let flood = |at| Flood {
            way: "reads",
            bytes: 4096,
            reads_wanted: 1,
            swept_bytes_per_second: None,
            cases: cases.iter().map(|case| beside(case, at)).collect(),
        };
        vec![flood(0), flood(1)]
    }

    /// Red if the scheduler is not the one with the shortest waits, or if it costs the flood much, or if a difference
    /// that may be noise decides.
    #[test]
    fn the_best_scheduler_is_quick_and_keeps_the_flood_going() {
        let of = |cases: &[(&'static str, [u64; 2], f64)]| {
            best(&cases.iter().map(|case| case.0).collect::<Vec<_>>(), &floods(cases), false)
        };
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [50, 40], 1e5), ("bfq", [20, 20], 5e4)]), Some("kyber"));
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [90, 95], 1e5), ("bfq", [99, 99], 1e5)]), Some("none"));
        assert_eq!(of(&[("none", [100, 100], 1e5), ("kyber", [50, 300], 1e5), ("bfq", [60, 60], 95e3)]), Some("bfq"));
        assert_eq!(best(&["none", "bfq"], &[], false), None);
        assert_eq!(best(&["none", "bfq"], &floods(&[]), false), None, "nothing was measured to its end");
        let one = floods(&[("bfq", [50, 50], 1e5)]);
        assert_eq!(best(&["none", "bfq"], &one, false), Some("bfq"), "the other was not measured to its end");
    }

    /// Red if a limiter is proposed that slows a flood down, that does nothing, or with which the reader waits longer;
    /// or if one that is as good as a depth is not.
    #[test]
    fn a_limiter_is_proposed_where_it_is_as_good_as_a_depth() {
        let found = |bound_ns| LimiterFound {
            phase: "paced",
            ceiling_iops: Some(1e5),
            ceiling_bytes_per_second: None,
            ceilings_measured: 1,
            bound_ns,
            target_ns: None,
        };
        let of = |p99: [u64; 2], rate: f64, bound_ns| {
            let mut floods = floods(&[("as it is", [900, 900], 1e5), ("none", [100, 100], 96e3)]);
            let with = self::floods(&[("bfq", p99, rate)]);
            for (flood, with) in floods.iter_mut().zip(with) {
                flood.cases[0].is_proposed = false;
                flood.cases.extend(with.cases);
                flood.cases[2].limiter = Some(found(bound_ns));
                flood.cases[2].has_target = true;
            }
            assert_eq!(best(&["none", "bfq"], &floods, false), Some("none"), "a limiter is no depth");
            limiter("none", &floods)
        };
        assert_eq!(of([100, 100], 95e3, Some(1)), Some("bfq"));
        assert_eq!(of([50, 180], 95e3, Some(1)), Some("bfq"), "over both floods");
        assert_eq!(of([100, 101], 95e3, Some(1)), None, "the reader waits longer");
        assert_eq!(of([10, 10], 94e3, Some(1)), None, "the flood is slower");
        assert_eq!(of([10, 10], 95e3, None), None, "nothing was held back");
        assert_eq!(limiter("none", &[]), None);
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
