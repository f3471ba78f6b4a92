//! The jobs of a comparison, one by one: the sum over all jobs does not tell what each job gets.

use std::io::{self, Write};
use std::time::Duration;

use blkmq_workbench::compare::JobSlices;
use blkmq_workbench::report::{Bar, Group, Section};
use blkmq_workbench::{Ratio, Spread};
use serde::Serialize;

use crate::page;
use blkmq_program::{
    columns,
    render::{short, us},
};

/// A job on both sides.
#[derive(Debug, Serialize)]
pub(super) struct ComparedJob {
    job: String,
    /// Operations per second.
    iops: Compared,
    /// Percentiles of single slices, in nanoseconds. `None` if the job does not measure latencies, or if nothing
    /// completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ns: Option<Compared>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ns: Option<Compared>,
}

/// The results of the slices of both sides.
#[derive(Debug, Serialize)]
struct Compared {
    a: Spread,
    b: Spread,
    /// B/A. `None` if there are fewer than two rounds with numbers above 0 on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<Ratio>,
}

impl Compared {
    /// `None` if a side has no number. For the ratio, numbers below `least` count as `least`.
    fn new(a: &[f64], b: &[f64], least: f64) -> Option<Self> {
        let spread = |side: &[f64]| {
            let numbers: Vec<f64> = side.iter().copied().filter(|number| number.is_finite()).collect();
            Spread::new(&numbers)
        };
        // `max` is not used, because it would turn "not a number" into a number.
        let raised = |side: &[f64]| side.iter().map(|n| if *n < least { least } else { *n }).collect::<Vec<_>>();
        let is_something = |side: &[f64]| side.iter().any(|number| *number > 0.0);
        let ratio = (is_something(a) || is_something(b)).then(|| Ratio::new(&raised(a), &raised(b))).flatten();
        Some(Self { a: spread(a)?, b: spread(b)?, ratio })
    }
}

impl ComparedJob {
    /// Makes a comparison of slices of this length.
    pub(super) fn new(job: String, a: &JobSlices, b: &JobSlices, slice: Duration) -> Self {
        // A job that is starved does nothing in a slice, and zero has no ratio. So such a slice counts as half an
        // operation.
        let least = 0.5 / slice.as_secs_f64();
        Self {
            job,
            iops: Compared::new(&a.rates, &b.rates, least).expect("every side had slices"),
            p50_ns: Compared::new(&a.p50_ns, &b.p50_ns, 0.0),
            p99_ns: Compared::new(&a.p99_ns, &b.p99_ns, 0.0),
        }
    }

    /// The compared quantities, with their names.
    fn rows(&self) -> impl Iterator<Item = (&'static str, &Compared)> {
        let times = [("p50 us", &self.p50_ns), ("p99 us", &self.p99_ns)];
        let times = times.into_iter().filter_map(|(name, compared)| Some((name, compared.as_ref()?)));
        [("IOPS", &self.iops)].into_iter().chain(times)
    }
}

const TITLES: [&str; 6] = ["job", "", "A", "B", "B/A", "95 % interval"];

/// What the numbers are.
const ABOUT: &str = "Medians of the slices. Latencies are those of a slice's operations; a slice in which a job completed \
                     nothing counts as half an operation.";

fn cells(jobs: &[ComparedJob]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for job in jobs {
        let mut name = &*job.job;
        for (what, Compared { a, b, ratio }) in job.rows() {
            let number = |rates: &Spread| if what == "IOPS" { short(rates.median) } else { us(rates.median as u64) };
            let [middle, interval] = match ratio {
                Some(Ratio { ratio, low, high, .. }) => {
                    [digits(*ratio), format!("{} .. {}", digits(*low), digits(*high))]
                }
                None => ["-".to_owned(), String::new()],
            };
            rows.push(vec![name.to_owned(), what.to_owned(), number(a), number(b), middle, interval]);
            name = "";
        }
    }
    rows
}

/// A ratio with all significant digits, however small or large it is.
fn digits(ratio: f64) -> String {
    match ratio {
        100.0.. => format!("{ratio:.0}"),
        0.01..100.0 => format!("{ratio:.3}"),
        _ => format!("{ratio:.2e}"),
    }
}

/// Writes a table in words.
pub(super) fn write(jobs: &[ComparedJob], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    columns::write(&TITLES, cells(jobs), 2, 9, out)?;
    writeln!(out, "{ABOUT}")
}

/// The table for a report.
pub(super) fn table(jobs: &[ComparedJob]) -> Section {
    page::table("Jobs", ABOUT, &TITLES, cells(jobs))
}

/// The ratios of each job, as bars.
pub(super) fn bars(jobs: &[ComparedJob]) -> Section {
    let bar = |compared: Option<&Compared>| {
        let Ratio { ratio, low, high, .. } = compared?.ratio?;
        Some(Bar::with_interval(ratio, low, high))
    };
    let bars = |job: &ComparedJob| [Some(&job.iops), job.p50_ns.as_ref(), job.p99_ns.as_ref()].map(bar).to_vec();
    let groups = jobs.iter().map(|job| Group { name: job.job.clone(), bars: bars(job) }).collect();
    let note = "What each job gets with B over what it gets with A, with 95 % intervals.";
    page::bars("Ratios of the jobs", note, "B/A", (1.0, &["IOPS", "p50", "p99"]), groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comparison of slices of a second.
    fn compared(a: [f64; 4], b: [f64; 4]) -> Option<Compared> {
        Compared::new(&a, &b, 0.5)
    }

    /// Red if a job is left out because one side does nothing, or if doing nothing counts as much as doing something.
    #[test]
    fn a_job_that_is_starved_has_a_ratio() {
        let starved = compared([100.0; 4], [0.0; 4]).unwrap();
        assert_eq!((starved.a.median, starved.b.median), (100.0, 0.0));
        let Ratio { ratio, low, high, rounds } = starved.ratio.unwrap();
        assert!((ratio - 0.005).abs() < 1e-9 && low <= ratio && ratio <= high && rounds == 2, "{starved:?}");
        assert!(compared([0.0; 4], [0.0; 4]).unwrap().ratio.is_none(), "nothing over nothing");
    }

    #[test]
    fn slices_without_a_latency_do_not_count() {
        let none = f64::NAN;
        assert!(Compared::new(&[none; 4], &[1.0; 4], 0.0).is_none());
        let found = Compared::new(&[10.0, 10.0, none, 10.0, 10.0, 10.0], &[20.0; 6], 0.0).unwrap();
        assert_eq!(found.a.median, 10.0);
        let ratio = found.ratio.unwrap();
        assert!((ratio.ratio - 2.0).abs() < 1e-9 && ratio.rounds == 2, "{ratio:?}");
    }

    #[test]
    fn ratios_have_the_digits_that_say_something() {
        assert_eq!(
            [0.000_123_4, 0.01, 1.0, 12.3456, 4321.9].map(digits),
            ["1.23e-4", "0.010", "1.000", "12.346", "4322"]
        );
    }
}
