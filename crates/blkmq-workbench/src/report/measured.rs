//! The sections of a report about a run of jobs.

use super::{Axis, Content, Line, Lines, Scale, Section, Unit};
use crate::bench::{DirectionOutcome, JobOutcome};

/// The number of points of a distribution for each halving of the share above.
const TICKS_PER_HALVING: u32 = 5;

/// How latencies are distributed, for each job (or group of threads) and direction. `None` if none was measured.
#[must_use]
pub fn latencies(jobs: &[(String, &JobOutcome)]) -> Option<Section> {
    let lines = lines(jobs, |direction| {
        let histogram = direction.latency.histogram();
        let ticks = histogram.iter_quantiles(TICKS_PER_HALVING);
        ticks.map(|tick| (tick.quantile_iterated_to() * 100.0, tick.value_iterated_to() as f64)).collect()
    });
    section(
        "Latencies",
        "How long operations took, from submission to completion.",
        Lines {
            x: Axis::new("operations that took no longer", Scale::Percentile, Unit::Percent),
            y: Axis::new("latency", Scale::Log, Unit::Nanoseconds),
            lines,
        },
    )
}

/// Operations per second in each slice of time, for each job (or group of threads) and direction. `None` if there were
/// none.
#[must_use]
pub fn throughput(jobs: &[(String, &JobOutcome)]) -> Option<Section> {
    let lines = lines(jobs, |direction| {
        // A last slice that is cut short says little, and would look like a drop.
        let longest = direction.samples.iter().map(|sample| sample.ns).max().unwrap_or(0);
        let samples = direction.samples.iter().filter(|sample| sample.ns > longest / 2);
        samples.map(|sample| (sample.end_ns as f64 / 1e9, sample.iops())).collect()
    });
    section(
        "Throughput",
        "What completed in each slice of time; a last one that was cut short is left out.",
        Lines {
            x: Axis::linear("time (s)", Unit::Number),
            y: Axis::linear("operations per second", Unit::Number),
            lines,
        },
    )
}

fn lines(jobs: &[(String, &JobOutcome)], points: impl Fn(&DirectionOutcome) -> Vec<(f64, f64)>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (name, job) in jobs {
        for (kind, direction) in ["read", "write", "trim"].iter().zip(&job.directions) {
            let points = points(direction);
            if !points.is_empty() && direction.ios != 0 {
                lines.push(Line { name: format!("{name}: {kind}"), points });
            }
        }
    }
    lines
}

fn section(title: &str, note: &str, lines: Lines) -> Option<Section> {
    let any = !lines.lines.is_empty();
    any.then(|| Section { title: title.to_owned(), note: note.to_owned(), content: Content::Lines(lines) })
}
