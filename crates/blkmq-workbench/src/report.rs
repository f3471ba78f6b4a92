//! Reports for people: one HTML file with tables and plots, which needs no network and no script.

mod html;
mod measured;
mod number;
mod plot;
mod scale;

pub use measured::{latencies, throughput};

/// What a report says.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was measured, in a few words.
    pub title: String,
    /// The command that repeats it.
    pub command: String,
    /// The machine: processor, cores, system.
    pub machine: String,
    /// When it was measured.
    pub date: String,
    /// Which figures were measured on that machine, which come from a model or run on virtual time, and which are
    /// published figures of others.
    pub modelled: String,
    /// What was found, in the order of reading.
    pub sections: Vec<Section>,
}

/// A part of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What the reader should know beside it; may be empty.
    pub note: String,
    /// What it shows.
    pub content: Content,
}

/// What a section shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Its note alone.
    Text,
    /// Rows and columns.
    Table(Table),
    /// A plot of curves, with a table of their points.
    Lines(Lines),
    /// A plot of bars, with a table of their values.
    Bars(Bars),
}

/// Rows and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The names of the columns.
    pub head: Vec<String>,
    /// The first cell of a row names it; the others are numbers or words.
    pub rows: Vec<Vec<String>>,
}

/// Curves over a common axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// Along the bottom.
    pub x: Axis,
    /// Along the side.
    pub y: Axis,
    /// The curves.
    pub lines: Vec<Line>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Its points, in the order in which they are joined. What has no place on an axis is left out of the plot.
    pub points: Vec<(f64, f64)>,
}

/// Bars, group by group.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// What the bars measure.
    pub value: Axis,
    /// Where they start: 0, or 1 for ratios.
    pub baseline: f64,
    /// What the bars of each group are, as in "measured", "published".
    pub series: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
}

/// Bars side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What they have in common.
    pub name: String,
    /// One for each series; `None` where there is none.
    pub bars: Vec<Option<Bar>>,
}

/// A bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Where it ends.
    pub value: f64,
    /// The interval in which the value is believed to lie, drawn as whiskers.
    pub interval: Option<(f64, f64)>,
}

/// An axis of a plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What it measures; in which unit, the numbers at its ticks say if they have one.
    pub label: String,
    /// How values are laid out on it.
    pub scale: Scale,
    /// How its numbers are written.
    pub unit: Unit,
}

/// How values are laid out on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In proportion, from 0.
    Linear,
    /// By their logarithm; values above 0.
    Log,
    /// For percentiles: by how few are above, so that 90, 99 and 99.9 % lie at even distances.
    Percentile,
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// As they are, large ones with k, M, G.
    Number,
    /// Nanoseconds, as ns, us, ms or s.
    Nanoseconds,
    /// Percent.
    Percent,
}

impl Report {
    /// The report as one HTML file, which is well-formed XML as well.
    #[must_use]
    pub fn html(&self) -> String {
        html::document(self)
    }
}

impl Axis {
    /// An axis from 0.
    #[must_use]
    pub fn linear(label: impl Into<String>, unit: Unit) -> Self {
        Self { label: label.into(), scale: Scale::Linear, unit }
    }

    /// Its label above numbers that are written in its base unit.
    fn title(&self) -> String {
        let unit = match self.unit {
            Unit::Number => return self.label.clone(),
            Unit::Nanoseconds => "ns",
            Unit::Percent => "%",
        };
        format!("{} ({unit})", self.label)
    }

    /// An axis of another scale.
    #[must_use]
    pub fn new(label: impl Into<String>, scale: Scale, unit: Unit) -> Self {
        Self { label: label.into(), scale, unit }
    }
}

impl Bar {
    /// A value without an interval.
    #[must_use]
    pub const fn new(value: f64) -> Self {
        Self { value, interval: None }
    }

    /// A value with its interval.
    #[must_use]
    pub const fn with_interval(value: f64, low: f64, high: f64) -> Self {
        Self { value, interval: Some((low, high)) }
    }
}
