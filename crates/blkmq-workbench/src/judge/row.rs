//! Rows of the judgement: a figure, and what it has to be.

use std::fmt;

use serde::{Serialize, Serializer};

/// What a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {}", digits(*most)),
            Self::AtLeast(least) => write!(f, ">= {}", digits(*least)),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The value with four significant digits.
pub(super) fn digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Milliseconds: a wait that nobody puts up with, though a scheduler may promise no better.
const TOO_LONG: f64 = 5000.0;

/// The unit of an index that is 1 at best.
pub(super) const INDEX: &str = "of 1";

/// One figure of one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The test: `Q5` to `Q13`.
    pub id: &'static str,
    /// The scheduler's name.
    pub scheduler: String,
    /// What exactly was measured.
    pub case: String,
    /// The figure, with four significant digits.
    pub value: f64,
    /// The figure's unit, such as `ms`, `%` or `requests`; `of 1` for an index that is 1 at best.
    pub unit: &'static str,
    /// What the figure has to be. `None` if the scheduler promises nothing about it.
    pub target: Option<Target>,
    /// Whether it is that. `None` without a target.
    pub pass: Option<bool>,
    /// One sentence that says what the figure means.
    #[serde(skip)]
    pub meaning: &'static str,
}

impl Row {
    /// Whether it is a time of five seconds or more, too long even where the scheduler promises no better.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.unit == "ms" && self.value >= TOO_LONG
    }
}

/// A figure before it is judged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) case: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    pub(super) meaning: &'static str,
    pub(super) target: Option<Target>,
}

impl Figure {
    pub(super) fn new(case: impl Into<String>, value: f64, unit: &'static str, meaning: &'static str) -> Self {
        Self { case: case.into(), value, unit, meaning, target: None }
    }

    /// The figure with a target, if `applies`.
    pub(super) fn aims(mut self, applies: bool, target: Target) -> Self {
        self.target = applies.then_some(target);
        self
    }

    /// The row of this figure.
    pub(super) fn row(self, id: &'static str, scheduler: &str) -> Row {
        let Self { case, value, unit, meaning, target } = self;
        let pass = target.map(|target| target.is_met(value));
        Row { id, scheduler: scheduler.to_owned(), case, value: digits(value), unit, target, pass, meaning }
    }
}

/// Gives each figure its target, if it has one.
pub(super) fn aimed(figures: Vec<Figure>, target: impl Fn(&Figure) -> Option<Target>) -> Vec<Figure> {
    figures.into_iter().map(|figure| Figure { target: target(&figure), ..figure }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a value is judged after rounding, if a number that is none meets a target, or if a target loses digits
    /// that tell it from the value.
    #[test]
    fn a_target_is_met_by_the_value_as_measured() {
        let row = |value, target| Figure::new("case", value, "ms", "").aims(true, target).row("Q5", "none");
        assert_eq!(row(2.0, Target::AtMost(2.0)).pass, Some(true));
        let above = row(2.000_01, Target::AtMost(2.0));
        assert_eq!((above.pass, above.value), (Some(false), 2.0));
        assert_eq!(row(0.99, Target::AtLeast(0.99)).pass, Some(true));
        assert_eq!(row(f64::NAN, Target::AtLeast(0.99)).pass, Some(false));
        assert_eq!(Figure::new("case", 1.0, "", "").aims(false, Target::AtMost(0.0)).row("Q5", "none").pass, None);
        assert_eq!([0.0, 1234.56, 0.001_234_56, -98.765].map(digits), [0.0, 1235.0, 0.001235, -98.77]);
        assert_eq!(Target::AtMost(40.512).to_string(), "<= 40.51");
    }
}
