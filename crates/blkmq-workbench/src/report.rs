//! Reports as one HTML file with tables and plots, which needs no network and no script. The folder draws them;
//! programs call in here alone.

mod html;
mod measured;
mod number;
mod plot;
mod scale;

pub use measured::{latencies, throughput};

/// The contents of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was measured, in a few words.
    pub title: String,
    /// The command that repeats the measurement.
    pub command: String,
    /// The machine: processor, cores, system.
    pub machine: String,
    /// When it was measured.
    pub date: String,
    /// Which figures were measured on that machine, which come from a model or from virtual time, and which were
    /// published by others.
    pub modelled: String,
    /// The results, in the order of reading.
    pub sections: Vec<Section>,
}

/// A part of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What the reader should know about it; may be empty.
    pub note: String,
    /// What it shows.
    pub content: Content,
}

/// What a section shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Only the note.
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
    /// The first cell of a row names the row. The other cells are numbers or words.
    pub rows: Vec<Vec<String>>,
}

/// Curves with common axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The axis along the bottom.
    pub x: Axis,
    /// The axis along the side.
    pub y: Axis,
    /// The curves.
    pub lines: Vec<Line>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Its points, in the order in which they are joined. Points that have no place on an axis are left out of the
    /// plot.
    pub points: Vec<(f64, f64)>,
}

/// Bars in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// What the bars measure.
    pub value: Axis,
    /// The value at which the bars start: 0, or 1 for ratios.
    pub baseline: f64,
    /// The meaning of the bars of each group, such as "measured", "published".
    pub series: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
}

/// Bars side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What the bars have in common.
    pub name: String,
    /// One bar for each series. `None` if there is none.
    pub bars: Vec<Option<Bar>>,
}

/// A bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// The value at which the bar ends.
    pub value: f64,
    /// The interval that is believed to contain the value, drawn as whiskers.
    pub interval: Option<(f64, f64)>,
}

/// An axis of a plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What it measures. If the numbers have a unit, the unit is written at the ticks.
    pub label: String,
    /// How values are laid out on it.
    pub scale: Scale,
    /// How its numbers are written.
    pub unit: Unit,
}

/// How values are placed on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In proportion to the value, from 0.
    Linear,
    /// By the logarithm of the value. Values must be above 0.
    Log,
    /// For percentiles: by the share that is above, so that 90, 99 and 99.9 % are at even distances.
    Percentile,
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// As they are. Large ones get k, M or G.
    Number,
    /// As ns, us, ms or s. The values are nanoseconds.
    Nanoseconds,
    /// Percent.
    Percent,
}

/// A time in milliseconds, in the unit that suits it and with three digits: `10 s`, `1.4 ms`.
#[must_use]
pub fn milliseconds(value: f64) -> String {
    number::short(value * 1e6, Unit::Nanoseconds, 3)
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

    /// The label that stands above numbers in the base unit.
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
