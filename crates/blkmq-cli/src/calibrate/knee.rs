//! The ceiling and the knee of a load, from what was measured at several depths.
//!
//! The *ceiling* is the highest rate that any depth reaches. The *knee* is the least depth that reaches [`NEAR`] of the
//! ceiling. Beyond it the rate hardly grows, so by Little's law latency grows as the depth does.

use serde::Serialize;

/// The part of the ceiling that the knee reaches.
pub(super) const NEAR: f64 = 0.95;
/// The most depths that are measured between two of the first pass.
const FINE: u32 = 8;

/// What a load does at a depth. Latencies are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Point {
    /// Operations outstanding at once.
    pub(super) depth: u32,
    /// Operations a second.
    pub(super) iops: f64,
    /// How far the middle half of its runs lies apart, as a part of the rate.
    pub(super) spread: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p99_9_ns: u64,
}

/// The depth beyond which latency only grows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Knee {
    pub(super) depth: u32,
    /// What was measured at that depth or at the next one above it, at twice that depth, and at the full depth.
    pub(super) at: Point,
    pub(super) at_twice: Option<Point>,
    pub(super) at_full: Point,
}

/// The depths of the first pass, from the full depth down. Each is some 0.7 of the one before it, and a multiple of
/// `queues` where it is larger than that.
pub(super) fn coarse(full: u32, queues: u32) -> Vec<u32> {
    let mut depths = vec![full];
    let mut ideal = f64::from(full);
    while ideal > 1.0 {
        ideal /= std::f64::consts::SQRT_2;
        depths.push(whole(ideal.round().max(1.0) as u32, queues));
    }
    depths.dedup();
    depths
}

/// The depth, as a multiple of the number of queues if there is one for each.
fn whole(depth: u32, queues: u32) -> u32 {
    if depth <= queues { depth } else { depth / queues * queues }
}

/// The depths of the second pass, from the highest down: those between which the knee lies, and some between them.
pub(super) fn fine(points: &[Point], queues: u32) -> Vec<u32> {
    let Some(knee) = depth_of(points) else { return Vec::new() };
    let depths: Vec<u32> = points.iter().map(|point| point.depth).collect();
    let below = depths.iter().copied().filter(|depth| *depth < knee).max();
    let above = depths.iter().copied().filter(|depth| *depth >= knee).min().unwrap_or(knee);
    let Some(below) = below else { return vec![above] };
    let step = ((above - below).div_ceil(FINE)).max(1) as usize;
    let mut fine: Vec<u32> = (below..above).step_by(step).chain([above]).map(|depth| whole(depth, queues)).collect();
    fine.dedup();
    fine.reverse();
    fine
}

/// The highest rate.
pub(super) fn ceiling(points: &[Point]) -> Option<Point> {
    points.iter().copied().max_by(|a, b| a.iops.total_cmp(&b.iops))
}

/// The least depth that reaches [`NEAR`] of the ceiling. Rates are noisy, so they are first made to rise with the
/// depth; between two depths that were measured they grow evenly.
fn depth_of(points: &[Point]) -> Option<u32> {
    let goal = ceiling(points)?.iops * NEAR;
    let rising = rising(points);
    let at = rising.iter().position(|(_, rate)| *rate >= goal)?;
    let (depth, rate) = rising[at];
    let Some((below, less)) = at.checked_sub(1).map(|at| rising[at]) else { return Some(depth as u32) };
    let depth = below + (depth - below) * (goal - less) / (rate - less).max(f64::MIN_POSITIVE);
    Some((depth - 1e-9).ceil() as u32)
}

/// Depths and rates up to the depth of the ceiling, with the rates that never fall and are nearest to those measured:
/// where one falls, the depths around it get their mean.
fn rising(points: &[Point]) -> Vec<(f64, f64)> {
    let Some(top) = ceiling(points) else { return Vec::new() };
    let mut sorted: Vec<&Point> = points.iter().filter(|point| point.depth <= top.depth).collect();
    sorted.sort_by_key(|point| point.depth);
    // Stretches of depths with one rate, each with its number of depths.
    let mut stretches: Vec<(f64, usize)> = Vec::new();
    for point in &sorted {
        let mut last = (point.iops, 1);
        while let Some(&(rate, count)) = stretches.last().filter(|(rate, _)| *rate > last.0) {
            stretches.pop();
            let all = count + last.1;
            last = ((rate * count as f64 + last.0 * last.1 as f64) / all as f64, all);
        }
        stretches.push(last);
    }
    let rates = stretches.iter().flat_map(|(rate, count)| std::iter::repeat_n(*rate, *count));
    sorted.iter().map(|point| f64::from(point.depth)).zip(rates).collect()
}

