//! Published measurements: what the model is compared with.
//!
//! Each file of the folder is a **source**. A line of it is a [`Row`]: one figure, with what was run and on which
//! machine, so that a model can run the same from the row alone. Which rows count, and why the others do not, was
//! written before there was a model, and each line says it. The rules:
//!
//! - A **primitive** (a lock, a counter, a queue) counts by its value.
//! - A row of **Linux** counts by its gain over another row, or by the shape of its curve: where the highest point is,
//!   and how deep the curve falls. Its path is not that of blkmq, so its value itself never counts.
//! - A row does not count if a constant was taken from it, or a machine was chosen for it; if a drive was at its limit;
//!   or if it shows something that the model does not have, or was not asked for. See [`Reason`].
//!
//! Rows of one **group** are designs that were compared: same machine, same threads. A model has to put them in the
//! published order, whether they count or not. Published figures within 10 % of each other are no order.
//!
//! The figures are facts that others measured; each file says where they were published.

mod load;
mod machine;
mod read;

use std::fmt;

pub use load::{
    Benchmark, CounterDesign, Counting, Job, KernelLocks, Load, LockDesign, Locking, QueueDesign, Scheduler, Section,
};
pub use machine::{Machine, Profiled};
pub use read::parse;

/// The sources: their names, and their rows.
const SOURCES: [(&str, &str); 10] = [
    ("folly-locks", include_str!("published/folly-locks.csv")),
    ("folly-queues", include_str!("published/folly-queues.csv")),
    ("folly-pairs", include_str!("published/folly-pairs.csv")),
    ("concurrency-hierarchy", include_str!("published/concurrency-hierarchy.csv")),
    ("icpe24", include_str!("published/icpe24.csv")),
    ("axboe-deadline", include_str!("published/axboe-deadline.csv")),
    ("kuai-batch", include_str!("published/kuai-batch.csv")),
    ("axboe-in-flight", include_str!("published/axboe-in-flight.csv")),
    ("qspinlock", include_str!("published/qspinlock.csv")),
    ("combining-kernel", include_str!("published/combining-kernel.csv")),
];

/// A published figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Where it was published.
    pub source: &'static str,
    /// Which figure of the source it is. No other row of the source has this name.
    pub case: String,
    /// The machine.
    pub machine: &'static Machine,
    /// The threads or processes that ran; if several locks were in use at a time, those at the fullest. Of a
    /// [`Measure::Peak`], the threads at the highest point, and of a [`Measure::Fall`] those at the last.
    pub threads: usize,
    /// What was measured.
    pub published: f64,
    /// Of what it is a number.
    pub unit: Unit,
    /// By what a model is compared with it.
    pub measure: Measure,
    /// Whether it counts.
    pub counts: Counts,
    /// Why it counts, or why not, for people.
    pub why: String,
    /// The comparison that it belongs to, within its source.
    pub group: Option<String>,
    /// What was run.
    pub load: Load,
}

/// Of what a published figure is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Operations of all threads in a second.
    OpsPerSecond,
    /// Nanoseconds of the whole run, divided by the number of operations of all threads together.
    NsPerOp,
    /// How many nanoseconds a thread takes for one of its operations, with its work outside.
    ThreadNsPerOp,
    /// Percent of the time of all threads, or of their cycles.
    Percent,
    /// A number of threads.
    Threads,
    /// One figure divided by another.
    Ratio,
}

impl Unit {
    const ALL: [(&str, Self); 6] = [
        ("ops/s", Self::OpsPerSecond),
        ("ns/op", Self::NsPerOp),
        ("thread-ns/op", Self::ThreadNsPerOp),
        ("percent", Self::Percent),
        ("threads", Self::Threads),
        ("ratio", Self::Ratio),
    ];

