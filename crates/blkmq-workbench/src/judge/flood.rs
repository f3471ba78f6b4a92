//! Q7: a reader beside a flood of writes.

use std::time::Duration;

use blkmq::Op;

use super::error::JudgeError;
use super::load::{LARGE, Plan, SMALL};
use super::measuring::{Measuring, Test, ms, value};
use super::promises::{Promises, QuickReads};
use super::row::{Figure, Target, aimed};

pub(super) const TEST: Test = Test {
    id: "Q7",
    title: "a reader, one read of 4 KiB at a time, beside writers of 64 KiB with 128 outstanding each",
    nr_runs: 1 + WRITERS.len() as u32,
    needs_none: true,
    measure,
    judge,
};

const WRITERS: [u32; 2] = [8, 32];
const DEPTH: u32 = 128;

/// The reader's p99 without writers.
const ALONE: &str = "alone: p99";

/// Percent of the writers' throughput without a scheduler.
const LEAST_KEPT: f64 = 90.0;

const PERCENTILES: [(&str, f64, &str); 3] = [
    ("p50", 50.0, "Half of the reads took no longer."),
    ("p99", 99.0, "99 of 100 reads took no longer."),
    ("p99.9", 99.9, "999 of 1000 reads took no longer."),
];

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let area = on.site.area();
    let reader = || Plan::new("reader", Op::Read, SMALL, 1, area.clone());
    let end = on.end(Duration::from_secs(120), 20_000);
    let alone = on.run(vec![reader()], end)?.clients[0].latency.percentile(99.0);
    let mut figures = vec![Figure::new(ALONE, ms(alone), "ms", "99 of 100 reads took no longer.")];
    for nr_writers in WRITERS {
        let mut clients = vec![reader()];
        clients
            .extend((0..nr_writers).map(|n| Plan::new(format!("writer {n}"), Op::Write, LARGE, DEPTH, area.clone())));
        let end = on.end(Duration::from_secs(300), 600_000);
        let outcome = on.run(clients, end)?;
        let reader = &outcome.clients[0];
        for (name, percent, meaning) in PERCENTILES {
            let latency = ms(reader.latency.percentile(percent));
            figures.push(Figure::new(format!("{nr_writers} writers: {name}"), latency, "ms", meaning));
        }
        let written = outcome.rate(1..outcome.clients.len()) / f64::from(1 << 20);
        let meaning = "What all writers together got done.";
        figures.push(Figure::new(written_case(nr_writers), written, "MiB/s", meaning));
    }
    Ok(figures)
}

/// The case that says most: the reader's p99 beside the largest flood.
pub(super) fn headline() -> String {
    p99_case(WRITERS[WRITERS.len() - 1])
}

fn p99_case(nr_writers: u32) -> String {
    format!("{nr_writers} writers: p99")
}

fn written_case(nr_writers: u32) -> String {
    format!("{nr_writers} writers: written")
}

fn judge(own: Vec<Figure>, none: &[Figure], promises: &Promises) -> Vec<Figure> {
    let alone = value(&own, ALONE);
    let is_p99 = |figure: &Figure| figure.case.ends_with("p99") && figure.case != ALONE;
    let mut figures = match promises.quick_reads {
        Some(QuickReads::Within(ns)) => aimed(own, |figure| is_p99(figure).then_some(Target::AtMost(2.0 * ms(ns)))),
        _ => own,
    };
    for nr_writers in WRITERS {
        let of_none = |case: &str| 100.0 * value(&figures, case) / value(none, case);
        let latency = of_none(&p99_case(nr_writers));
        let kept = of_none(&written_case(nr_writers));
        let meaning = "The reader's p99 as a share of that without a scheduler.";
        let figure = Figure::new(format!("{nr_writers} writers: p99 of none"), latency, "%", meaning);
        figures.push(match promises.quick_reads {
            Some(QuickReads::Times(times)) => {
                let twice_alone = 200.0 * alone / value(none, &p99_case(nr_writers));
                figure.aims(true, Target::AtMost((100.0 / f64::from(times)).max(twice_alone)))
            }
            _ => figure,
        });
        let meaning = "What the writers kept of their throughput without a scheduler.";
        let figure = Figure::new(format!("{nr_writers} writers: kept"), kept, "%", meaning);
        figures.push(figure.aims(promises.quick_reads.is_some(), Target::AtLeast(LEAST_KEPT)));
    }
    figures
}