impl Knee {
    /// Whether the rate still grows where the device's own depth ends, so that the knee says nothing.
    pub(super) fn is_beyond(&self) -> bool {
        self.at_full.depth > 1 && self.depth * 10 >= self.at_full.depth * 9
    }

    /// The knee of these points. `None` without points.
    pub(super) fn of(points: &[Point]) -> Option<Self> {
        let depth = depth_of(points)?;
        let at_least = |least: u32| points.iter().copied().filter(|point| point.depth >= least).min_by_key(|p| p.depth);
        let at_full = points.iter().copied().max_by_key(|point| point.depth)?;
        Some(Self { depth, at: at_least(depth)?, at_twice: at_least(2 * depth), at_full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(depth: u32, iops: f64) -> Point {
        Point { depth, iops, spread: 0.0, p50_ns: 1, p99_ns: u64::from(depth), p99_9_ns: 2 }
    }

    /// A device that takes 100 us and has a ceiling.
    fn device(ceiling: f64) -> impl Fn(&u32) -> Point {
        move |depth| point(*depth, (f64::from(*depth) * 1e4).min(ceiling))
    }

    /// Red if the first pass skips the ends, or goes up.
    #[test]
    fn the_first_pass_goes_from_the_full_depth_to_one() {
        assert_eq!(coarse(32, 1), [32, 23, 16, 11, 8, 6, 4, 3, 2, 1]);
        assert_eq!(coarse(1, 1), [1]);
        assert_eq!(coarse(64, 4), [64, 44, 32, 20, 16, 8, 4, 3, 2, 1], "as many for each of the queues");
        assert!(coarse(4096, 1).windows(2).all(|pair| pair[0] > pair[1]));
    }

    /// Red if the knee is another depth than the least that reaches 0.95 of the ceiling.
    #[test]
    fn the_knee_is_the_least_depth_near_the_ceiling() {
        for ceiling in [1e4, 5.5e4, 2.75e5, 9e5, 1e7] {
            let device = device(ceiling);
            let mut points: Vec<Point> = coarse(1023, 1).iter().map(&device).collect();
            let fine: Vec<Point> = fine(&points, 1).iter().map(&device).collect();
            points.extend(fine);
            let reached = ceiling.min(1023.0 * 1e4);
            let expected = (NEAR * reached / 1e4 - 1e-6).ceil();
            let knee = Knee::of(&points).expect("there are points");
            assert_eq!(f64::from(knee.depth), expected, "{ceiling}");
            assert_eq!(self::ceiling(&points).expect("there are points").iops, reached);
            assert_eq!(knee.at_full.p99_ns, 1023);
            assert_eq!(knee.at_twice.is_some(), 2.0 * expected <= 1023.0, "{ceiling}");
        }
    }

    /// Red if one depth that came out too high or too low by noise moves the knee far.
    #[test]
    fn one_odd_point_does_not_move_the_knee() {
        let device = device(1e5);
        let points: Vec<Point> = (1..=32).rev().map(|depth| device(&depth)).collect();
        assert_eq!(Knee::of(&points).expect("points").depth, 10);
        let mut odd = points.clone();
        odd.iter_mut().filter(|point| point.depth == 5).for_each(|point| point.iops = 9.6e4);
        let depth = Knee::of(&odd).expect("points").depth;
        assert!((9..=10).contains(&depth), "{depth}");
        odd.iter_mut().filter(|point| point.depth == 20).for_each(|point| point.iops = 5e4);
        let depth = Knee::of(&odd).expect("points").depth;
        assert!((9..=10).contains(&depth), "{depth}");
    }

    #[test]
    fn nothing_measured_has_no_knee() {
        assert_eq!((Knee::of(&[]), ceiling(&[]), fine(&[], 1)), (None, None, vec![]));
        assert_eq!(Knee::of(&[point(1, 5.0)]).expect("one").depth, 1);
    }
}