    /// Whether a design with more of it is the better one. `None`: that cannot be said.
    #[must_use]
    pub const fn is_more_better(self) -> Option<bool> {
        match self {
            Self::OpsPerSecond => Some(true),
            Self::NsPerOp | Self::ThreadNsPerOp => Some(false),
            Self::Percent | Self::Threads | Self::Ratio => None,
        }
    }
}

/// By what a model is compared with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measure {
    /// By the figure itself.
    Value,
    /// By the figure divided by that of another row of the source, whose case this is.
    Over(String),
    /// By where the highest point of a curve is. The curve has all rows of the source that have this row's machine and
    /// load, and their figure as value or gain. The error is how much lower the model's curve is where the published
    /// one is highest than where its own is highest: nothing if both are highest at the same number of threads, and
    /// little if the model's curve is flat there.
    Peak,
    /// By the last point of a curve, divided by its highest.
    Fall,
}

/// Whether a row counts towards the median of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// It does.
    Yes,
    /// It does not.
    No(Reason),
}

/// Why a row does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A time was taken from it, such as the work outside a lock.
    Fitted,
    /// A constant of the model was chosen from it, or the distances of its machine were never published, so that they
    /// are chosen.
    Chosen,
    /// A drive was at its limit, or may have been.
    Capped,
    /// Rows that count are measured over it, or are about a curve on which it lies.
    Basis,
    /// It is outside of what the model was asked for.
    Unasked,
    /// What it shows is not in the model.
    Unlike,
}

impl Counts {
    const ALL: [(&str, Self); 7] = [
        ("yes", Self::Yes),
        ("fitted", Self::No(Reason::Fitted)),
        ("chosen", Self::No(Reason::Chosen)),
        ("capped", Self::No(Reason::Capped)),
        ("basis", Self::No(Reason::Basis)),
        ("unasked", Self::No(Reason::Unasked)),
        ("unlike", Self::No(Reason::Unlike)),
    ];
}

/// The name of `value` in a table of all values.
fn name_of<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Self::ALL, *self))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Self::ALL, *self))
    }
}

impl Row {
    /// Whether a model runs the row's load once to answer for it; the others are about a curve of such rows.
    #[must_use]
    pub const fn is_point(&self) -> bool {
        matches!(self.measure, Measure::Value | Measure::Over(_))
    }

    /// The points of the curve that this row is about, or lies on, by rising numbers of threads.
    pub(crate) fn curve<'r>(&self, rows: &'r [Self]) -> Vec<&'r Self> {
        let is_of_it = |row: &&Self| {
            row.is_point() && row.unit == Unit::OpsPerSecond && row.source == self.source && row.is_alike(self)
        };
        let mut curve: Vec<&Self> = rows.iter().filter(is_of_it).collect();
        curve.sort_by_key(|row| row.threads);
        curve
    }

    /// The highest and the last point of a curve, as threads and value. `None`: a value is missing, or there is none.
    pub(crate) fn ends(curve: &[&Self], value: impl Fn(&Self) -> Option<f64>) -> Option<(Point, Point)> {
        let points = curve.iter().map(|point| Some((point.threads, value(point)?))).collect::<Option<Vec<_>>>()?;
        let highest = points.iter().copied().reduce(|best, point| if point.1 > best.1 { point } else { best })?;
        Some((highest, *points.last()?))
    }

    fn is_alike(&self, other: &Self) -> bool {
        self.machine.key == other.machine.key && self.load == other.load
    }
}

/// A point of a curve: threads, and a value.
pub(crate) type Point = (usize, f64);

/// The names of all sources.
pub fn sources() -> impl Iterator<Item = &'static str> {
    SOURCES.into_iter().map(|(name, _)| name)
}

/// All published rows, source by source.
///
/// # Panics
/// Never: a test reads all of them.
#[must_use]
pub fn rows() -> Vec<Row> {
    let of_source = |(name, text)| parse(name, text).expect("a published file is right");
    SOURCES.into_iter().flat_map(of_source).collect()
}

#[cfg(test)]
mod tests;
